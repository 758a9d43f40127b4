from pathlib import Path

import pytest

from qkvary.inference.benchmark.findings import find_answers, find_caveats
from qkvary.inference.benchmark.records import from_json
from qkvary.reports.decode_page import render_decode
from qkvary.reports.decode_readme import write_readme
from qkvary.reports.decode_writing import (
    PAGE_NAME,
    README_NAME,
    RECORD_NAME,
    check_target,
    write_decode,
)
from qkvary.storage.errors import UsageError
from qkvary.text import names
from tests.inference.benchmark.made_up import make_record

ROOT = Path(__file__).resolve().parents[3]


def test_a_folder_gets_all_three(tmp_path: Path) -> None:
    record, folder = make_record(), tmp_path / "new" / "decode"
    written = write_decode(record, folder, render_decode)
    assert [path.name for path in written] == [RECORD_NAME, README_NAME, PAGE_NAME]
    assert sorted(folder.iterdir()) == sorted(written)
    assert (folder / PAGE_NAME).read_text("utf-8") == render_decode(record)
    assert from_json((folder / RECORD_NAME).read_bytes(), where="here") == record
    readme = (folder / README_NAME).read_text("utf-8")
    assert f"[{PAGE_NAME}]({PAGE_NAME}) and [{RECORD_NAME}]({RECORD_NAME})" in readme


@pytest.mark.parametrize("name", ["one.json", "one.html", "one.md"])
def test_a_file_is_told_by_its_ending(tmp_path: Path, name: str) -> None:
    (written,) = write_decode(make_record(), tmp_path / name, render_decode)
    assert written == tmp_path / name
    assert list(tmp_path.iterdir()) == [written]
    start = {"one.json": "{", "one.html": "<!doctype html>", "one.md": "# Decoding"}[name]
    assert written.read_text("utf-8").startswith(start)


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.json, \.html, \.md, got .*one\.pdf$"):
        check_target(tmp_path / "one.pdf")
    (tmp_path / "version.2").mkdir()
    check_target(tmp_path / "version.2")


def test_the_record_is_kept_whatever_stops_the_page(tmp_path: Path) -> None:
    def stop(_: object) -> str:
        raise UsageError("expected jinja2 for a page")

    with pytest.raises(UsageError, match="expected jinja2"):
        write_decode(make_record(), tmp_path, stop)
    assert from_json((tmp_path / RECORD_NAME).read_bytes(), where="here") == make_record()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UsageError, match=r"expected --out with a folder, .*out, a file"):
        write_decode(make_record(), tmp_path / "out", render_decode)


def test_the_text_has_command_tables_findings_and_machine() -> None:
    record = make_record()
    text = write_readme(record)
    assert f"```sh\n{record.command}\n```" in text
    for sentence in (*find_answers(record), *find_caveats(record)):
        assert f"- {names.markdown(sentence)}\n" in text
    for title in (
        "### Speed: 1 answer of 256 tokens, float32",
        "### Peak memory of one answer, each in a fresh process",
        "### What keeping less lowers the peak by",
        "### Q-K=V against QKV: the poster's measurement and ours",
    ):
        assert text.count(f"{names.markdown(title).replace(chr(92) + '#', '#')}\n") == 1
    assert "| torch | 2.13 |" in text
    assert "ICML 2026 poster" in text


def test_kept_measurements_say_what_their_records_say() -> None:
    """A folder of studies that holds a record of this kind was written by this code."""
    for path in (ROOT / "studies").glob(f"decode*/{RECORD_NAME}"):
        record = from_json(path.read_bytes(), where=str(path))
        beside = (PAGE_NAME, RECORD_NAME)
        assert (path.parent / README_NAME).read_text("utf-8") == write_readme(record, beside)
        assert (path.parent / PAGE_NAME).read_text("utf-8") == render_decode(record)
