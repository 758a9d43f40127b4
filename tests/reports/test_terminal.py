import io

import pytest
from rich.console import Console

from qkvary.reports.terminal import print_summary
from qkvary.studies.results.summary import Summary
from tests.reports.hostile import PAYLOADS
from tests.reports.synthetic import make_summary, renamed


def printed(
    summary: Summary, width: int = 80, encoding: str = "utf-8", colour: bool = False
) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, force_terminal=colour, no_color=not colour)
    print_summary(summary, console)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_fits_the_terminal(width: int) -> None:
    text = printed(make_summary(), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "Do transformers need three projections" in text
    for variant in make_summary().variants:
        assert variant in text


def test_contrasts_are_answered() -> None:
    summary = make_summary()
    text = " ".join(printed(summary).split())
    assert len(summary.contrasts) == 4
    for contrast in summary.contrasts:
        assert " ".join(contrast.answer.split()) in text


def test_verdicts_need_no_colour() -> None:
    text = printed(make_summary())
    assert "▼ −0.069" in text
    assert "\x1b" not in text
    assert "\x1b" in printed(make_summary(), colour=True)


def test_counts_are_printed() -> None:
    text = printed(make_summary())
    assert "19/20" in text
    assert "237/240; 1 failed; 1 diverged; 1 missing" in " ".join(text.split())


def test_plain_ascii_terminals_work() -> None:
    text = printed(make_summary(), encoding="ascii")
    assert "worse -0.069" in text


@pytest.mark.parametrize("start", range(0, 300, 10))
def test_hostile_names_are_plain_text(start: int) -> None:
    """No markup, no escape sequences, nothing that cannot be encoded."""
    for payload in PAYLOADS[start : start + 10]:
        bad = renamed(
            make_summary(("QKV", "MQA"), 2), lambda _field, text, p=payload: p[:200] + text
        )
        text = printed(bad)
        assert "\x1b" not in text
        assert "\x00" not in text
    assert "[bold]" in printed(
        renamed(make_summary(("QKV", "MQA"), 2), lambda _field, text: "[bold]" + text)
    )
