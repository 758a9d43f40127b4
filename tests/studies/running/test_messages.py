import math
from pathlib import Path

import pytest

from qkvary.studies.running.messages import Job, WorkerMessage
from tests.studies.toy_study import toy_study


def test_a_job_comes_through_the_pipe(tmp_path: Path) -> None:
    cells = toy_study([1, 2]).cells()
    job = Job(
        store=tmp_path / "ä\n",
        cells=cells,
        checkpoint_seconds=0.1,
        keep=5,
        tracker="wandb",
        project="a study",
    )
    line = job.to_line()
    assert line.count(b"\n") == 1
    found = Job.from_line(line)
    assert found == job
    assert [cell.run_key for cell in found.cells] == [cell.run_key for cell in job.cells]


def test_messages_pass_through_a_pipe() -> None:
    news = WorkerMessage(kind="ended", cell=3, text="a\nb \ud800", loss=math.inf, seconds=1.5)
    line = news.to_line()
    assert line.count(b"\n") == 1
    assert WorkerMessage.from_line(line) == news


@pytest.mark.parametrize("line", [b"", b"hello", b"{}", b'{"kind": "note", "more": 1}', b"[]"])
def test_invalid_messages_are_rejected(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|not a worker's message"):
        WorkerMessage.from_line(line)
