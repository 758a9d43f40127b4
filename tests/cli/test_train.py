"""One command from a text to a network: trained, stopped, resumed, shown, continued."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkvary.checkpoints import training_state
from qkvary.cli.main import main
from qkvary.cli.train import Corpus, _prepare
from qkvary.data.places import prepare_corpus
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.storage import rotation
from qkvary.studies.pretraining import DataChoice, plan_training
from qkvary.studies.store import Store
from qkvary.studies.trainings import note_training
from qkvary.training import presets
from qkvary.training.distribution import Alone
from qkvary.training.presets import Preset

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


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(presets, "PRESETS", with_tiny())
    (tmp_path / "mine.txt").write_text(TEXT)
    return tmp_path


def train(folder: Path, *words: str, preset: str = "lm-tiny", data: str = "mine.txt") -> int:
    out = ["--data", str(folder / data), "--out", str(folder / "runs")]
    sizes = [] if "--steps" in words else TINY
    return main(["train", preset, *out, *sizes, *words])


def test_a_text_becomes_a_network_that_can_be_asked(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(places, "--sample", "the ", "--tensorboard", str(places / "board")) == 0
    shown = capsys.readouterr()
    for step in (5, 10, 12):
        assert f"step {step}: validation loss " in shown.err
        assert f"step {step}: the " in shown.err
    assert "with padding, as published" in shown.out
    assert list((places / "board").rglob("events.out.tfevents.*"))
    page = places / "runs" / "reports" / "train-lm-tiny-on-mine" / "report.html"
    assert page.is_file()
    assert str(page) in shown.out
    network = shown.out.strip().splitlines()[-1].partition(": ")[2]
    assert main(["generate", network, "the quick", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("the quick")


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_what_is_done_is_not_done_again(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(places) == 0
    capsys.readouterr()
    assert train(places) == 0
    shown = capsys.readouterr()
    assert "step" not in shown.err
    assert "QKV@rotary" in shown.out


def test_how_many_checkpoints_are_left_is_no_part_of_a_run(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[int, ...]] = []
    real = rotation.keep_newest

    def watched(directory: Path, keep: int) -> None:
        real(directory, keep)
        kept.append(rotation.stored_steps(directory))

    monkeypatch.setattr(training_state, "keep_newest", watched)
    ended: list[tuple[str, str]] = []
    for keep in (5, 1):
        assert train(places, "--checkpoint-seconds", "0", "--keep", str(keep), "--json") == 0
        (network,) = document(capsys)["networks"].values()
        assert kept[-1] == tuple(range(12, 12 - keep, -1))
        ended.append((network, digest(places / "runs")))
        (places / "runs").rename(places / f"runs-{keep}")
    assert ended[0] == ended[1], "the same key and the same numbers"


def test_an_edited_text_is_another_run(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(places, "--dry-run", "--json") == 0
    first = document(capsys)
    (places / "mine.txt").write_text(TEXT.replace("fox", "dog"))
    assert train(places, "--dry-run", "--json") == 0
    second = document(capsys)
    assert first["task"]["data_sha256"] != second["task"]["data_sha256"]
    assert first["runs"][0]["directory"] != second["runs"][0]["directory"]


def test_variants_are_compared(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(places, "--variant", "QKV", "Q-K=V", "--seeds", "0,1", "--json") == 0
    found = document(capsys)
    assert found["summary"]["variants"] == ["QKV@rotary", "Q-K=V@rotary"]
    assert len(found["networks"]) == 4
    assert all(Path(path).is_dir() for path in found["networks"].values())


def test_a_share_that_is_far_from_the_one_asked_for_is_said(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (places / "mine.txt").write_text(f"{TEXT}<|endoftext|>{TEXT[:900]}")
    assert train(places, "--dry-run") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("qkvary: held out are ")


def test_a_plan_trains_nothing(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(places, "--dry-run", "--json", "--variant", "MQA") == 0
    (run,) = document(capsys)["runs"]
    assert (run["variant"], run["state"], run["tokens"]) == ("MQA@rotary", "open", 12 * 4 * 16)
    assert not Path(run["directory"]).exists()
    assert train(places, "--dry-run") == 0
    assert "12 steps of 4 rows of 16 tokens: 768 tokens" in capsys.readouterr().out


def test_a_prepared_set_is_taken_as_it_is(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = prepare_corpus(str(places / "mine.txt"), "characters", out=places / "set")
    assert train(places, "--dry-run", "--json", data="set") == 0
    assert document(capsys)["task"]["data_sha256"] == data.fingerprint
    assert train(places, "--tokenizer", "bytes", data="set") == 2
    assert "expected no --tokenizer with a set that is prepared" in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("--max-tokens", "3500"), ("--held-out", "0.2")])
def test_what_was_prepared_by_hand_is_trained_on(
    places: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """By the file's own name and by that of the set, while the file is what it was."""
    lines = [json.dumps({"body": f"{number}: {TEXT[:99]}"}) for number in range(40)]
    (places / "lines.jsonl").write_text("\n".join(lines), "utf-8")
    text = str(places / "lines.jsonl")
    call = ["data", "prepare", text, "--tokenizer", "bytes", "--field", "body", *words]
    assert main([*call, "--json"]) == 0
    expected = document(capsys)["fingerprint"]
    shown = ["lm-tiny", "--out", str(places / "runs"), "--dry-run", "--json", *TINY]
    for reference in ((text, "--tokenizer", "bytes"), ("lines/bytes",), ("lines", *call[3:5])):
        assert main(["train", *shown, "--data", *reference]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["task"]["data_sha256"] == expected
        is_said = "lines-bytes is taken, prepared with --max-tokens 3,500" in printed.err
        assert is_said == ("--max-tokens" in words and len(reference) > 1)
    assert main(["train", *shown, "--data", "lines/bytes", "--tokenizer", "bytes"]) == 2
    assert "expected no --tokenizer with a set that is prepared" in capsys.readouterr().err
    (places / "lines.jsonl").write_text("\n".join(lines[1:]), "utf-8")
    assert main(["train", *shown, "--data", text, "--tokenizer", "bytes"]) == 2
    assert "name the text with `qkvary data prepare ... --field NAME`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "preset", "message"),
    [
        ([], "lm-tinny", "did you mean lm-tiny?"),
        (["--variant", "QQV"], "lm-tiny", "QQV"),
        (["--micro-batch-size", "9"], "lm-tiny", "a micro-batch of at most the 4 rows"),
        (["--context", "none"], "lm-tiny", "expected a whole number"),
        (["--device", "toaster"], "lm-tiny", "toaster"),
        (["--learning-rate", "-1"], "lm-tiny", "learning_rate must be positive"),
        (["--learning-rate", "0"], "lm-tiny", "learning_rate must be positive"),
        (["--keep", "0"], "lm-tiny", "--keep: expected at least 1, got 0"),
        (["--keep", "-1"], "lm-tiny", "expected a whole number"),
        (["--context", "100k"], "lm-tiny", "tokens for a context of 102,400"),
    ],
)
def test_mistakes_are_one_sentence(
    places: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    preset: str,
    message: str,
) -> None:
    assert train(places, *words, preset=preset) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert len(shown.strip().splitlines()) <= 2


