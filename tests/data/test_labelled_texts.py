"""Texts with labels: folders are read and split by text, and what is damaged is refused."""

import hashlib
from pathlib import Path

import pytest

from qkvary.data.labelled_texts import FEWEST_TEXTS, LabelledTexts, load_labelled_texts
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.tasks.config import TextTaskConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label, count in (("spam", 13), ("ham", 3)):
        (tmp_path / label).mkdir()
        for number in range(count):
            (tmp_path / label / f"{number}.txt").write_text(f"{label} {number}", "utf-8")
    (tmp_path / "read.me").write_text("not a label")
    (tmp_path / ".git").mkdir()
    return tmp_path


def names(texts: LabelledTexts) -> dict[str, list[list[str]]]:
    return {
        split: [[text.name for text in some] for some in groups]
        for split, groups in texts.splits.items()
    }


def test_texts_are_split_by_their_checksums(folder: Path) -> None:
    texts = load_labelled_texts(str(folder))
    assert texts.labels == ("ham", "spam")
    for index, (label, count) in enumerate((("ham", 3), ("spam", 13))):
        ordered = sorted(
            (f"{number}.txt" for number in range(count)),
            key=lambda name: hashlib.sha256((folder / label / name).read_bytes()).hexdigest(),
        )
        found = names(texts)
        # A tenth of 13, and of 3, is one text.
        assert found["test"][index] == ordered[:1]
        assert found["validation"][index] == ordered[1:2]
        assert found["train"][index] == ordered[2:]
    assert bytes(texts.splits["test"][0][0].data) in {b"ham 0", b"ham 1", b"ham 2"}


def test_a_name_changes_nothing_and_a_text_or_label_does(folder: Path) -> None:
    before = load_labelled_texts(str(folder)).fingerprint

    def found() -> str:
        load_labelled_texts.cache_clear()
        return load_labelled_texts(str(folder)).fingerprint

    (folder / "spam" / "4.txt").rename(folder / "spam" / "other.txt")
    assert found() == before
    (folder / "spam").rename(folder / "junk")
    assert found() != before
    (folder / "junk").rename(folder / "spam")
    assert found() == before
    (folder / "spam" / "3.txt").write_text("another text")
    assert found() != before
    task = TextTaskConfig(data=str(folder), data_sha256=before, context=8)
    with pytest.raises(
        DamagedError, match=f"with sha256 {before}, got .* the data is different or was changed"
    ):
        task.check_data(pytest.fail)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", r"expected UTF-8 text in .*0\.txt, got .* can't decode byte 0xff"),
        (b" \n", r"expected text in .*0\.txt, got nothing"),
        (b"", r"expected text in .*0\.txt, got nothing"),
        (b"a" + bytes(600), r"expected text in .*0\.txt, got many NUL bytes"),
    ],
)
def test_damaged_texts_are_refused(folder: Path, content: bytes, message: str) -> None:
    (folder / "ham" / "0.txt").write_bytes(content)
    with pytest.raises(DamagedError, match=message):
        load_labelled_texts(str(folder))


def test_too_few_labels_or_texts_and_equal_texts_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="or a folder of texts with labels, got ''"):
        load_labelled_texts("")
    with pytest.raises(UsageError, match=r"or a folder of texts with labels, got .*nowhere"):
        load_labelled_texts(str(tmp_path / "nowhere"))
    (folder / "spam" / "7.txt").write_text("ham 1")
    with pytest.raises(UsageError, match=r"got the same text in .*1\.txt and .*7\.txt: remove"):
        load_labelled_texts(str(folder))
    (folder / "ham" / "1.txt").unlink()
    with pytest.raises(UsageError, match=f"at least {FEWEST_TEXTS} .txt files .* got 2 of ham in"):
        load_labelled_texts(str(folder))
    empty = tmp_path / "spam"
    with pytest.raises(
        UsageError, match=r"at least 2 labels \(folders with .txt files\) in .* got"
    ):
        load_labelled_texts(str(empty))
    (empty / "only").mkdir()
    with pytest.raises(UsageError, match=r"at least 2 labels.* got 1: only"):
        load_labelled_texts(str(empty))
