import dataclasses
import io
import re
from typing import get_args
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from qkvary.reports.figures import PNG_SCALE, FigureFormat, figure_files, print_style
from qkvary.reports.report import Report
from qkvary.reports.study import study_report
from qkvary.reports.variant_styles import FAMILIES
from tests.reports.subjects import small_summary
from tests.reports.synthetic import make_attention


def few() -> Report:
    """A report with one figure of each kind."""
    summary = small_summary()
    curves = tuple(curve for curve in summary.curves if curve.setting == "characters")
    frontiers = tuple(one for one in summary.frontiers if one.axis == "cache_bytes_per_token")
    summary = dataclasses.replace(summary, curves=curves, frontiers=frontiers[:1])
    return study_report(summary, make_attention(summary, 5)[:3])


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return figure_files(few(), get_args(FigureFormat))


def test_every_figure_in_every_format(files: dict[str, bytes]) -> None:
    names = {name.rsplit(".", 1)[0] for name in files}
    assert len(files) == 3 * len(names)
    kinds = {name.split("-")[0] for name in names}
    sections = {"differences", "frontier", "curves", "attention"}
    assert kinds == {"answer", *sections}


def test_files_are_what_their_names_say(files: dict[str, bytes]) -> None:
    for name, data in files.items():
        drawing = ET.fromstring(files[f"{name.rsplit('.', 1)[0]}.svg"])  # noqa: S314  our own
        if name.endswith(".png"):
            width, height = Image.open(io.BytesIO(data)).size
            assert width == round(float(drawing.attrib["width"]) * PNG_SCALE)
            assert height == pytest.approx(float(drawing.attrib["height"]) * PNG_SCALE, abs=1)
        elif name.endswith(".pdf"):
            assert data.startswith(b"%PDF-")
            assert b"/FontFile" in data
            assert b"/CreationDate" not in data
        else:
            assert not re.search(rb"\bnan\b|href=\"http|var\(|@media", data)


def test_a_mark_has_the_colour_of_its_family(files: dict[str, bytes]) -> None:
    """Colours that are variables on the page are resolved in a file, and drawn."""
    style = print_style()
    for family in FAMILIES:
        assert re.search(rf"svg \.mark\.f-{family.key} {{[^}}]*fill: {family.light}", style)
    (name,) = (name for name in files if name.startswith("frontier") and name.endswith(".png"))
    picture = Image.open(io.BytesIO(files[name])).convert("RGB")
    seen = {colour for _, colour in picture.getcolors(1 << 24) or ()}
    blue = next(family.light for family in FAMILIES if family.key == "share")
    assert tuple(int(blue[place : place + 2], 16) for place in (1, 3, 5)) in seen
