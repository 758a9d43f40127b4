"""The script of the packaged models: its tokenizer, its study, and that it refuses another text."""

from qkvary.arch.canonical import from_dict
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import LanguageModelConfig
from qkvary.data.checkpoint_names import PACKAGED, packaged_names
from qkvary.storage.jsonvalues import decode
from tests.studies_scripts.loading import load_script

script = load_script("tiny", "train")


def test_the_packaged_networks_are_those_of_the_script() -> None:
    network = script.make_network()
    assert set(packaged_names()) == set(script.NAMES.values())
    for variant, name in script.NAMES.items():
        stored = decode((PACKAGED / name / "config.json").read_bytes())
        assert from_dict(LanguageModelConfig, stored) == network.with_variant(
            parse_variant(variant)
        )
