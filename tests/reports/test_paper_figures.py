import dataclasses
import io
import re
from typing import get_args

import pytest
from PIL import Image

from qkvary.reports import paper_figures
from qkvary.reports.figure_style import Format
from qkvary.reports.paper_figures import figure_files
from qkvary.studies.results.summary import Summary
from tests.reports.synthetic import make_attention, make_summary, renamed


def few() -> Summary:
    """A summary with one figure of each kind."""
    summary = make_summary(("QKV", "Q-K=V", "MQA"), 3)
    curves = tuple(curve for curve in summary.curves if curve.setting == "characters")
    charts = tuple(one for one in summary.frontiers if one.axis == "cache_bytes_per_token")
    return dataclasses.replace(summary, curves=curves, frontiers=charts)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    summary = few()
    return figure_files(summary, make_attention(summary, 5), get_args(Format))


def test_every_figure_in_every_format(files: dict[str, bytes]) -> None:
    names = {name.rsplit(".", 1)[0] for name in files}
    assert len(files) == 3 * len(names)
    kinds = {name.split("-")[0] for name in names}
    assert kinds == {"differences", "frontier", "curves", "attention"}


def test_files_are_what_their_names_say(files: dict[str, bytes]) -> None:
    for name, data in files.items():
        if name.endswith(".png"):
            picture = Image.open(io.BytesIO(data))
            assert picture.info["dpi"][0] == pytest.approx(300, abs=1)
        elif name.endswith(".pdf"):
            assert data.startswith(b"%PDF-")
            assert b"/FontFile2" in data
            assert b"/CreationDate" not in data
        else:
            assert data.startswith(b"<?xml")
            assert not re.search(rb"<dc:date>|<text|href=\"http", data)


def test_equal_summaries_give_equal_figures(files: dict[str, bytes]) -> None:
    summary = few()
    assert figure_files(summary, make_attention(summary, 5), get_args(Format)) == files


def test_no_format_draws_nothing() -> None:
    assert figure_files(make_summary(), (), ()) == {}


@pytest.mark.parametrize(
    "text", ["$\\frac{1}{0}$", "<b>", "\x00\ud800", "שלום", "w" * 10_000, "_x^"]
)
def test_names_are_never_read_as_formulas(text: str) -> None:
    summary = renamed(few(), lambda _field, old: text + old)
    assert paper_figures.figure_files(summary, (), ("svg",))
