import dataclasses
from pathlib import Path

import pytest

from qkvary.storage.errors import DamagedError, NewerFormatError, UsageError
from qkvary.storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    keep_newest,
    quarantine_newer,
    stored_steps,
)
from tests.storage.byte_checkpoints import Stored, load, load_newest, save
from tests.storage.test_manifest import write_version


def stored(step: int) -> Stored:
    return Stored(step=step, files={"a.bin": bytes([step]) * 11}, about={"note": f"step {step}"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (3, 7, 13):
        save(tmp_path / "checkpoints", stored(step))
    return tmp_path / "checkpoints"


def newest(folder: Path) -> tuple[int | None, list[str]]:
    """Return the step that is loaded, and what is reported."""
    reported: list[str] = []
    found = load_newest(folder, report=reported.append)
    assert found is None or found == as_loaded(found.step)
    return found and found.step, reported


def as_loaded(step: int) -> Stored:
    return dataclasses.replace(stored(step), about={"note": f"step {step}", "step": step})


def test_the_newest_two_are_kept(folder: Path) -> None:
    assert stored_steps(folder) == (13, 7)
    assert newest(folder) == (13, [])


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_requested_number_is_kept(tmp_path: Path, keep: int) -> None:
    every = (19, 17, 13, 11, 7, 5, 3)
    for step in reversed(every):
        save(tmp_path / "once", stored(step))
        (tmp_path / "once" / f"step-{step:012d}").rename(tmp_path / f"step-{step:012d}")
    quarantine_newer(tmp_path, 17)
    assert stored_steps(tmp_path) == every[1:], "newer ones are damaged"
    keep_newest(tmp_path, keep)
    assert stored_steps(tmp_path) == every[1 : 1 + keep]
    keep_newest(tmp_path, 1)
    assert stored_steps(tmp_path) == (17,)


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert newest(tmp_path / "absent") == (None, [])
    assert stored_steps(tmp_path / "absent") == ()


def test_what_is_no_checkpoint_is_passed_over(folder: Path) -> None:
    (folder / "step-12").mkdir()
    (folder / "notes.txt").write_text("mine")
    assert stored_steps(folder) == (13, 7)


def test_a_damaged_newest_is_named_and_the_one_before_is_used(folder: Path) -> None:
    (folder / "step-000000000013" / "a.bin").write_bytes(b"short")
    step, (reported,) = newest(folder)
    assert step == 7
    assert reported.startswith("checkpoint of step 13 is damaged: expected 11 bytes in ")
    assert reported.endswith("a.bin, got 5")
    assert stored_steps(folder) == (7,)
    aside = folder / "damaged-1" / "step-000000000013"
    assert (aside / "a.bin").read_bytes() == b"short"
    assert (aside / MANIFEST_NAME).is_file()
    save(folder, stored(17))
    save(folder, stored(19))
    assert stored_steps(folder) == (19, 17)
    assert aside.is_dir(), "who makes room does not make it there"


def test_unreadable_checkpoints_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary disk error costs no valid checkpoint."""
    read = Manifest.read

    def fail(manifest: Manifest, directory: Path, name: str) -> bytes:
        if directory.name == "step-000000000013":
            raise DamagedError(f"{directory / name} cannot be read: Input/output error")
        return read(manifest, directory, name)

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "read", fail)
        step, (problem,) = newest(folder)
    assert step == 7
    assert "Input/output error" in problem
    (folder / "damaged-1" / "step-000000000013").rename(folder / "step-000000000013")
    assert load(folder, 13) == as_loaded(13)


def test_with_all_damaged_nothing_is_removed(folder: Path) -> None:
    for step in (7, 13):
        (folder / f"step-{step:012d}" / MANIFEST_NAME).unlink()
    with pytest.raises(DamagedError, match=r"every checkpoint in .* is damaged") as caught:
        newest(folder)
    assert caught.value.exit_code == 3
    assert stored_steps(folder) == (13, 7)


def test_a_checkpoint_under_another_number_is_damaged(folder: Path) -> None:
    (folder / "step-000000000013").rename(folder / "step-000000000017")
    with pytest.raises(DamagedError, match="got 13"):
        load(folder, 17)


def test_what_the_caller_refuses_is_damaged_and_its_other_errors_pass(folder: Path) -> None:
    def refuse(found: Stored) -> None:
        if found.step == 13:
            raise DamagedError("of no use")

    found = load_newest(folder, accept=refuse)
    assert found
    assert found.step == 7

    def other(_stored: Stored) -> None:
        raise UsageError("another run")

    with pytest.raises(UsageError, match="another run"):
        load_newest(folder, accept=other)


def test_a_newer_format_is_not_passed_over(folder: Path) -> None:
    write_version(folder / "step-000000000013", 2)
    with pytest.raises(NewerFormatError):
        newest(folder)
    assert stored_steps(folder) == (13, 7)
