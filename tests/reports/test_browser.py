"""The page in a real Chromium, from a file, as a reader opens it."""

import dataclasses
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page

from qkvary.reports.page import render_page
from tests.reports.conftest import Open
from tests.reports.hostile import UNICODE
from tests.reports.synthetic import make_attention, make_summary, renamed

pytestmark = pytest.mark.browser

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
NUMBERS = "(cells) => cells.map((cell) => +cell.dataset.v)"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    summary = make_summary()
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_page(summary, make_attention(summary)), "utf-8")
    return path


@pytest.mark.parametrize(
    ("width", "colours"),
    [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark"), (1920, "light")],
)
def test_page_fits_the_screen(
    open_page: Open, report: Path, tmp_path: Path, width: int, colours: str
) -> None:
    page = open_page(report, width, colours)
    assert page.evaluate(OVERFLOW) == 0
    picture = tmp_path / f"report-{width}-{colours}.png"
    page.screenshot(path=picture)
    corner = Image.open(picture).convert("L").getpixel((2, 2))
    assert isinstance(corner, int)
    assert (corner > 200) == (colours == "light")


@pytest.mark.parametrize("width", [390, 1280])
def test_opened_details_fit_the_screen(open_page: Open, report: Path, width: int) -> None:
    page = open_page(report, width)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate(OVERFLOW) == 0
    assert page.locator("table").count() == page.locator(".scroll table").count()


def test_text_in_charts_can_be_read_on_a_phone(open_page: Open, report: Path) -> None:
    page = open_page(report, 390)
    smallest = page.evaluate(
        """Math.min(...[...document.querySelectorAll('.charts svg text')]
            .filter((text) => text.getBoundingClientRect().height > 0)
            .map((text) => parseFloat(getComputedStyle(text).fontSize)
                * text.ownerSVGElement.getBoundingClientRect().width
                / text.ownerSVGElement.viewBox.baseVal.width))"""
    )
    assert smallest >= 9


def test_names_in_charts_do_not_cover_each_other(open_page: Open, report: Path) -> None:
    """In the widths that the browser really draws, for every cost."""
    page = open_page(report)
    for number in range(1, 5):
        page.click(f"label[for=cost-{number}]")
        covered = page.evaluate(
            """[...document.querySelectorAll('#frontiers svg')].flatMap((svg) => {
                const boxes = [...svg.querySelectorAll('text.name')]
                    .map((text) => [text.textContent, text.getBoundingClientRect()])
                    .filter(([, box]) => box.width > 0);
                return boxes.flatMap(([name, a], i) => boxes.slice(i + 1)
                    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1
                        && a.top < b.bottom - 4 && b.top < a.bottom - 4)
                    .map(([other]) => `${name} ${other}`));
            })"""
        )
        assert covered == []


def visible(page: Page, selector: str) -> int:
    return page.locator(selector).filter(visible=True).count()


@pytest.mark.parametrize("script", [True, False])
def test_switches_work_with_the_keyboard_and_without_a_script(
    open_page: Open, report: Path, script: bool
) -> None:
    page = open_page(report, script=script)
    assert visible(page, "#curves .second-1") == 4
    assert visible(page, "#curves .second-2") == 0
    page.focus("#axis-1")
    page.keyboard.press("ArrowRight")
    assert visible(page, "#curves .second-1") == 0
    assert visible(page, "#curves .second-2") == 4
    assert (
        "over seconds of training"
        in page.locator("#curves h3").filter(visible=True).first.inner_text()
    )
    page.focus("#quantity-1")
    page.keyboard.press("ArrowRight")
    assert "train loss" in page.locator("#curves h3").filter(visible=True).first.inner_text()


def test_tab_reaches_every_control_and_shows_where_it_is(open_page: Open, report: Path) -> None:
    page = open_page(report)
    reached: list[str] = []
    for _ in range(400):
        page.keyboard.press("Tab")
        where = page.evaluate(
            """(() => { const e = document.activeElement; if (e === document.body) return null;
                const shown = e.matches('.switch input') ? e.nextElementSibling : e;
                return [e.tagName, getComputedStyle(shown).outlineStyle]; })()"""
        )
        if where is None:
            break
        assert where[1] != "none", where
        reached.append(where[0])
    assert {"A", "BUTTON", "SUMMARY", "INPUT", "DIV", "PRE"} <= set(reached)
    assert len(reached) < 400


def test_header_buttons_sort_their_table(open_page: Open, report: Path) -> None:
    page = open_page(report)
    button = page.locator("#t-overview thead button").nth(1)
    button.focus()
    page.keyboard.press("Enter")
    cells = page.locator("#t-overview tbody td:nth-of-type(1)")
    values = cells.evaluate_all(NUMBERS)
    assert values == sorted(values)
    page.keyboard.press("Enter")
    assert page.locator("#t-overview th[aria-sort]").get_attribute("aria-sort") == "descending"
    assert cells.evaluate_all(NUMBERS) == sorted(values, reverse=True)


@pytest.mark.parametrize("place", range(0, len(UNICODE), 4))
def test_odd_names_do_not_break_the_layout(open_page: Open, tmp_path: Path, place: int) -> None:
    """R3: ten thousand letters, right-to-left overrides, stacked accents."""
    summary = make_summary(("QKV", "Q-K=V"), 2)
    some = UNICODE[place : place + 4]
    for number, text in enumerate(some):
        bad = renamed(summary, lambda _field, old, text=text: text + old)
        path = tmp_path / f"{number}.html"
        path.write_text(render_page(bad, make_attention(bad, 4)[:2]), "utf-8")
        page = open_page(path, 390)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert page.evaluate(OVERFLOW) == 0
        footer = page.locator("footer .page").evaluate("(node) => getComputedStyle(node).direction")
        assert footer == "ltr"


def test_empty_study_opens(open_page: Open, tmp_path: Path) -> None:
    summary = dataclasses.replace(
        make_summary(), tables=(), frontiers=(), curves=(), answers=(), published=()
    )
    path = tmp_path / "empty.html"
    path.write_text(render_page(summary, ()), "utf-8")
    assert open_page(path).locator("h1").count() == 1
