"""A saved model loads bit-exactly, and a damaged one is rejected."""

import contextlib
from pathlib import Path

import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.models import FORMAT, load_model, save_model
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.durable import atomic_write_dir
from qkvary.storage.errors import DamagedError, NewerFormatError, QkvaryError, UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import MANIFEST_NAME, describe, read_manifest
from tests.checkpoints.equal_networks import same_weights
from tests.contracts.variant_cases import (
    LABELS,
    make_language_model_config,
    randomize,
    variant_values,
)
from tests.storage.damage import damaged_copies, trials

CHARACTERS = CharacterTokenizer("abcdefghijk é")


def make_model(label: str = "Q-K=V", **fields: object) -> LanguageModel:
    model = LanguageModel(make_language_model_config(label, **fields))
    randomize(model, seed=7)
    return model.eval()


@variant_values("label", LABELS)
def test_every_variant_survives_a_round_trip_bitwise(label: str, tmp_path: Path) -> None:
    model = make_model(label, positions="learned")
    save_model(tmp_path / "model", model, CHARACTERS)
    found, tokenizer = load_checkpoint(tmp_path / "model")
    assert found.config == model.config
    assert not found.training
    assert same_weights(found, model)
    assert tokenizer is not None
    assert tokenizer.describe() == CHARACTERS.describe()
    tokens = torch.tensor([[1, 12, 3]])
    with torch.no_grad():
        assert torch.equal(found(tokens), model(tokens))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_survives_a_round_trip(dtype: torch.dtype, tmp_path: Path) -> None:
    model = make_model(tied_head=False, head_bias=True).to(dtype)
    save_model(tmp_path / "model", model)
    found, tokenizer = load_model(tmp_path / "model")
    assert tokenizer is None
    assert same_weights(found, model)


def test_a_model_replaces_a_model_and_nothing_else(tmp_path: Path) -> None:
    save_model(tmp_path / "new" / "model", make_model("QKV"))
    save_model(tmp_path / "new" / "model", make_model("MQA"))
    assert load_model(tmp_path / "new" / "model").network.config == make_model("MQA").config
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("precious", "utf-8")
    with pytest.raises(UsageError, match="is not a model that qkvary saved; it is not overwritten"):
        save_model(tmp_path / "notes", make_model())
    assert (tmp_path / "notes" / "mine.txt").read_text("utf-8") == "precious"


def test_unusable_models_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a vocabulary of 13 tokens, but its tokenizer has 256"):
        save_model(tmp_path / "model", make_model(), ByteTokenizer())
    broken = make_model()
    with torch.no_grad():
        broken.embedding[3, 4] = torch.nan
    with pytest.raises(UsageError, match="a weight that is not finite, in embedding"):
        save_model(tmp_path / "model", broken)
    mixed = make_model()
    mixed.stack.double()
    with pytest.raises(
        UsageError, match="weights in float32, float64, expected all weights in the"
    ):
        save_model(tmp_path / "model", mixed)
    assert list(tmp_path.iterdir()) == []


def test_no_damage_is_silent(tmp_path: Path) -> None:
    save_model(tmp_path / "sound", make_model(), CHARACTERS)
    silent: list[str] = []
    folder = tmp_path / "damaged"
    for damage in damaged_copies(tmp_path / "sound", folder, trials("DAMAGES", 80)):
        with contextlib.suppress(DamagedError):
            load_model(folder)
            silent.append(damage)
    assert silent == []


def rewrite(folder: Path, about: dict[str, JsonValue] | None = None, **files: bytes | None) -> None:
    """A folder that was made on purpose: everything agrees with its manifest."""
    manifest = read_manifest(folder)
    stored: dict[str, bytes] = dict(manifest.read_all(folder))
    for name, data in files.items():
        stored.pop(f"{name}.json", None)
        if data is not None:
            stored[f"{name}.json"] = data
    facts = manifest.about if about is None else about
    made = describe(stored, about=facts)
    atomic_write_dir(folder, {**stored, MANIFEST_NAME: made.to_json()})


NEWER = {"kind": "language model", "model_format": FORMAT.version + 1}
SHARED_BLOCKS = b'{"num_layers": 1000000000000, "shared_blocks": true}'


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"config": b"[" * 100_000}, DamagedError, "is not a configuration"),
        ({"config": None}, DamagedError, "does not list config.json"),
        ({"config": b'{"num_layers": 1000000000000}'}, DamagedError, "more layers than there are"),
        ({"config": SHARED_BLOCKS}, DamagedError, "more layers than there are"),
        ({"tokenizer": b"[]"}, DamagedError, "tokenizer.json is not a tokenizer"),
        ({"tokenizer": b'{"kind": "bytes"}'}, DamagedError, "but its tokenizer has 256"),
        ({"about": {"kind": "run"}}, DamagedError, "model, got run"),
        ({"about": NEWER}, NewerFormatError, "this qkvary reads only 1; use a newer qkvary"),
    ],
)
def test_a_forged_folder_is_rejected(
    change: dict[str, object], error: type[QkvaryError], message: str, tmp_path: Path
) -> None:
    save_model(tmp_path / "model", make_model(), CHARACTERS)
    rewrite(tmp_path / "model", **change)  # type: ignore[arg-type]
    with pytest.raises(error) as caught:
        load_checkpoint(tmp_path / "model")
    assert message in str(caught.value)
