"""Multi30k and corpora like it: found, verified, and refused with the name of the file."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest

from qkvary.data import translations
from qkvary.data.downloads import DownloadError
from qkvary.data.translations import fingerprint, load_translations
from qkvary.storage.errors import DamagedError, UsageError

STEMS = ("train", "val", "test_2016_flickr")


@pytest.fixture(autouse=True)
def _read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load_translations.cache_clear()
    monkeypatch.delenv("QKVARY_DATA", raising=False)
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def write(folder: Path, **other: bytes) -> Path:
    """A corpus of three lines a split, with some files of another content."""
    folder.mkdir(parents=True)
    for stem in STEMS:
        for language in ("de", "en"):
            name = f"{stem}.{language}"
            text = "".join(f"{name} {number}\n" for number in range(3)).encode()
            content = other.get(name.replace(".", "_"), gzip.compress(text, mtime=0))
            (folder / f"{name}.gz").write_bytes(content)
    return folder


def sums_of(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_folder_is_read_line_by_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "corpus", val_de=gzip.compress("Ä \r\nzwei\n  3".encode()))
    corpus = load_translations(str(folder))
    assert corpus.splits["train"]["en"] == ("train.en 0", "train.en 1", "train.en 2")
    assert corpus.splits["validation"]["de"] == ("Ä", "zwei", "3")
    assert corpus.fingerprint == fingerprint(sums_of(folder))


@pytest.mark.parametrize("place", ["QKVARY_DATA", "QKVARY_CACHE"])
def test_multi30k_is_found_and_verified(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "data" / "multi30k")
    monkeypatch.setenv(place, str(folder.parent))
    with pytest.raises(DamagedError, match=r"expected .*train\.de\.gz with sha256 726e39b2fa9e"):
        load_translations()
    monkeypatch.setattr(translations, "MULTI30K_FILES", sums_of(folder))
    assert load_translations().splits["test"]["de"][2] == "test_2016_flickr.de 2"


def test_what_is_missing_is_downloaded_and_verified_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "web")
    asked: list[str] = []

    def fetch(url: str, *, limit: int, **_: object) -> bytes:
        asked.append(url)
        return (folder / url.rpartition("/")[2]).read_bytes()[:limit]

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("qkvary.data.files.fetch", fetch)
    with pytest.raises(DownloadError, match=r"https://.*/task1/raw/train\.de\.gz has changed"):
        load_translations()
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(translations, "MULTI30K_FILES", sums_of(folder))
    first = load_translations()
    assert sums_of(tmp_path / "cache" / "multi30k") == sums_of(folder)
    load_translations.cache_clear()
    assert load_translations() == first
    # One that was refused, and all of them once.
    assert len(asked) == 1 + 6


@pytest.mark.parametrize(
    ("content", "end", "message"),
    [
        (b"one\ntwo\n", None, r"equally many lines in each .*, got 3 in .*de.gz and"),
        (b"one\n\nthree", None, r"on every line of .*val.en.gz, got none on"),
        (b"one\n\xff\n", None, r"expected UTF-8 text in .*en.gz, got 'utf-8"),
        (b"one\ntwo\nthree\n", -9, r"val.en.gz cannot be unpacked"),
    ],
)
def test_a_damaged_file_is_refused_by_name(
    content: bytes, end: int | None, message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "corpus", val_en=gzip.compress(content)[:end])
    with pytest.raises(DamagedError, match=message):
        load_translations(str(folder))


def write_pair(folder: Path, lines: int = 40, **other: str) -> Path:
    """Two files of other languages: ``mine.fr`` and ``mine.en``, one of them compressed."""
    texts = {
        language: "".join(f"{language} {number}\n" for number in range(lines))
        for language in ("fr", "en")
    } | other
    (folder / "mine.fr").write_text(texts["fr"])
    (folder / "mine.en.gz").write_bytes(gzip.compress(texts["en"].encode()))
    return folder / "mine"


def test_two_files_are_read_line_by_line(tmp_path: Path) -> None:
    """The last twentieth is the test, the one before it the validation."""
    corpus = load_translations(str(write_pair(tmp_path)), ("en", "fr"))
    assert corpus.splits["train"]["fr"] == tuple(f"fr {number}" for number in range(36))
    assert corpus.splits["validation"] == {"en": ("en 36", "en 37"), "fr": ("fr 36", "fr 37")}
    assert corpus.splits["test"] == {"en": ("en 38", "en 39"), "fr": ("fr 38", "fr 39")}


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"fr": "un\n"}, DamagedError, "many lines in each language, got 40 in .* and 1 in"),
        ({"lines": 19}, UsageError, "expected at least 20 lines in .*mine, got 19"),
        ({"fr": "un\n\n" * 20}, DamagedError, "a sentence on every line of .*, got none on"),
    ],
)
def test_bad_pairs_are_refused(
    tmp_path: Path, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    data = write_pair(tmp_path, **given)
    with pytest.raises(error, match=says):
        load_translations(str(data), ("en", "fr"))


def test_multi30k_has_two_languages() -> None:
    with pytest.raises(UsageError, match="languages de and en for multi30k, got en and fr"):
        load_translations(languages=("en", "fr"))
