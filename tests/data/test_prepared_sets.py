"""Sources, corpora and prepared sets by name, and messages for missing ones."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvary.data import documents, tokenizer_files
from qkvary.data.downloads import DownloadError
from qkvary.data.prepared import PreparedData, open_prepared
from qkvary.data.prepared_sets import (
    DEFAULT_TOKENIZER,
    default_folder,
    ensure_prepared,
    find_prepared,
    prepare_source,
)
from qkvary.data.shakespeare import load_shakespeare
from qkvary.data.sources import SourceOptions, find_source
from qkvary.data.tokenizer_files import load_gpt2, load_tokenizer
from qkvary.reports.prepared_set import find_share_error
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.tasks.language import LanguageTask
from tests.data.merged import KINDS, merges_of
from tests.data.small_sets import made_up


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a data root of their own, and no net."""
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "cache"


def write_novels(root: Path) -> None:
    for number, split in enumerate(("train", "valid", "test")):
        folder = root / "english_novels" / split
        folder.mkdir(parents=True)
        for name, text in zip("ab", made_up(2, seed=number), strict=True):
            (folder / f"{name}.txt").write_text(text, "utf-8")
        (folder / "notes.pdf").write_bytes(b"\xff")


def counts(data: PreparedData) -> dict[str, int]:
    return {name: split.documents for name, split in data.splits.items()}


def test_a_corpus_is_prepared_when_it_is_first_asked_for(tmp_path: Path, cache: Path) -> None:
    write_novels(tmp_path / "data")
    with pytest.raises(UsageError, match="run `qkvary data prepare english-novels --tokenizer byt"):
        find_prepared("english-novels/bytes")
    place = ensure_prepared("english-novels/bytes")
    assert place == cache / "data" / "english-novels-bytes"
    assert find_prepared("english-novels/bytes") == place
    assert find_prepared(str(place)) == place
    assert counts(open_prepared(place)) == {"train": 2, "validation": 2, "test": 2}
    # A set that is complete needs its corpus no more.
    for path in (tmp_path / "data").rglob("*.txt"):
        path.unlink()
    assert ensure_prepared("english-novels/bytes") == place


def test_a_folder_with_the_name_of_a_corpus_does_not_stand_for_its_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = default_folder("tiny-shakespeare", DEFAULT_TOKENIZER)
    data = prepare_source("tiny-shakespeare", "bytes", out=place)
    monkeypatch.chdir(tmp_path)
    config = LanguageTaskConfig(data="tiny-shakespeare", data_sha256=data.fingerprint, context=8)
    (tmp_path / "book.txt").write_text("another text\n" * 99)
    (tmp_path / "tiny-shakespeare").mkdir()
    for _ in range(2):
        config.check_data(pytest.fail)
        assert LanguageTask(config).data.path == place
        # The empty folder becomes a set of another text.
        prepare_source("book.txt", "bytes", out=tmp_path / "tiny-shakespeare")


def test_a_missing_corpus(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="put it at english_novels below QKVARY_DATA"):
        find_source("english-novels").read()
    with pytest.raises(UsageError, match="did you mean tinystories"):
        find_source("tinystory").read()
    with pytest.raises(UsageError, match="expected a prepared set, got nothing/bytes"):
        find_prepared("nothing/bytes")
    (tmp_path / "book.txt").write_text("x")
    with pytest.raises(UsageError, match=r"run `qkvary data prepare .*book\.txt` and"):
        ensure_prepared(str(tmp_path / "book.txt"))


def test_tiny_shakespeare_has_its_customary_split() -> None:
    data = prepare_source("tiny-shakespeare", "characters")
    train, held_out = load_shakespeare().split(0.9)
    for name, codes in (("train", train), ("validation", held_out)):
        split = data.splits[name]
        assert split.documents == 1
        assert split.read(0, split.tokens)[:-1].tolist() == codes.tolist()
    assert data.vocabulary == 66
    with pytest.raises(UsageError, match="already has splits"):
        find_source("tiny-shakespeare", SourceOptions(validation=Path("x")))


