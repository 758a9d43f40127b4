"""The pages in a real Chromium, from a file, as a reader opens them."""

import dataclasses
from pathlib import Path

import pytest
from PIL import Image

from qkvary.reports.page import render_page
from qkvary.reports.plan import plan_report
from qkvary.reports.study import study_report
from tests.reports.conftest import Open
from tests.reports.hostile import UNICODE
from tests.reports.plan_examples import make_plan
from tests.reports.synthetic import make_attention, make_summary
from tests.reports.test_page import everything

pytestmark = pytest.mark.browser

COMMAND = "qkvary train lm-10m --data " + "long/" * 200 + "mine.txt"
MODELS = ("llama-3.1-8b", "gemma-4-31b", "deepseek-v4-flash")
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALLEST = """Math.min(...[...document.querySelectorAll('.charts svg text')]
    .filter((text) => text.getBoundingClientRect().height > 0)
    .map((text) => parseFloat(getComputedStyle(text).fontSize)
        * text.ownerSVGElement.getBoundingClientRect().width
        / text.ownerSVGElement.viewBox.baseVal.width))"""
COVERED = """(words) => [...document.querySelectorAll('.charts svg')].flatMap((svg) => {
    const boxes = [...svg.querySelectorAll(words)]
        .map((text) => [text.textContent, text.getBoundingClientRect()])
        .filter(([, box]) => box.width > 0);
    return boxes.flatMap(([name, a], i) => boxes.slice(i + 1)
        .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1
            && a.top < b.bottom - 4 && b.top < a.bottom - 4)
        .map(([other]) => `${name} / ${other}`));
})"""
CLIPPED = """[...document.querySelectorAll('.charts svg')].flatMap((svg) => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')]
        .filter((text) => { const box = text.getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1
                || box.top < frame.top - 2 || box.bottom > frame.bottom + 2; })
        .map((text) => text.textContent);
})"""
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    summary = dataclasses.replace(make_summary(), commands=(COMMAND, "qkvary doctor"))
    reports = {
        "study": study_report(summary, make_attention(summary)),
        "plan": plan_report(make_plan()),
        **{name: plan_report(make_plan(name)) for name in MODELS},
    }
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in reports}
    for name, report in reports.items():
        found[name].write_text(render_page(report), "utf-8")
    return found


@pytest.mark.parametrize(
    ("subject", "width", "colours"),
    [
        ("study", 390, "dark"),
        ("plan", 1440, "light"),
    ],
)
def test_a_page_fits_the_screen_and_its_words_can_be_read(
    open_page: Open,
    pages: dict[str, Path],
    tmp_path: Path,
    subject: str,
    width: int,
    colours: str,
) -> None:
    page = open_page(pages[subject], width, colours)
    assert page.evaluate(OVERFLOW) == 0
    if width < 400:
        assert page.evaluate(SMALLEST) >= 9
    picture = tmp_path / "page.png"
    page.screenshot(path=picture)
    corner = Image.open(picture).convert("L").getpixel((2, 2))
    assert isinstance(corner, int)
    assert (corner > 200) == (colours == "light")
    page.evaluate(OPEN_ALL)
    assert page.evaluate(OVERFLOW) == 0
    assert page.locator("table").count() == page.locator(".scroll table").count()


@pytest.mark.parametrize("name", ["plan", *MODELS])
def test_words_in_charts_are_whole_and_apart(
    open_page: Open, pages: dict[str, Path], name: str
) -> None:
    page = open_page(pages[name], 1440)
    assert page.evaluate(COVERED, "text") == []
    assert page.evaluate(CLIPPED) == []


def test_names_of_points_do_not_cover_each_other(open_page: Open, pages: dict[str, Path]) -> None:
    """In the widths that the browser really draws, for every cost."""
    page = open_page(pages["study"])
    page.evaluate(OPEN_ALL)
    assert page.evaluate(COVERED, "text.name") == []


def test_odd_names_do_not_break_the_layout(open_page: Open, tmp_path: Path) -> None:
    """Ten thousand letters, right-to-left overrides, stacked accents."""
    path = tmp_path / "page.html"
    path.write_text(render_page(everything(" ".join(UNICODE))), "utf-8")
    page = open_page(path, 360)
    page.evaluate(OPEN_ALL)
    assert page.evaluate(OVERFLOW) == 0
    footer = page.locator("footer .page").evaluate("(node) => getComputedStyle(node).direction")
    assert footer == "ltr"
