"""The page of a training opens with what was learnt, and compares only where there is something."""

import math
from pathlib import Path
from typing import Any

import pytest

from qkvary.text import numbers
from tests.cli.tiny_training import command, make_places
from tests.conftest import Typed

FORMATS = ("html", "markdown", "json")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        folder = make_places(tmp_path_factory.mktemp("page"), patch)
        patch.setattr("qkvary.reports.files.DEFAULT_FORMATS", FORMATS)
        yield folder


def page(folder: Path) -> tuple[str, str]:
    """Return what is before the sections of the page, and the whole Markdown document."""
    (html,) = folder.glob("runs/reports/*/report.html")
    text = html.read_text("utf-8")
    return text.partition("<main")[0].partition("<body>")[2], html.with_suffix(".md").read_text()


def test_one_network_opens_with_its_curve_and_loss(places: Path, typed: Typed) -> None:
    found = typed.json(*command(places))
    metrics = dict(found["summary"]["runs"][0]["metrics"])
    opening, markdown = page(places)
    for text in (opening, markdown):
        for figure in (metrics["test_loss"], math.exp(metrics["test_loss"])):
            assert numbers.real(figure, 4) in text
        assert "ifferences to" not in text
    # Three losses, each with one name, which the page defines.
    for defined in ("Final validation loss is", "Validation loss is", "Training loss is the"):
        assert defined in markdown
    assert '<div class="picture">' in opening
    assert markdown.index("## What the network writes") < markdown.index("## Scores")
    for absent in ("## Results", "## Quality and cost", "## Published figures", "est loss"):
        assert absent not in markdown
    (text,) = found["texts"].values()
    assert text.strip()
    written = markdown.partition("## What the network writes")[2].partition("## ")[0]
    assert {one for one in text if one.isascii() and one.isprintable()} <= set(written)


def test_several_networks_are_compared_behind_what_they_learnt(places: Path, typed: Typed) -> None:
    printed = typed(*command(places, "--variant", "QKV", "Q-K=V", "--seeds", "0,1"))
    opening, markdown = page(places)
    for text in (markdown, printed):
        for name in ("QKV", "Q-K=V"):
            assert f"{name} ended with a final validation loss of " in text
    assert "(the mean of 2 seeds)" in opening
    assert "the paired difference from QKV" in markdown
    assert markdown.index("## What the network writes") < markdown.index("## Results")
    assert "runs 1/1" in typed(*command(places, "--variant", "MQA"))
    assert "| runs | 5/6; 1 missing |" in page(places)[1]


def test_without_a_finished_run_there_is_no_loss(places: Path, typed: Typed) -> None:
    out = ("--data", places / "mine.txt", "--out", places / "other")
    sizes = ("--steps", "12", "--batch-size", "4", "--learning-rate", "1e30", "--threads", "1")
    assert typed.json("train", "lm-tiny", *out, *sizes, code=5)["texts"] == {}
    (path,) = (places / "other").glob("reports/*/report.md")
    assert "QKV@rotary has no finished run: 1 diverged." in path.read_text()