def prepare(tmp_path: Path, texts: dict[str, str], **choices: Any) -> PreparedData:
    folder = tmp_path / "texts"
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return prepare_source(str(folder), "bytes", options=SourceOptions(**choices))


@pytest.mark.parametrize(("count", "held_out"), [(2, 1), (3, 1), (30, 2), (100, 5)])
def test_a_share_of_few_documents_is_met_exactly(tmp_path: Path, count: int, held_out: int) -> None:
    text = "<|endoftext|>".join(f"document {number}" for number in range(count))
    data = prepare(tmp_path, {"all.txt": text})
    assert counts(data) == {"train": count - held_out, "validation": held_out}


BOOK = "".join(f"line {number} of a long book\n" for number in range(400))
SECTION = 9_000


def held_out_share(data: PreparedData) -> float:
    held_out = data.splits["validation"].text_bytes
    return held_out / (held_out + data.splits["train"].text_bytes)


@pytest.mark.parametrize(("lines", "share"), [(382, 0.05), (388, 0.002), (395, 0.05)])
def test_the_share_of_a_text_that_is_just_too_long_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, share: float
) -> None:
    monkeypatch.setattr(documents, "SECTION_BYTES", SECTION)
    text = "".join(BOOK.splitlines(keepends=True)[:lines])
    assert SECTION < len(text) < 1.1 * SECTION
    data = prepare(tmp_path, {"book.txt": text}, held_out=share)
    assert share / 2 <= held_out_share(data) <= 2 * share
    assert sum(split.text_bytes for split in data.splits.values()) == len(text)
    assert find_share_error(data) is None


def test_which_documents_are_held_out_depends_on_each_alone(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(2000)]

    def held_out(name: str, chosen: list[str]) -> set[int]:
        text = "<|endoftext|>".join(chosen)
        data = prepare(tmp_path / name, {"all.txt": text}, held_out=0.1, name=name)
        digests: dict[str, set[int]] = {"train": set(), "validation": set()}
        for path in data.path.glob("*.digests.bin"):
            digests[path.name.partition("-")[0]].update(np.fromfile(path, "<u8").tolist())
        assert digests["validation"].isdisjoint(digests["train"])
        return digests["validation"]

    whole = held_out("whole", texts)
    assert 150 < len(whole) < 250
    # In another order, with others among them, and twice, they fall on the same side.
    assert held_out("twice", [*reversed(texts), *texts[:50]]) == whole
    assert held_out("more", [*texts, *(f"another {number}" for number in range(50))]) >= whole


def texts_of(data: PreparedData, split: str) -> bytes:
    tokens = data.splits[split].read(0, data.splits[split].tokens)
    return bytes(token if token < 256 else ord("|") for token in tokens.tolist())


def test_a_hidden_file_has_a_name(tmp_path: Path) -> None:
    (tmp_path / ".notes.en.txt").write_text("a")
    assert find_source(str(tmp_path / ".notes.en.txt")).name == "notes"


@pytest.mark.parametrize("held", ["held.txt", "../link.txt", "held/", "../texts/held/"])
def test_named_validation_files_are_not_trained_on(tmp_path: Path, held: str) -> None:
    """Wherever below the source it lies, and however it is reached."""
    folder = tmp_path / "texts"
    name = "held/b.txt" if held.endswith("/") else "held.txt"
    texts = {"a.txt": "first", name: "held out", "c.txt": "third"}
    (tmp_path / "link.txt").symlink_to(folder / "held.txt")
    data = prepare(tmp_path, texts, validation=folder / held)
    assert texts_of(data, "train") == b"first|third|"
    assert texts_of(data, "validation") == b"held out|"
    assert data.about["overlap"]["shared_documents"] == {"validation in train": 0}


