"""The commands of the guide that need a cluster, a queue or a tracker, with stand-ins for them."""

import re
import shlex
from pathlib import Path

import pytest

from qkvary.cli.main import main
from qkvary.studies.running.executors import slurm
from qkvary.studies.running.executors.slurm import SlurmExecutor
from tests.contracts.test_commands import STUDY_FILE
from tests.studies.running.executors.loopback import Loopback
from tests.studies.toy_study import ROOT

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("default:.*:DeprecationWarning"),
]
PAGE = (ROOT / "docs" / "guide" / "cluster.md").read_text("utf-8")


def commands(needs: str) -> list[str]:
    """The commands of the guide with one need."""
    return re.findall(rf"^qkvary (.*?) +#.*\({re.escape(needs)}\)$", PAGE, re.MULTILINE)


def redirect(words: list[str], out: str) -> list[str]:
    """Return a command with another folder of runs."""
    if "--out" not in words:
        return [*words, "--out", out]
    words[words.index("--out") + 1] = out
    return words


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(STUDY_FILE, "utf-8")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_ray(cluster: Loopback, home: Path) -> None:
    lines = commands("needs a Ray cluster")
    assert len(lines) == 2
    for number, line in enumerate(lines):
        words = shlex.split(line.replace("FIRST:6379", cluster.address))
        assert main(redirect(words, f"runs-{number}")) == 0
        assert list((home / f"runs-{number}").rglob("record.json"))


def test_slurm(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = commands("needs Slurm")
    assert len(lines) == 2
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setattr(
        slurm, "open_executor", lambda *options: SlurmExecutor(*options, cluster="local")
    )
    for number, line in enumerate(lines):
        assert main(redirect(shlex.split(line), f"runs-{number}")) == 0
        assert list((home / f"runs-{number}").rglob("record.json"))


def test_trackers(home: Path) -> None:
    lines = commands("needs the extra track")
    assert len(lines) == 2
    for number, line in enumerate(lines):
        assert main([*shlex.split(line), "--workers", "1", "--out", f"runs-{number}"]) == 0
    assert list((home / "runs-0" / "logs").rglob("events.out.tfevents.*"))
    assert list((home / "trackio").glob("*.db"))
