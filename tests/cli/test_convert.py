"""``qkvary convert``: figures, then a folder that says the same; or one sentence and nothing."""

from pathlib import Path

import pytest
import torch

import qkvary as qk
from qkvary.checkpoints.models import load_model, save_model
from qkvary.data.tokenizers import CharacterTokenizer
from tests.conftest import Typed
from tests.contracts.variant_cases import distance
from tests.conversions.networks import labels, make_network

CHARACTERS = CharacterTokenizer("".join(chr(97 + index) for index in range(13)))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_model(tmp_path / "net", make_network("Q-K=V", positions="sinusoidal").float(), CHARACTERS)
    return tmp_path / "net"


def test_a_folder_that_says_the_same(checkpoint: Path, tmp_path: Path, typed: Typed) -> None:
    out = tmp_path / "made"
    printed = typed("convert", checkpoint, "--rewrite", "identity-query", "--out", out)
    for part in ("Theorem 4.2", "W_Q of layer 2", "float64", "float32", "I-K=V", f"written: {out}"):
        assert part in printed
    old, new = load_model(checkpoint), load_model(out)
    assert labels(new.network) == ["I-K=V"] * 2
    assert new.tokenizer is not None
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        assert distance(new.network(tokens), old.network(tokens)) < 1e-4
    assert qk.generate(new, "abc", tokens=5) == qk.generate(old, "abc", tokens=5)


def test_figures_alone_as_json(checkpoint: Path, typed: Typed) -> None:
    call = ["convert", checkpoint, "--rewrite", "identity-query", "--dtype", "float64"]
    found = typed.json(*call)
    assert found["layers"] == {"before": ["Q-K=V"] * 2, "after": ["I-K=V"] * 2}
    assert found["float64"]["relative"] < 1e-11
    assert found["stored"]["dtype"] == "float64"
    assert found["out"] is None
    table = 9 * 20
    assert found["parameters"]["after"] == found["parameters"]["before"] - 2 * 400 + table
    note = "sinusoidal positions are now stored as a table of 9 x 20 values, because they are "
    assert found["notes"] == [f"{note}written in another basis"]


@pytest.mark.parametrize("spelled", ["net", "./net/../net", "link"])
def test_the_checkpoint_itself_is_not_replaced(
    spelled: str, checkpoint: Path, tmp_path: Path, typed: Typed
) -> None:
    (tmp_path / "link").symlink_to(checkpoint, target_is_directory=True)
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    out = f"{tmp_path}/{spelled}"
    (line,) = typed.error("convert", checkpoint, "--rewrite", "gauge", "--out", out).splitlines()
    assert "expected a folder other than the checkpoint's own" in line
    with pytest.raises(ValueError, match="of the checkpoint would be lost"):
        qk.convert(checkpoint, "gauge", out=out)
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before
