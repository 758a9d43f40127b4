"""Reuse of prepared sets: when a set is reused, and when another is made."""

import json
from pathlib import Path

import pytest

from qkvary.data import prepared_sets, sources
from qkvary.data.prepared import PreparedData
from qkvary.data.prepared_sets import plan_text, prepare_source, prepare_text
from qkvary.data.sources import SourceOptions
from qkvary.storage.errors import UsageError
from tests.data.small_sets import made_up, silent
from tests.data.test_hub_documents import answer, hub
from tests.data.test_library_tokenizers import with_spaces
from tests.data.test_prepared_sets import cache

__all__ = ["cache", "hub"]
TEXTS = made_up(40, seed=1)


def write(path: Path, texts: list[str] = TEXTS) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("<|endoftext|>".join(texts), "utf-8")
    return str(path)


def found(text: str, tokenizer: str | None = None) -> PreparedData:
    return prepare_text(text, tokenizer, "bytes", pytest.fail, silent)


def is_taken(text: str, prepared: PreparedData, tokenizer: str | None = None) -> bool:
    return found(text, tokenizer).path == prepared.path


def test_a_set_of_the_same_text_is_reused(tmp_path: Path) -> None:
    text = write(tmp_path / "mine.txt")
    prepared = prepare_source(text, "bytes")
    assert is_taken(text, prepared)
    assert is_taken("mine", prepared)
    assert is_taken("mine/bytes", prepared)
    # Another text of the same name, and another tokenizer, are other sets.
    other = found(write(tmp_path / "elsewhere" / "mine.txt", TEXTS[1:]))
    assert other.fingerprint != prepared.fingerprint
    assert not is_taken(text, prepared, "characters")


def test_a_set_by_its_content_is_reused_without_reading_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another text has the name; a set of this one with options is no set of the plain text.
    prepare_source(write(tmp_path / "elsewhere" / "mine.txt", TEXTS[1:]), "bytes")
    text = write(tmp_path / "mine.txt")
    by_content = found(text)
    for fields in ({"held_out": 0.5}, {"max_tokens": 300}, {"field": "body"}):
        options = SourceOptions(**fields)  # type: ignore[arg-type]
        assert prepare_source(text, "bytes", options=options).path != by_content.path
    # The default share may be written out.
    options = SourceOptions(held_out=0.05)
    assert prepare_source(text, "bytes", options=options).path == by_content.path
    monkeypatch.setattr(sources.FileDocuments, "read", None)
    assert is_taken(text, by_content)
    with pytest.raises(TypeError):
        found(text, "characters")


def test_a_text_that_was_changed_is_prepared_again(tmp_path: Path) -> None:
    text = write(tmp_path / "mine.txt")
    prepared = prepare_source(text, "bytes")
    write(tmp_path / "mine.txt", TEXTS[::-1])
    again = found(text)
    assert again.fingerprint != prepared.fingerprint
    assert is_taken(text, again), "as long as it stays so"
    write(tmp_path / "mine.txt")
    assert is_taken(text, prepared)


@pytest.mark.parametrize("name", ["more.txt", "test.txt"])
def test_a_folder_that_has_grown_is_prepared_again(tmp_path: Path, name: str) -> None:
    folder = Path(write(tmp_path / "texts" / "train.txt")).parent
    prepared = prepare_source(str(folder), "bytes")
    assert is_taken(str(folder), prepared)
    write(folder / name, ["something new"])
    assert not is_taken(str(folder), prepared)


def test_tokenizers_of_one_name_are_compared(tmp_path: Path) -> None:
    text, path = (
        write(tmp_path / "mine.txt", ["the cat", "the mat", "on"]),
        tmp_path / "own-3.1.json",
    )
    content = with_spaces().describe()["content"]
    path.write_text(content, "utf-8")
    prepared = prepare_source(text, str(path), separator="<s>")
    assert is_taken(text, prepared, str(path)), "whichever token ends its documents"
    assert is_taken("mine/own-3.1", prepared)
    other = json.loads(content)
    other["normalizer"] = None
    path.write_text(json.dumps(other), "utf-8")
    with pytest.raises(UsageError, match="holds a set with another tokenizer: remove the"):
        found(text, str(path))
    path.write_text("{}", "utf-8")
    with pytest.raises(UsageError, match=r"expected a tokenizer\.json with a model"):
        found(text, str(path))


@pytest.mark.usefixtures("hub")
def test_a_set_of_the_hub_is_reused_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = SourceOptions(field="body", held_out=0.3)
    prepared = prepare_source("hf:someone/texts:small", "bytes", options=choices)
    answer(monkeypatch, lambda *_asked: pytest.fail("the hub was asked"))
    assert is_taken("hf:someone/texts:small", prepared)
    asked: list[object] = []
    monkeypatch.setattr(
        prepared_sets,
        "prepare_source",
        lambda source, *_given, **_named: asked.append(source.files) or prepared,
    )
    others = ["hf:someone/texts", "hf:another/texts:small", f"hf:someone/texts:small@{'b' * 40}"]
    for number, reference in enumerate(others, start=1):
        found(reference)
        assert len(asked) == number


def test_the_name_of_a_corpus_comes_before_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(write(tmp_path / "tiny-shakespeare" / "a.txt"))
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    sizes = {"tiny-shakespeare": 1_115_394, "./tiny-shakespeare": own.stat().st_size}
    for name, size in sizes.items():
        assert plan_text(name, None, "bytes", said.append).text_bytes == size
    message = (
        "--data tiny-shakespeare means the corpus tiny-shakespeare; to read the file or folder"
    )
    assert said == [f"{message} tiny-shakespeare, give --data ./tiny-shakespeare"]


@pytest.mark.parametrize("reference", ["nothing", "nothing/bytes", "a/b/c", "../x", "_", "hf:a"])
def test_missing_sources_are_reported(reference: str) -> None:
    with pytest.raises(UsageError, match=r"expected (a file, a folder, )?hf:owner/name"):
        found(reference)
