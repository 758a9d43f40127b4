"""A prepared set reads back unchanged from any folder; every change is detected."""

import os
import random
import re
import shutil
from pathlib import Path

import pytest

from qkvary.data import prepared
from qkvary.data.preparation import LOCK_FILE
from qkvary.data.prepared import is_prepared, open_prepared
from qkvary.storage.errors import DamagedError, NewerFormatError, QkvaryError, UsageError
from qkvary.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, read_manifest
from tests.data.small_sets import made_up, make_set, plain_tokens
from tests.storage.damage import DAMAGES, trials

TEXTS, HELD_OUT = made_up(23, seed=11), made_up(5, seed=12)
DAMAGED = trials("DATA_DAMAGES", 120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    make_set(place, TEXTS, HELD_OUT)
    return place / "set"


def test_documents_survive_a_round_trip(folder: Path) -> None:
    data = open_prepared(folder)
    for name, texts in (("train", TEXTS), ("validation", HELD_OUT)):
        split, tokens = data.splits[name], plain_tokens(texts)
        assert (split.tokens, split.documents) == (len(tokens), len(texts))
        assert split.text_bytes == sum(len(text.strip().encode()) for text in texts)
        assert split.read(0, split.tokens).tolist() == tokens
        starts = split.document_starts
        assert (len(starts), starts[0], starts[-1]) == (len(texts) + 1, 0, len(tokens))
        for start, end, text in zip(starts, starts[1:], texts, strict=False):
            assert split.read(start, end - start).tolist() == plain_tokens([text])
    assert data.vocabulary == 257
    assert data.separator == 256
    assert list(data.splits) == ["train", "validation"]


def listed(folder: Path) -> list[str]:
    return [MANIFEST_NAME, *sorted(read_manifest(folder).files)]


def copy_damaged(folder: Path, place: Path, seed: int) -> str:
    """A copy of a set with one thing wrong; returns which file."""
    generator = random.Random(seed)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    (place / LOCK_FILE).unlink()
    name = generator.choice(listed(folder))
    generator.choice(DAMAGES)(place / name, generator)
    return name


def check_damage(folder: Path, copy: Path, seeds: range) -> None:
    for seed in seeds:
        name = copy_damaged(folder, copy, seed)
        with pytest.raises(QkvaryError) as caught:
            open_prepared(copy)
        message = str(caught.value)
        assert len(message.splitlines()) == 1
        gone = not (copy / MANIFEST_NAME).exists()
        assert caught.value.exit_code == (2 if gone else 3), (seed, message)
        assert re.search(r"[\w.-]+\.(json|bin)", message), (seed, name, message)


def test_no_damage_goes_unnoticed(folder: Path, tmp_path: Path) -> None:
    check_damage(folder, tmp_path / "copy", range(DAMAGED))


@pytest.mark.slow
def test_none_of_many_damages_goes_unnoticed(folder: Path, tmp_path: Path) -> None:
    check_damage(folder, tmp_path / "copy", range(DAMAGED, DAMAGED + 1_000))


def test_a_large_file_is_read_again_only_if_it_was_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prepared, "_SETTLED_NANOSECONDS", -1)
    monkeypatch.setattr(prepared, "REMEMBERED_BYTES", 1)
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    open_prepared(place)
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "check_file", None)
        open_prepared(place)
    shard = place / "train-00001.bin"
    shard.write_bytes(bytes(shard.stat().st_size))
    # Clocks of files may tick too slowly for two moments of a test.
    os.utime(shard, ns=(0, shard.stat().st_mtime_ns + 10**9))
    with pytest.raises(DamagedError, match=r"train-00001\.bin was changed"):
        open_prepared(place)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "checkpoint"}, "expected a prepared set of documents"),
        ({"format": 2}, "reads only 1; use a newer qkvary"),
        ({"token_bytes": 4}, "is inconsistent: its fingerprint does not match"),
        ({"fingerprint": "0" * 64}, "is inconsistent: its fingerprint does not match"),
        ({"splits": 3}, "is inconsistent"),
    ],
)
def test_a_manifest_of_something_else_is_refused(
    folder: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """Its own digest matches: another program wrote it."""
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    manifest = read_manifest(place)
    about = {**manifest.about, **change}
    new = type(manifest)(files=manifest.files, about=about)  # type: ignore[arg-type]
    (place / MANIFEST_NAME).write_bytes(new.to_json())
    with pytest.raises((DamagedError, NewerFormatError, UsageError), match=re.escape(message)):
        open_prepared(place)


def test_a_set_of_version_0_2_opens(folder: Path, tmp_path: Path) -> None:
    """It has digests of blocks, which its fingerprint leaves out."""
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    (place / "blocks.json").write_bytes(b"{}")
    manifest = read_manifest(place)
    files = {**manifest.files, "blocks.json": FileEntry.of(b"{}")}
    (place / MANIFEST_NAME).write_bytes(Manifest(files=files, about=manifest.about).to_json())
    assert open_prepared(place).fingerprint == open_prepared(folder).fingerprint


def test_invalid_folders(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="which does not exist"):
        open_prepared(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"got a folder without a MANIFEST\.json"):
        open_prepared(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UsageError, match="is not finished"):
        open_prepared(tmp_path)
    assert not is_prepared(tmp_path)
    assert is_prepared(folder)
