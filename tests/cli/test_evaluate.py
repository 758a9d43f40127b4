"""``qkvary evaluate``: what is printed, what is written, what is refused."""

import json
import math
from pathlib import Path

import pytest

from qkvary.checkpoints.models import save_model
from tests.conftest import Typed
from tests.data.small_sets import make_set
from tests.inference.evaluation.networks import byte_network
from tests.tasks.tiny_networks import tiny_set


def test_a_text_is_printed(places: Path, typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text('{"text": "a cat"}\n{"text": "a mat"}\n', "utf-8")
    call = ["evaluate", places / "rotary", "--data", places / "cats", tmp_path / "lines.jsonl"]
    printed = typed(*call, "--lengths", "16,33,66", "--paper")
    for part in ("per real token", "per byte", "as the papers count", "padding on", "66*", "0-65"):
        assert part in printed
    # Padding is counted only where it is asked for.
    assert "papers" not in typed(*call)


def test_figures_fit_each_other(places: Path, typed: Typed, tmp_path: Path) -> None:
    out, size = tmp_path / "new" / "figures.json", len((places / "cats").read_bytes())
    call = ("evaluate", places / "rotary", "--data", places / "cats", "--stride", "8")
    found = typed.json(*call, "--paper", "--out", out)
    assert found.pop("files") == [str(out)]
    assert json.loads(out.read_text("utf-8")) == found
    text, paper = found["text"], found["paper"]
    assert text["text_bytes"] == size
    assert text["perplexity"] == pytest.approx(math.exp(text["loss"]))
    assert text["bits_per_byte"] == pytest.approx(
        text["loss"] * text["tokens"] / math.log(2) / size
    )
    assert found["protocol"]["stride"] == 8
    padding = (1 - paper["real_share"]) * (paper["pad_loss"] or 0)
    assert paper["loss"] == pytest.approx(paper["real_share"] * paper["real_loss"] + padding)
    assert found["identity"]["dtype"] == "float32"
    again = typed.json(*call, "--batch-size", "1")
    assert again["text"]["perplexity"] == pytest.approx(text["perplexity"], rel=1e-6)
    short, long = typed.json(*call, "--context", "4k")["notes"]
    assert "instead of 4,096, because no document" in short + long


def test_a_prepared_set_brings_its_tokens(places: Path, typed: Typed, tmp_path: Path) -> None:
    data = tiny_set()
    save_model(tmp_path / "model", byte_network("Q-K=V", max_tokens=33))
    call = ("evaluate", tmp_path / "model", "--data", data.path, "--split", "test")
    found = typed.json(*call, "--paper")
    assert found["text"]["tokens"] == data.splits["test"].tokens - data.splits["test"].documents
    assert found["paper"]["rows"] == data.splits["test"].documents
    assert found["split"] == "test"
    assert "(test split): " in typed(*call)
    joined = typed.json(*call, "--joined")
    assert joined["text"]["tokens"] == data.splits["test"].tokens - 1
    assert "paper" not in joined
    said = typed.error("evaluate", places / "bytes", "--data", data.path)
    assert "with the checkpoint's tokenizer" in said


def test_tasks_are_asked(places: Path, typed: Typed) -> None:
    words = ("--tasks", "five,lambada", "--task-data", places / "tasks")
    call = ("evaluate", places / "bytes", *words)
    printed = typed(*call, "--fewshot", "1")
    for part in ("arc_challenge", "lambada", "mean of five", "from chance", "SE", "lm-eval 0.4"):
        assert part in printed
    found = typed.json(*call, "--limit", "2", "--fewshot", "0")
    assert found["limit"] == 2
    assert {task["documents"] for task in found["tasks"].values()} == {2}
    assert found["mean_of_five"]["accuracy"]["chance"] == pytest.approx(0.35, abs=0.01)
    assert found["tasks"]["winogrande"]["normalised"] is None


def test_questions_that_were_trained_on_are_counted(
    places: Path, typed: Typed, tmp_path: Path
) -> None:
    """One question of HellaSwag and one of PIQA are in the set."""
    trained = (
        "Roof shingle removal! a man is sitting on a roof: he starts pulling up roofing on a roof",
        "how to brown sausages in a pan, and what else",
        "Sarah was a better surgeon than Maria. So Sarah",
    )
    call = ("evaluate", places / "bytes", "--tasks", "hellaswag,piqa,winogrande", "--fewshot", "0")
    more = ("--task-data", places / "tasks", "--against", make_set(tmp_path, trained).path)
    found = typed.json(*call, *more)
    counted = {name: task["contamination"] for name, task in found["tasks"].items()}
    shared = [(one["questions"], one["shared"]) for one in counted.values()]
    assert shared == [(3, 1), (3, 1), (3, 0)]
    assert counted["winogrande"]["accuracy"] == found["tasks"]["winogrande"]["accuracy"]
    assert counted["winogrande"]["normalised"] is None
    assert counted["piqa"]["accuracy"]["chance"] == 0.5
    assert (found["against"]["documents"], found["against"]["words_in_a_row"]) == (3, 13)
    assert found["other_tasks"] == {}


def test_tasks_need_a_folder(places: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKVARY_DATA", raising=False)
    call = ("evaluate", places / "bytes", "--tasks", "piqa")
    assert "give --task-data, or set QKVARY_DATA" in typed.error(*call)
    monkeypatch.setenv("QKVARY_DATA", str(places))
    assert str(places / "lm_eval") in typed.error(*call)
