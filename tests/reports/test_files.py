from pathlib import Path

import pytest

from qkvary.reports.files import check_target, write_report
from qkvary.storage.errors import UsageError
from tests.reports.subjects import SUBJECTS, plan


def test_files_of_every_usual_format_are_where_they_belong(tmp_path: Path) -> None:
    written = write_report(SUBJECTS["analysis"](), tmp_path)
    assert written[:2] == (tmp_path / "analysis.html", tmp_path / "analysis.md")
    assert {path.parent.name for path in written[2:]} == {"tables", "figures"}
    assert {path.suffix for path in written[2:]} == {".csv", ".svg", ".png", ".pdf"}
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(written)


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.json, \.html, \.md, got .*one\.pdf$"):
        check_target(tmp_path / "one.pdf")
    (tmp_path / "version.2").mkdir()
    check_target(tmp_path / "version.2")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UsageError, match=r"expected --out with a file, got the folder"):
        check_target(tmp_path / "folder.html")
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UsageError, match=r"expected a folder at .*out, got a file"):
        check_target(tmp_path / "out")


def test_a_missing_converter_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkvary.storage.packages.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"run pip install 'qkvary\[train\]'"):
        write_report(plan(), tmp_path / "out", ("html", "png"))
    assert not (tmp_path / "out").exists()
    assert len(write_report(plan(), tmp_path / "out", ("html",))) == 1
