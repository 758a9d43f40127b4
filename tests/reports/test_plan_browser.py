"""The page of a plan in a real Chromium, from a file, as a reader opens it."""

from pathlib import Path

import pytest
from PIL import Image

from qkvary.reports.plan_page import render_plan
from tests.reports.conftest import Open
from tests.reports.hostile import UNICODE
from tests.reports.plan_examples import make_plan, renamed

pytestmark = pytest.mark.browser

MODELS = ("300M", "llama-3.1-8b", "gemma-4-31b", "deepseek-v4-flash")
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALLEST = """Math.min(...[...document.querySelectorAll('.charts svg text')]
    .map((text) => parseFloat(getComputedStyle(text).fontSize)
        * text.ownerSVGElement.getBoundingClientRect().width
        / text.ownerSVGElement.viewBox.baseVal.width))"""
COVERED = """[...document.querySelectorAll('.charts svg')].flatMap((svg) => {
    const boxes = [...svg.querySelectorAll('text')]
        .map((text) => [text.textContent, text.getBoundingClientRect()]);
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


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plans")
    found: dict[str, Path] = {}
    for name in MODELS:
        found[name] = folder / f"{name}.html"
        found[name].write_text(render_plan(make_plan(name)), "utf-8")
    return found


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_page_fits_the_screen(
    open_page: Open, pages: dict[str, Path], tmp_path: Path, width: int, colours: str
) -> None:
    page = open_page(pages["300M"], width, colours)
    assert page.evaluate(OVERFLOW) == 0
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate(OVERFLOW) == 0
    picture = tmp_path / "plan.png"
    page.screenshot(path=picture)
    corner = Image.open(picture).convert("L").getpixel((2, 2))
    assert isinstance(corner, int)
    assert (corner > 200) == (colours == "light")


@pytest.mark.parametrize("name", MODELS)
def test_words_in_pictures_are_whole_and_apart(
    open_page: Open, pages: dict[str, Path], name: str
) -> None:
    page = open_page(pages[name], 1440)
    assert page.evaluate(COVERED) == []
    assert page.evaluate(CLIPPED) == []


def test_words_in_pictures_can_be_read_on_a_phone(open_page: Open, pages: dict[str, Path]) -> None:
    assert open_page(pages["300M"], 360).evaluate(SMALLEST) >= 9


def test_header_buttons_sort_the_variants(open_page: Open, pages: dict[str, Path]) -> None:
    page = open_page(pages["300M"])
    page.locator("#t-variants thead button").nth(2).click()
    cells = page.locator("#t-variants tbody td:nth-of-type(2)")
    values = cells.evaluate_all("(cells) => cells.map((cell) => +cell.dataset.v)")
    assert values == sorted(values)


@pytest.mark.parametrize("place", range(0, len(UNICODE), 4))
def test_odd_names_do_not_break_the_layout(open_page: Open, tmp_path: Path, place: int) -> None:
    for number, text in enumerate(UNICODE[place : place + 4]):
        path = tmp_path / f"{number}.html"
        path.write_text(render_plan(renamed(make_plan(), text)), "utf-8")
        page = open_page(path, 360)
        assert page.evaluate(OVERFLOW) == 0
        assert page.evaluate(CLIPPED) == []
