"""The smallest training of a text, by the command line, and what tests do with it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkvary.checkpoints import training_state
from qkvary.cli.main import main
from qkvary.studies import timing
from qkvary.training import presets, utilization
from qkvary.training.presets import Preset
from tests.forked import ForkedPython

ROOT = Path(__file__).resolve().parents[2]
TEXT = "the quick brown fox jumps over the lazy dog. " * 90
TINY = ["--steps", "12", "--batch-size", "4", "--evaluate-every", "5"]


def tiny_preset() -> Preset:
    """The smallest of the presets with less of everything."""
    preset = presets.find_preset("lm-10m")
    layers = preset.network
    attention = dataclasses.replace(layers.layers[0], d_model=32, num_heads=2, head_dim=None)
    network = dataclasses.replace(
        layers,
        attention=attention,
        block=dataclasses.replace(layers.block, d_ff=48),
        num_layers=2,
        max_tokens=16,
    )
    return dataclasses.replace(preset, name="lm-tiny", network=network)


def with_tiny() -> dict[str, Preset]:
    return {**presets.PRESETS, "lm-tiny": tiny_preset()}


def make_places(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Put a text into a folder, and the preset among the others.

    Reports come without pictures, a device is measured by a small product, and no layer is timed
    for an estimate: each of the three takes longer than the training.
    """
    patch.setattr(utilization, "SIDE_ON_CPU", 64)
    patch.setattr(timing, "_time_layers", lambda *_: 1e-9)
    patch.setenv("QKVARY_CACHE", str(folder / "cache"))
    patch.setattr(presets, "PRESETS", with_tiny())
    patch.setattr("qkvary.reports.files.DEFAULT_FORMATS", ("html", "csv"))
    (folder / "mine.txt").write_text(TEXT)
    return folder


def tiny_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text, and the preset; a fixture of those who import it."""
    return make_places(tmp_path, monkeypatch)


def command(folder: Path, *words: str, data: str = "mine.txt") -> list[str]:
    """The words of a command that trains."""
    out = ["--data", str(folder / data), "--out", str(folder / "runs")]
    sizes = [] if "--steps" in words else TINY
    threads = [] if "--threads" in words else ["--threads", "1"]
    return ["train", "lm-tiny", *out, *sizes, *threads, *words]


def train(folder: Path, *words: str) -> int:
    return main(command(folder, *words))


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


SCRIPT = """
import sys
from qkvary.cli.main import main
from qkvary.training import presets
from tests.cli.tiny_training import with_tiny
presets.PRESETS = with_tiny()
sys.exit(main(sys.argv[1:]))
"""


def started(folder: Path, out: str, *words: str) -> Any:
    (folder / "program.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "program.py"), "train", "lm-tiny"]
    options = ["--data", str(folder / "mine.txt"), "--out", str(folder / out), "--json", *words]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "OMP_NUM_THREADS": "1",
        "QKVARY_CACHE": str(folder / "cache"),
    }
    return ForkedPython(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )


def digest(folder: Path) -> str:
    (record,) = folder.glob("*/*/record.json")
    return json.loads(record.read_text())["state_sha256"]


LONG = ("--steps", "60", "--batch-size", "4", "--evaluate-every", "20", "--threads", "1")


class KilledError(BaseException):
    """Ends a training where it stands; nothing takes it for an error."""


def stop_early(places: Path, *words: str) -> None:
    """Begin a training that ends like a killed one, with a checkpoint."""
    keep_newest = training_state.keep_newest

    def kill(directory: Path, keep: int) -> None:
        keep_newest(directory, keep)
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_state, "keep_newest", kill)
        with pytest.raises(KilledError):
            train(places, *words, "--checkpoint-seconds", "0", "--json")
