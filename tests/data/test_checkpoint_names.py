"""Checkpoints are found by path, by name in the package, and by name below QKVARY_DATA."""

from pathlib import Path

import pytest

from qkvary.data.checkpoint_names import (
    PACKAGED,
    checkpoint_names,
    find_checkpoint,
    packaged_names,
)
from qkvary.storage.errors import UsageError


def test_packaged_models_have_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QKVARY_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert packaged_names() == checkpoint_names() == ("tiny", "tiny-k")
    assert find_checkpoint("tiny-k") == find_checkpoint("Tiny_K") == PACKAGED / "tiny-k"
    (tmp_path / "tiny-k").mkdir()
    assert find_checkpoint("tiny-k") == Path("tiny-k")


def test_names_below_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "stories260K"
    folder.mkdir(parents=True)
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path))
    assert checkpoint_names() == ("tiny", "tiny-k", "stories260K")
    assert find_checkpoint("stories260K") == folder


def test_a_missing_checkpoint_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKVARY_DATA", raising=False)
    with pytest.raises(UsageError) as caught:
        find_checkpoint("stories260K")
    assert str(caught.value) == (
        "expected a checkpoint, got stories260K, which is not on this machine: put "
        "stories260K.bin and tok512.bin of https://huggingface.co/karpathy/tinyllamas into "
        "checkpoints/stories260K of the folder QKVARY_DATA"
    )


def test_an_unknown_checkpoint_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"got tiny-j, which does not exist; did you mean tiny-k"):
        find_checkpoint("tiny-j")
    with pytest.raises(UsageError, match=r"got nowhere/tiny-k, which does not exist$"):
        find_checkpoint("nowhere/tiny-k")
