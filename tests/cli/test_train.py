"""One command from a text to a network: trained, stopped, resumed, shown, continued."""

import shlex
from pathlib import Path

import pytest

from qkvary.cli.main import main
from qkvary.data.prepared_sets import prepare_corpus
from qkvary.reports.report import DEFAULT_FORMATS
from tests.cli.tiny_training import TINY, document, tiny_places, train

places = pytest.fixture(autouse=True)(tiny_places)


def test_a_text_becomes_a_network_that_can_be_asked(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkvary.reports.files.DEFAULT_FORMATS", DEFAULT_FORMATS)
    assert train(places, "--sample", "the ", "--log", "tensorboard") == 0
    shown = capsys.readouterr()
    for step in (5, 10, 12):
        assert f"step {step}: validation loss " in shown.err
        assert f"step {step}: the " in shown.err
    assert "a document per row" in shown.out
    assert list((places / "runs" / "logs" / "tensorboard").rglob("events.out.tfevents.*"))
    page = places / "runs" / "reports" / "train-lm-tiny-on-mine" / "report.html"
    assert page.is_file()
    assert str(page) in shown.out
    written = {path.suffix for path in page.parent.rglob("*.*")}
    assert written == {".html", ".md", ".csv", ".svg", ".png", ".pdf"}
    *_, network, following = shown.out.strip().splitlines()
    assert main(["generate", network.partition(": ")[2], "the quick", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("the quick")
    title, _, command = following.partition(": ")
    words = shlex.split(command)
    assert (title, words[0]) == ("next", "qkvary")
    assert main([*words[1:], "--tokens", "3"]) == 0


def test_what_is_done_is_not_done_again(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(places) == 0
    capsys.readouterr()
    assert train(places) == 0
    shown = capsys.readouterr()
    assert "step" not in shown.err
    assert "QKV@rotary" in shown.out


def test_a_plan_trains_nothing(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(places, "--dry-run", "--json", "--variant", "MQA") == 0
    (run,) = document(capsys)["runs"]
    assert (run["variant"], run["state"], run["tokens"]) == ("MQA@rotary", "open", 12 * 4 * 16)
    # Two layers, key and value of one head of 16 channels, two bytes each, as in the papers.
    assert run["cache_bytes_per_token"] == 2 * 2 * 16 * 2
    assert not (places / "runs").exists()
    layers = "I-K-V*1,Q-K=V*1"
    assert train(places, "--dry-run", "--json", "--variant", layers) == 0
    (run,) = document(capsys)["runs"]
    assert run["variant"] == "I-K-V@rotary*1,Q-K=V@rotary*1"
    assert train(places, "--dry-run", "--variant", "QKV*3,MQA*1") == 2
    assert "of the 2 layers of the network, got 4" in capsys.readouterr().err
    assert train(places, "--dry-run") == 0
    assert "12 steps of 4 rows of 16 tokens: 768 tokens" in capsys.readouterr().out


def test_a_prepared_set_is_taken_as_it_is(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = prepare_corpus(str(places / "mine.txt"), "characters", out=places / "set")
    assert train(places, "--dry-run", "--json", data="set") == 0
    assert document(capsys)["task"]["data_sha256"] == data.fingerprint
    assert train(places, "--tokenizer", "bytes", data="set") == 2
    assert "expected no --tokenizer with a prepared set" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "expected"), [((), 5), (("--device", "cuda"), 1)])
def test_all_processors_are_used(
    places: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    expected: int,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    text = ["--data", str(places / "mine.txt"), "--out", str(places / "runs")]
    assert main(["train", "lm-tiny", *text, *TINY, "--dry-run", "--json", *words]) == 0
    assert document(capsys)["threads"] == expected


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
