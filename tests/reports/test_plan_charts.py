import itertools
import re
from xml.etree import ElementTree as ET

import pytest
from markupsafe import Markup

from qkvary.planning.curves import SIZES, compute_cache_curves, compute_quality_points
from qkvary.planning.quality import Size
from qkvary.reports import plan_charts
from tests.reports.plan_examples import make_plan

MODELS = ("300M", "llama-3.1-8b", "gemma-4-31b", "deepseek-v4-flash", "whisper-tiny", "gpt2")


def draw(name: str) -> Markup:
    curves = compute_cache_curves(make_plan(name))
    assert curves is not None
    return plan_charts.cache_chart(curves).to_svg("cache")


def read(drawing: str) -> ET.Element:
    return ET.fromstring(drawing)  # noqa: S314  our own drawing


def check(drawing: str) -> ET.Element:
    """Well-formed, finite, inside its frame, and said in words."""
    root = read(drawing)
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    for node in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert -1 <= float(node.attrib.get(name, "0")) <= width + 1, node.attrib
        for name in ("y", "y1", "y2", "cy"):
            assert -1 <= float(node.attrib.get(name, "0")) <= height + 1, node.attrib
    assert not re.search(r"\b(nan|inf)\b", drawing, re.IGNORECASE)
    assert root.find("title") is not None
    assert len(root.findtext("desc", "")) > 40
    return root


@pytest.mark.parametrize("name", MODELS)
def test_every_line_has_a_name_that_no_other_covers_and_a_style_of_its_own(name: str) -> None:
    root = check(draw(name))
    lines = [node for node in root.iter("path") if "curve" in node.attrib["class"]]
    styles = [(node.attrib["class"], node.attrib.get("stroke-dasharray")) for node in lines]
    assert len(set(styles)) == len(styles)
    names = [node for node in root.iter("text") if "name" in node.attrib["class"]]
    heights = sorted(float(node.attrib["y"]) for node in names)
    assert all(b - a >= 12.9 for a, b in itertools.pairwise(heights))
    written = " ".join(node.text or "" for node in root.iter("text"))
    for row in make_plan(name).candidates.rows:
        assert row.label.split()[0] in written


@pytest.mark.parametrize("size", SIZES)
def test_dominated_points_are_hollow_and_carry_a_dagger(size: Size) -> None:
    picture = compute_quality_points(size)
    drawing = plan_charts.quality_chart(picture).to_svg("quality")
    root = check(drawing)
    names = {node.text for node in root.iter("text") if "name" in node.attrib["class"]}
    for point in picture.points:
        dagger = "" if point.status == "frontier" else " †"
        found = next(str(name) for name in names if f"{name} ".startswith(f"{point.variant} "))
        assert found.startswith(f"{point.variant}{dagger}")
        assert found.count("†") == len(dagger.strip())
    hollow = sum(point.status != "frontier" for point in picture.points)
    assert drawing.count(" hollow") == hollow


def test_intervals_are_drawn_to_scale() -> None:
    """The bar of what digits leave open, against the grid lines of 0 and 4 percent."""
    root = check(plan_charts.quality_chart(compute_quality_points("300M")).to_svg("quality"))
    grid = {
        tick.text: float(line.attrib["y1"])
        for group in root.findall("g")[:1]
        for line, tick in zip(group.findall("line"), group.findall("text"), strict=True)
    }
    pixels = (grid["0"] - grid["4"]) / 4
    upright = [
        node
        for node in root.iter("line")
        if node.attrib["class"] == "whisker f-share" and node.attrib["x1"] == node.attrib["x2"]
    ]
    lengths = sorted(abs(float(node.attrib["y1"]) - float(node.attrib["y2"])) for node in upright)
    points = [
        one for one in compute_quality_points("300M").points if one.variant in ("Q-K=V", "Q=K-V")
    ]
    wanted = sorted((one.high - one.low) * pixels for one in points)
    assert lengths == pytest.approx(wanted, abs=0.02)
