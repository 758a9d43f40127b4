"""The translation studies have the published sizes, and each protocol what it says."""

from pathlib import Path

import pytest

from qkvary.arch.canonical import canonical_json
from qkvary.arch.networks import EncoderDecoderConfig
from qkvary.data.translations import load_translations
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.studies.catalog import load_study
from qkvary.studies.running.runner import prepare_sets
from qkvary.studies.study import Study
from qkvary.tasks.config import TranslationTaskConfig
from tests.conftest import Runner

PROTOCOLS = {
    ("translation-published", None): ("as-published", "published-code"),
    ("translation-published", "clean"): ("clean", "none"),
    ("translation-paper", None): ("as-published", "none"),
    ("translation-paper", "clean"): ("clean", "none"),
    ("translation-quick", None): ("clean", "none"),
    ("translation-quick", "as-published"): ("as-published", "published-code"),
}


def tasks_of(study: Study) -> list[TranslationTaskConfig]:
    return [one.task for one in study.settings if isinstance(one.task, TranslationTaskConfig)]


@pytest.mark.parametrize(("name", "protocol"), PROTOCOLS)
def test_a_protocol_is_what_it_says(name: str, protocol: str | None) -> None:
    study = load_study(name, protocol)
    networks = [one.network for one in study.settings]
    assert all(isinstance(network, EncoderDecoderConfig) for network in networks)
    found = {
        (task.protocol, network.cross_sharing)  # type: ignore[attr-defined]
        for task, network in zip(tasks_of(study), networks, strict=True)
    }
    assert found == {PROTOCOLS[name, protocol]}
    assert study.name == name + (f"-{protocol}" if protocol else "")


def test_missing_and_damaged_sentences_end_a_study_before_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = load_study("translation-quick").cells()
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path))
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    load_translations.cache_clear()
    with pytest.raises(UsageError, match=r"multi30k/train\.de\.gz is not on this machine"):
        prepare_sets(cells, pytest.fail)
    (tmp_path / "multi30k").mkdir()
    (tmp_path / "multi30k" / "train.de.gz").write_bytes(b"words")
    with pytest.raises(DamagedError, match=r"expected multi30k/train\.de\.gz with sha256"):
        prepare_sets(cells, pytest.fail)


def test_a_stored_network_finds_the_kind_of_its_cross_attention(run_python: Runner) -> None:
    network = load_study("translation-published").settings[0].network
    read = "import json, sys; from qkvary.arch import canonical, networks; "
    read += "print(canonical.from_dict(networks.Network, json.loads(sys.argv[1])).cross_sharing)"
    assert run_python(["-c", read, canonical_json(network)]).stdout == "published-code\n"