def test_a_test_file_beside_train_is_never_trained_on(tmp_path: Path) -> None:
    documents = [f"document {number}" for number in range(40)]
    texts = {"train.txt": "<|endoftext|>".join(documents), "test.txt": "secret<|endoftext|>hidden"}
    data = prepare(tmp_path, texts)
    assert counts(data) == {"train": 38, "validation": 2, "test": 2}
    assert texts_of(data, "test") == b"secret|hidden|"
    held_out = {texts_of(data, name) for name in ("train", "validation")}
    assert not any(b"secret" in text or b"hidden" in text for text in held_out)
    limited = prepare(tmp_path, {}, max_tokens=40, held_out=0.5, name="limited")
    assert limited.splits["train"].documents < 10
    assert limited.splits["test"].documents == 2


@pytest.mark.parametrize(
    ("texts", "choices", "message"),
    [
        ({"a.txt": "a", "b.txt": "b"}, {"held_out": 1.5}, "a share between 0 and 1"),
        ({"a.jsonl": '{"text": "x"}'}, {}, "--validation PATH"),
        ({"a.pdf": "x"}, {}, "expected files of .txt, .text, .jsonl"),
        ({"a.txt": "a"}, {"validation": Path("nowhere")}, "got nowhere, which does not"),
        ({"train.txt": "a", "valid.txt": "b"}, {"held_out": 0.1}, "already has splits"),
    ],
)
def test_choices_that_do_not_fit(
    tmp_path: Path, texts: dict[str, str], choices: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        prepare(tmp_path, texts, **choices)


def test_validation_leaves_documents_for_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for training, got only those of --validation"):
        prepare(tmp_path, {"a.txt": "a"}, validation=tmp_path / "texts")


def test_a_text_that_was_changed_is_another_set(tmp_path: Path) -> None:
    first = prepare(tmp_path, {"a.txt": "one", "b.txt": "two"})
    second = prepare(tmp_path, {"a.txt": "six", "b.txt": "two"})
    assert second.path != first.path
    assert prepare(tmp_path, {"a.txt": "six", "b.txt": "two"}).path == second.path
    for share in (0.3, 0.4):
        other = prepare(tmp_path, {"a.txt": "one", "b.txt": "two"}, held_out=share)
        assert other.path not in (first.path, second.path)
        assert other.about["plan"]["source"]["held_out"]["share"] == share


@pytest.mark.parametrize("kind", KINDS)
def test_gpt2_comes_from_disk_cache_or_net(
    kind: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = merges_of(kind).encode()
    monkeypatch.setattr(tokenizer_files, "MERGES_SHA256", hashlib.sha256(data).hexdigest())
    with pytest.raises(UsageError, match=r"downloads are off \(HF_HUB_OFFLINE\): put its"):
        load_gpt2()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("qkvary.data.files.fetch", lambda *_, limit, **__: b"another file"[:limit])
    with pytest.raises(DownloadError, match="its sha256 is not the expected one"):
        load_gpt2()
    assert not (cache / "gpt2_bpe").exists()
    monkeypatch.setattr("qkvary.data.files.fetch", lambda *_, limit, **__: data[:limit])
    loaded = load_gpt2()
    monkeypatch.setattr("qkvary.data.files.fetch", None)
    assert load_gpt2().describe() == loaded.describe()
    (tmp_path / "data" / "gpt2_bpe").mkdir(parents=True)
    (tmp_path / "data" / "gpt2_bpe" / "merges.txt").write_bytes(b"x")
    with pytest.raises(DamagedError, match=r"GPT-2's list of merges with .* in .*merges\.txt"):
        load_gpt2()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "expected a tokenizer.json, or a merges.txt or vocab.bpe"),
        ({"merges.txt": "a b c"}, "expected two known pieces in merge 1"),
        ({"merges.txt": "t h", "vocab.json": '{"th": 0}'}, "does not number the merges in merges"),
    ],
)
def test_folders_without_a_tokenizer(tmp_path: Path, content: dict[str, str], message: str) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        load_tokenizer(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1
