"""A training state is digested whole, and replaced only by one that is verified."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from qkvary.checkpoints.training_state import (
    TrainingState,
    save_training_state,
    state_sha256,
)
from qkvary.storage import manifest
from qkvary.storage.durable import remove_dir
from qkvary.storage.errors import DamagedError
from tests.checkpoints.loaded_states import KEY, load_training_state


def state(step: int) -> TrainingState:
    generator = torch.Generator().manual_seed(step)
    tied = torch.randn(5, 7, generator=generator)
    return TrainingState(
        step=step,
        weights={"a.weight": tied, "head.weight": tied, "b": torch.randn(3, generator=generator)},
        optimizer={"0.step": torch.tensor(float(step)), "0.exp_avg": tied * 0.1},
        about={"run_key": KEY, "loss": float("nan"), "count": step},
    )


def digest(found: TrainingState) -> str:
    return state_sha256(found.weights, found.optimizer)


def test_a_digest_covers_every_name_type_shape_and_number() -> None:
    one = torch.arange(6.0)
    states = [
        ({"a": one}, {"b": one}),
        ({"c": one}, {"b": one}),
        ({"a": one, "b": one}, {}),
        ({"a": one.double()}, {"b": one}),
        ({"a": one.view(2, 3)}, {"b": one}),
        ({"a": one + 1}, {"b": one}),
        ({"a": one}, {"b": one + 1}),
    ]
    assert len({state_sha256(*state) for state in states}) == len(states)


def test_with_one_state_the_old_is_removed_after_the_new_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each removal the new state is durable under its name, and is what was to be written."""
    removed: list[Path] = []

    def watched(path: Path) -> None:
        found = load_training_state(
            shutil.copytree(tmp_path / "states", tmp_path / f"copy-{len(removed)}"),
            pytest.fail,
        )
        assert found
        assert digest(found) == digest(state(len(removed) + 2))
        removed.append(path)
        remove_dir(path)

    monkeypatch.setattr(manifest, "remove_dir", watched)
    for step in (1, 2, 3):
        save_training_state(tmp_path / "states", state(step), keep=1)
    assert [path.name for path in removed] == ["step-000000000001", "step-000000000002"]


def test_a_failed_verification_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_training_state(tmp_path, state(1), keep=1)
    real = manifest.write_new_file

    def flipped(path: Path, blocks: Iterable[bytes | memoryview], size: int) -> None:
        real(path, blocks, size)
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    monkeypatch.setattr(manifest, "write_new_file", flipped)
    with pytest.raises(DamagedError, match=r"safetensors was changed"):
        save_training_state(tmp_path, state(2), keep=1)
    found = load_training_state(tmp_path, pytest.fail)
    assert found
    assert digest(found) == digest(state(1))