def test_a_text_that_is_not_there_is_named(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(places, data="yours.txt") == 2
    assert "yours.txt" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_exits_with_5(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(places, "--learning-rate", "1e30") == 5
    shown = capsys.readouterr()
    assert "diverged: " in shown.err
    assert "the weights before it were kept" in shown.err
    (kept,) = (places / "runs").glob("*/*/checkpoints")
    assert len(list(kept.iterdir())) >= 1
    assert train(places, "--learning-rate", "1e30") == 5, "found as it was left"


@pytest.mark.parametrize("name", ["metrics.jsonl", "record.json", "network/model.safetensors"])
def test_a_run_whose_files_are_damaged_is_made_again(
    places: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert train(places) == 0
    before = digest(places / "runs")
    (path,) = (places / "runs").glob(f"*/*/{name}")
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    capsys.readouterr()
    assert train(places) == 0
    assert "the run is made again" in capsys.readouterr().err
    assert path.is_file()
    assert digest(places / "runs") == before
    assert train(places) == 0
    assert "made again" not in capsys.readouterr().err


def stop_early(places: Path, *words: str) -> None:
    """Begin a training that is killed once it has a checkpoint."""
    stopped = started(places, "runs", *words, "--checkpoint-seconds", "0.01")
    while not list((places / "runs").glob("*/*/checkpoints/step-*/MANIFEST.json")):
        assert stopped.poll() is None, stopped.communicate()[1]
        time.sleep(0.005)
    stopped.kill()
    stopped.communicate()


def test_a_run_that_was_begun_in_another_way_is_gone_on_with(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_early(places, *LONG, "--threads", "1", "--micro-batch-size", "4")
    (begun,) = (places / "runs").glob("[0-9a-f][0-9a-f]/*")
    another = (*LONG, "--threads", "2", "--micro-batch-size", "2")
    assert train(places, *another) == 2
    shown = capsys.readouterr().err
    assert "was begun with --micro-batch-size 4, --threads 1, and has come to step " in shown
    assert len(shown.splitlines()) == 1
    assert train(places, *another, "--allow-change") == 0
    assert "threads 2 (was 1)" in capsys.readouterr().err
    assert list((places / "runs").glob("[0-9a-f][0-9a-f]/*")) == [begun]
    record = json.loads((begun / "record.json").read_text())
    changed = {"threads": [1, 2], "micro_batch_size": [4, 2]}
    assert record["environment"]["changed"] == changed
    events = [json.loads(line) for line in (begun / "metrics.jsonl").read_text().splitlines()]
    (resumed,) = [event for event in events if event["event"] == "resumed"]
    assert resumed["changed"] == changed
    # What is done is no reason to ask: the same in another way is another run.
    assert train(places, *another) == 0
    assert len(list((places / "runs").glob("*/*/record.json"))) == 2


def test_a_run_may_be_begun_anew_in_another_way(places: Path) -> None:
    stop_early(places, *LONG, "--threads", "1")
    assert train(places, *LONG, "--threads", "2", "--anew") == 0
    assert len(list((places / "runs").glob("*/*/checkpoints/step-*"))) >= 1
    assert len(list((places / "runs").glob("*/*/record.json"))) == 1
    # Now it is that run's own command, and the other one still waits for its.
    assert train(places, *LONG, "--threads", "2") == 0
    assert train(places, *LONG, "--threads", "1") == 0
    assert len(list((places / "runs").glob("*/*/record.json"))) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sample", "the " * 50), "expected a prompt of at most the 16 tokens of a row"),
        (("--sample", "Ω", "--tokenizer", "characters"), "Ω"),
        (("--device", "cuda:99"), "expected a device of this machine, got 'cuda:99'"),
    ],
)
def test_what_cannot_be_done_takes_nothing_from_a_run(
    places: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    tokenizer = words[2:] if "--tokenizer" in words else ()
    stop_early(places, *LONG, "--threads", "1", *tokenizer)
    allowed = "--allow-change" if "--device" in words else "--threads"
    more = (*words, allowed) if allowed == "--allow-change" else (*words, allowed, "1")
    kept = sorted((places / "runs").glob("*/*/checkpoints/*/*"))
    assert kept
    assert train(places, *LONG, *more) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert sorted((places / "runs").glob("*/*/checkpoints/*/*")) == kept
    assert not list((places / "runs").glob("*/*/record.json"))


def test_other_processes_take_the_set_that_the_first_one_prepared(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset, corpus = with_tiny()["lm-tiny"], Corpus(data=str(places / "mine.txt"))
    first = _prepare(preset, corpus, Alone())

    class Other(Alone):
        """The second of two processes."""

        rank, size = 1, 2

        def first(self, work: Callable[[], Any]) -> Any:
            del work
            return str(first.path)

    monkeypatch.setattr("qkvary.cli.train.find_or_prepare", None)
    assert _prepare(preset, corpus, Other()).fingerprint == first.fingerprint


SCRIPT = """
import sys
from qkvary.cli.main import main
from qkvary.training import presets
from tests.cli.test_train import with_tiny
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
    return subprocess.Popen(
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


LONG = ("--steps", "150", "--batch-size", "4", "--evaluate-every", "50")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a training ends with that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "mine.txt").write_text(TEXT)
    process = started(folder, "runs", *LONG)
    _out, err = process.communicate()
    assert process.returncode == 0, err
    return digest(folder / "runs")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_training_ends_as_one_that_was_not(
    places: Path, number: signal.Signals, whole: str
) -> None:
    stopped = started(places, "runs", *LONG, "--checkpoint-seconds", "0.01")
    while not list((places / "runs").glob("*/*/checkpoints/step-*/MANIFEST.json")):
        assert stopped.poll() is None, stopped.communicate()[1]
        time.sleep(0.005)
    stopped.send_signal(number)
    _out, err = stopped.communicate()
    expected = {signal.SIGKILL: -9, signal.SIGINT: 130}[number]
    assert stopped.returncode == expected, err
    assert not list((places / "runs").glob("*/*/record.json"))
    again = started(places, "runs", *LONG)
    _out, err = again.communicate()
    assert again.returncode == 0, err
    assert digest(places / "runs") == whole


def test_the_page_of_a_training_can_be_made_again(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(places) == 0
    page = places / "runs" / "reports" / "train-lm-tiny-on-mine" / "report.html"
    expected = page.read_text()
    page.unlink()
    capsys.readouterr()
    name, runs = "train lm-tiny on mine", ["--out", str(places / "runs")]
    assert main(["report", name, *runs]) == 0
    assert str(page) in capsys.readouterr().out
    made = page.read_text()
    for text in ("QKV@rotary", "12 steps of 4 rows of 16 tokens: 768 tokens"):
        assert text in expected
        assert text in made
    # More of it belongs to it: one more variant, asked for later.
    assert train(places, "--variant", "Q-K=V", "--seed", "1") == 0
    capsys.readouterr()
    assert main(["report", name, *runs, "--json"]) == 0
    summary = document(capsys)["summary"]
    assert summary["variants"] == ["QKV@rotary", "Q-K=V@rotary"]
    assert summary["seeds"] == [0, 1]
    assert (summary["counts"]["planned"], summary["counts"]["done"]) == (4, 2)
    assert summary["commands"][-1] == "qkvary report 'train lm-tiny on mine'"
    assert main(["report", name, *runs, "--seeds", "0", "--json"]) == 0
    assert document(capsys)["summary"]["counts"]["planned"] == 2
    assert main(["status", name, *runs, "--json"]) == 0
    counts = document(capsys)["runs"]
    assert (counts["total"], counts["done"], counts["open"]) == (4, 2, 2)


def test_trainings_of_one_name_do_not_write_over_each_other(places: Path) -> None:
    assert train(places) == 0
    page = places / "runs" / "reports" / "train-lm-tiny-on-mine" / "report.html"
    before = page.read_bytes()
    assert train(places, "--learning-rate", "0.5") == 0
    assert page.read_bytes() == before
    (other,) = set(page.parents[1].iterdir()) - {page.parent}
    keys = [set(re.findall("[0-9a-f]{64}", (one / "tables" / "runs.csv").read_text()))
            for one in (page.parent, other)]  # fmt: skip
    assert [len(found) for found in keys] == [1, 1]
    assert keys[0] != keys[1]


def test_a_training_that_is_not_done_has_a_page(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*LONG, "--variant", "QKV", "Q-K=V", "--checkpoint-seconds", "0.01")
    stopped = started(places, "runs", *words)
    while not list((places / "runs").glob("*/*/checkpoints/step-*/MANIFEST.json")):
        assert stopped.poll() is None, stopped.communicate()[1]
        time.sleep(0.005)
    stopped.kill()
    stopped.communicate()
    assert main(["report", "train lm-tiny on mine", "--out", str(places / "runs"), "--json"]) == 0
    found = document(capsys)
    counts = found["summary"]["counts"]
    assert (counts["planned"], counts["done"], counts["missing"]) == (2, 0, 2)
    (steps,) = {
        tuple(curve["steps"])
        for curve in found["summary"]["curves"]
        if curve["quantity"] == "train loss"
    }
    assert steps
    assert "train loss" in Path(found["files"][0]).read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train lm-tiny on yours"], "got 'train lm-tiny on yours'; choices: 'train lm-tiny on mi"),
        (["train lm-tiny on mine", "--device", "cuda"], "expected --device cpu, as 'train lm-tiny"),
        (["train lm-tiny on mine", "--dtype", "float64"], "expected --dtype float32, as 'train"),
        (["train lm-tiny on mine", "--seeds", "x"], "expected seeds such as"),
        (["train lm-tiny on mine", "--device", "toaster"], "toaster"),
    ],
)
def test_a_report_of_a_training_that_is_not_there_is_one_sentence(
    places: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    study = plan_training(
        presets.PRESETS["lm-tiny"],
        DataChoice(name="mine", where="set", fingerprint="f" * 64, tokenizer=ByteTokenizer()),
    )
    note_training(Store(places / "runs"), study, "qkvary train lm-tiny")
    for command in ("report", "status"):
        assert main([command, *words, "--out", str(places / "runs")]) == 2
        shown = capsys.readouterr().err
        assert message in shown
        assert len(shown.splitlines()) == 1
