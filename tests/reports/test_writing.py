import re
from pathlib import Path

import pytest

from qkvary.reports import writing
from qkvary.storage.errors import ResourceError
from tests.conftest import Runner
from tests.reports.synthetic import make_attention, make_summary

VARIANTS = ("QKV", "MQA")


def test_files_stand_where_they_belong(tmp_path: Path) -> None:
    summary = make_summary(VARIANTS, 2)
    written = writing.write_report(
        summary, make_attention(summary, 4), tmp_path, ("html", "csv", "markdown")
    )
    assert written[0] == tmp_path / "report.html"
    assert (tmp_path / "report.md").is_file()
    assert {path.parent.name for path in written[2:]} == {"tables"}
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(written)


def test_twice_the_same_bytes(tmp_path: Path) -> None:
    summary = make_summary(VARIANTS, 2)
    both = [
        writing.write_report(summary, (), tmp_path / name, ("html", "csv", "markdown"))
        for name in ("one", "two")
    ]
    assert [path.read_bytes() for path in both[0]] == [path.read_bytes() for path in both[1]]


def test_unknown_format_names_the_choices(tmp_path: Path) -> None:
    message = "unknown format 'docx'; choices: html, csv, markdown, svg, png, pdf"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        writing.write_report(make_summary(VARIANTS, 2), (), tmp_path, ("docx",))  # type: ignore[arg-type]


def test_full_disk_keeps_the_old_page(tmp_path: Path, run_python: Runner) -> None:
    """R5: what stood there before still does."""
    page = tmp_path / "report.html"
    page.write_text("the old page")
    code = (
        "import pathlib, resource, signal, sys\n"
        "from qkvary.storage.errors import ResourceError\n"
        "from qkvary.reports.writing import write_report\n"
        "from tests.reports.synthetic import make_summary\n"
        "summary = make_summary(('QKV', 'MQA'), 2)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))\n"
        "try:\n"
        "    write_report(summary, (), pathlib.Path(sys.argv[1]))\n"
        "except ResourceError as error:\n"
        "    print(error)\n"
    )
    done = run_python(["-c", code, str(tmp_path)], env={"PYTHONPATH": "src:."})
    assert "cannot write" in done.stdout, done.stderr
    assert page.read_text() == "the old page"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_file_in_the_way_is_a_resource_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ResourceError, match=r"cannot write .*out"):
        writing.write_report(make_summary(VARIANTS, 2), (), tmp_path / "out")
