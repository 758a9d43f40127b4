from pathlib import Path

import pytest

from qkvary.reports.plan_writing import write_plan
from qkvary.storage.errors import ResourceError
from tests.conftest import Runner
from tests.reports.plan_examples import make_plan

NAMES = ("cache-against-context", "users-against-memory", "quality-against-cache")


def test_every_file_is_written_the_page_first(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "plan"
    written = write_plan(make_plan(), folder)
    assert written[0] == folder / "plan.html"
    assert {path.name for path in written[1:]} == {
        f"{name}.{kind}" for name in NAMES for kind in ("svg", "png", "pdf")
    }
    assert sorted(folder.iterdir()) == sorted(written)


def test_twice_the_same_bytes(tmp_path: Path) -> None:
    both = [
        write_plan(make_plan(), tmp_path / name, ("html", "svg", "png", "pdf"))
        for name in ("one", "two")
    ]
    assert [path.read_bytes() for path in both[0]] == [path.read_bytes() for path in both[1]]


def test_no_format_makes_no_folder(tmp_path: Path) -> None:
    assert write_plan(make_plan(), tmp_path / "out", ()) == ()
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_way_is_a_resource_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ResourceError, match=r"cannot write .*out"):
        write_plan(make_plan(), tmp_path / "out", ("html",))


def test_full_disk_keeps_the_old_page(tmp_path: Path, run_python: Runner) -> None:
    page = tmp_path / "plan.html"
    page.write_text("the old page")
    code = (
        "import pathlib, resource, signal, sys\n"
        "from qkvary.storage.errors import ResourceError\n"
        "from qkvary.reports.plan_writing import write_plan\n"
        "from tests.reports.plan_examples import make_plan\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))\n"
        "try:\n"
        "    write_plan(make_plan(), pathlib.Path(sys.argv[1]), ('html',))\n"
        "except ResourceError as error:\n"
        "    print(error)\n"
    )
    done = run_python(["-c", code, str(tmp_path)], env={"PYTHONPATH": "src:."})
    assert "cannot write" in done.stdout, done.stderr
    assert page.read_text() == "the old page"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]
