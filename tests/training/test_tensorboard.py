from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from qkvary.storage.errors import UsageError
from qkvary.training.loop import train
from qkvary.training.progress import Callbacks
from qkvary.training.tensorboard import TensorBoardLog
from tests.training.test_loop import after, log
from tests.training.toy import ToyTask, toy_run

pytestmark = pytest.mark.filterwarnings("default:.*:DeprecationWarning")


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


@pytest.mark.parametrize("steps", [20, 7, 13])
def test_the_copy_shows_what_the_log_has_also_after_a_stop(steps: int, tmp_path: Path) -> None:
    """Also where the last step before the stop was logged, or scored."""
    for stop in (after(steps), after(100)):
        board = TensorBoardLog(tmp_path / "board")
        callbacks = Callbacks(on_log=board.write, sample=lambda _n: "hm")
        train(toy_run(), ToyTask(), tmp_path, stop=stop, callbacks=callbacks)
        board.close()
    for event, name in (("train", "loss"), ("validation", "accuracy"), ("train", "gradient_norm")):
        expected = [(entry["step"], entry[name]) for entry in log(tmp_path, event)]
        found = curve(tmp_path / "board", f"{event}/{name}")
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([v for _, v in expected], rel=1e-6)
    said = [entry["text"] for entry in log(tmp_path, "sample")]
    assert said == ["hm"] * 4


def test_without_tensorboard_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkvary.storage.packages.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"pip install 'qkvary\[track\]'"):
        TensorBoardLog(tmp_path)


def test_nothing_is_written_before_there_is_something(tmp_path: Path) -> None:
    board = TensorBoardLog(tmp_path / "board")
    board.close()
    assert not (tmp_path / "board").exists()
