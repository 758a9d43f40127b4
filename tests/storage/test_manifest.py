import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from qkvary.storage.durable import atomic_write_dir
from qkvary.storage.errors import DamagedError, NewerFormatError, UnsafeError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, describe, read_manifest
from tests.storage.damage import DAMAGES

FILES = {"weights.bin": bytes(range(256)) * 13, "notes.txt": b"17 notes", "empty": b""}


def store(folder: Path) -> Path:
    manifest = describe(FILES, about={"step": 17, "loss": float("nan")})
    atomic_write_dir(folder, {**FILES, MANIFEST_NAME: manifest.to_json()})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return store(tmp_path / "stored")


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest, and write the digest of the rest."""
    body = cast("dict[str, Any]", decode((folder / MANIFEST_NAME).read_bytes()))
    del body["digest"]
    change(body)
    digest = hashlib.sha256(encode(body).encode()).hexdigest()
    (folder / MANIFEST_NAME).write_text(encode({**body, "digest": digest}))


def write_version(folder: Path, version: int) -> None:
    """Write the manifest as a later qkvary might."""
    forge(folder, lambda body: body.update(format_version=version))


def test_what_was_written_is_handed_out(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest.read_all(folder) == FILES
    assert manifest.about["step"] == 17


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["weights.bin", "notes.txt", MANIFEST_NAME])
def test_every_damage_is_noticed_and_named(folder: Path, damage: object, name: str) -> None:
    for seed in range(9):
        damage(store(folder) / name, random.Random(seed))  # type: ignore[operator]
        for look in (Manifest.read_all, Manifest.check):
            with pytest.raises(DamagedError) as caught:
                look(read_manifest(folder), folder)
            assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "", ".", "..", "a\0b", "a b", "ä"])
def test_names_that_are_no_names_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(UnsafeError):
        describe({name: b""})
    hostile = Manifest(files={name: FileEntry.of(b"")}, about={}).to_json()
    (folder / MANIFEST_NAME).write_bytes(hostile)
    with pytest.raises(UnsafeError):
        read_manifest(folder)


def test_a_link_out_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_bytes(FILES["notes.txt"])
    (folder / "notes.txt").unlink()
    (folder / "notes.txt").symlink_to(outside)
    with pytest.raises(UnsafeError, match="links to a file outside its folder"):
        read_manifest(folder)


def test_a_newer_format_is_not_called_damaged(folder: Path) -> None:
    write_version(folder, 2)
    with pytest.raises(NewerFormatError, match="format_version 2, but this qkvary reads only 1"):
        read_manifest(folder)


def test_a_flipped_version_is_damage_and_not_a_newer_format(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 7'))
    with pytest.raises(DamagedError, match="its digest does not match") as caught:
        read_manifest(folder)
    assert not isinstance(caught.value, NewerFormatError)


@pytest.mark.parametrize(
    "entry", [{"size": None}, {"size": True}, {"size": [8]}, {"size": -1}, {"sha256": 3}]
)
def test_forged_entries_of_other_types_are_refused(folder: Path, entry: dict[str, Any]) -> None:
    forge(folder, lambda body: body["files"]["notes.txt"].update(entry))
    with pytest.raises(DamagedError, match="is not a manifest"):
        read_manifest(folder)


def test_a_file_that_is_not_listed_is_not_opened(folder: Path) -> None:
    manifest = read_manifest(folder)
    manifest.check(folder)
    with pytest.raises(DamagedError, match="does not list other"):
        manifest.check_file(folder, "other")
