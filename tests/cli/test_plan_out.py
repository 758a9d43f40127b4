"""``qkvary plan --out``: files on request, nothing written or imported otherwise."""

from pathlib import Path

import pytest

from qkvary.cli.main import main
from tests.conftest import Runner

PLAN = ("plan", "300M", "--gpu", "a100-40gb", "--context", "32k", "--users", "100")


def test_without_out_nothing_is_written_and_nothing_that_draws_is_imported(
    run_python: Runner, tmp_path: Path
) -> None:
    code = (
        "import sys; from qkvary.cli.main import main; status = main(sys.argv[1:]); "
        "heavy = {'jinja2', 'numpy', 'torch', 'vl_convert'} & set(sys.modules); "
        "sys.stderr.write(' '.join(sorted(heavy))); sys.exit(status)"
    )
    done = run_python(["-c", code, *PLAN], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_without_the_converter_nothing_is_written_and_one_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("qkvary.storage.packages.find_spec", lambda _name: None)
    assert main([*PLAN, "--out", str(tmp_path / "a")]) == 2
    refused = capsys.readouterr()
    assert refused.out == ""
    assert refused.err.startswith("qkvary: vl_convert is not installed: ")
    assert refused.err.count("\n") == 1
    assert not (tmp_path / "a").exists()
    assert main([*PLAN, "--out", str(tmp_path / "a"), "--format", "html"]) == 0
    assert (tmp_path / "a" / "plan.html").is_file()
