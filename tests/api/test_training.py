"""``qk.train`` and ``qkvary train`` are one function."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import qkvary as qk
from qkvary.arch.labels import format_label
from qkvary.storage.errors import StoppedError
from qkvary.studies.running.store import Store
from qkvary.studies.trainings import list_trainings
from tests.cli.tiny_training import document, tiny_places, train

places = pytest.fixture(tiny_places)
OPTIONS = qk.TrainingOptions(steps=12, batch_size=4, evaluate_every=5, threads=1)


def test_the_command_finds_what_python_trained(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = qk.train(
        "lm-tiny", data=places / "mine.txt", variants="Q-K=V", options=OPTIONS, out=places / "runs"
    )
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert (result.exit_code, result.notices) == (0, ())
    (path,) = result.networks.values()
    assert path is not None
    assert format_label(qk.load(path).network.config.variant) == "Q-K=V@rotary"
    assert result.value is not None
    assert [run.state for run in result.value.runs] == ["done"]
    assert "final validation loss" in str(result)
    assert result.save(places / "page.html")[0].is_file()
    (training,) = list_trainings(Store(places / "runs"))
    assert training.commands[0] == (
        f"qk.train('lm-tiny', data='{places / 'mine.txt'}', variants=['Q-K=V'], seeds=[0], "
        f"out='{places / 'runs'}', threads=1, steps=12, batch_size=4, evaluate_every=5)"
    )
    (record,) = (places / "runs").glob("*/*/record.json")
    written = record.stat().st_mtime_ns
    assert train(places, "--variant", "q,k=v", "--json") == 0
    assert document(capsys)["networks"] == {
        title: str(one) for title, one in result.networks.items()
    }
    assert record.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 1, "minutes": 1.0}, "expected --steps or --minutes, got both"),
        ({"allow_change": True, "anew": True}, "expected --allow-change or --anew, got both"),
        ({"strategy": "fdsp"}, "strategy: expected one of ddp, fsdp, got 'fdsp'; did you"),
        ({"strategy": "fsdp"}, "expected several processes for --strategy fsdp, got one: start"),
        ({"log": "tensorbord"}, "log: expected one of tensorboard, trackio, wandb, got"),
        ({"tokenizer": 3}, "tokenizer: expected a text, got 3"),
        ({"checkpoint_seconds": -1.0}, "expected a number of seconds"),
        ({"device": "toaster"}, "expected a device"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, object], message: str, places: Path
) -> None:
    given = qk.TrainingOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        qk.train("lm-tiny", data=places / "mine.txt", options=given, out=places / "runs")
    assert not (places / "runs").exists()


def test_numbers_and_paths_may_be_of_other_types(places: Path) -> None:
    result = qk.train(
        Path("lm-tiny"),
        data=places / "mine.txt",
        seeds=np.array([3]),
        options=OPTIONS,
        out=places / "runs",
        steps=np.int64(12),
        tokenizer=Path("bytes"),
        dry_run=True,
    )
    assert result.study.seeds == (3,)
    assert result.study.settings[0].training.steps == 12


def test_a_signal_leaves_a_checkpoint_and_is_an_error(places: Path) -> None:
    """Also where the caller has a handler of its own, which is put back."""
    long = qk.TrainingOptions(steps=10**5, batch_size=1, evaluate_every=10**5, threads=1)
    out = places / "runs"

    def interrupt() -> None:
        while not any(Store(out).log_events(key) for key in Store(out).keys()):  # noqa: SIM118
            if not threading.main_thread().is_alive():
                return
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(StoppedError) as stopped:
        qk.train("lm-tiny", data=places / "mine.txt", options=long, out=out)
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert len(list(out.glob("*/*/checkpoints/step-*"))) == 1
