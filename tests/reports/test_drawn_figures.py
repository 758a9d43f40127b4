import pytest
from markupsafe import Markup
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, Polygon, Rectangle

from qkvary.planning.pictures import draw_quality
from qkvary.reports import svg
from qkvary.reports.drawn_figures import CAPTION, PIXELS_PER_INCH, POINTS, figure_of
from qkvary.reports.variant_styles import FAMILIES, mark
from qkvary.reports.figure_style import paper_style
from qkvary.reports.plan_charts import quality_chart


def drawing(*children: Markup, width: float = 100, height: float = 50) -> Markup:
    return svg.figure(width, height, "title", "description", children, "name")


def test_lines_lie_where_they_were_drawn() -> None:
    figure = figure_of([("", drawing(svg.line((3, 5), (7, 11), "axis")))], ())
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == [3, 7]
    assert list(line.get_ydata()) == [5 + CAPTION, 11 + CAPTION]


def test_a_path_is_read_back_exactly() -> None:
    points = [(1.0, 2.0), (3.5, 2.0), (3.5, 9.9)]
    figure = figure_of([("", drawing(svg.path(points, "frontier")))], ())
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == pytest.approx([x for x, _ in points])
    assert list(line.get_ydata()) == pytest.approx([y + CAPTION for _, y in points])


def test_dashes_are_as_long_as_on_the_page() -> None:
    path = svg.element("path", d="M0 0l9 0", class_="curve f-heads", stroke_dasharray="7 3")
    (line,) = figure_of([("", drawing(path))], ()).axes[0].lines
    _, dashes = line._unscaled_dash_pattern
    assert [part * line.get_linewidth() for part in dashes] == pytest.approx(
        [7 * POINTS, 3 * POINTS]
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.key)
@pytest.mark.parametrize("hollow", [False, True])
def test_every_mark_is_drawn_in_its_colour(family: object, hollow: bool) -> None:
    drawn = figure_of([("", drawing(mark(family, 20, 20, hollow=hollow)))], ()).axes[0]  # type: ignore[arg-type]
    (patch,) = drawn.patches
    assert isinstance(patch, Circle | Polygon | Rectangle)
    assert to_hex(patch.get_edgecolor()) == family.light  # type: ignore[attr-defined]
    inside = "#ffffff" if hollow else family.light  # type: ignore[attr-defined]
    assert to_hex(patch.get_facecolor()) == inside


def test_several_drawings_stand_side_by_side_above_the_notes() -> None:
    one = drawing(svg.text(0, 0, "here", "tick"))
    figure = figure_of([("left", one), ("right", one)], ["a note"], name="all")
    places = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert places["left"][1] == places["right"][1] < places["a note"][1]
    assert places["right"][0] - places["left"][0] == 114
    assert places["all"][1] < places["left"][1]
    assert figure.get_figwidth() == pytest.approx(214 / PIXELS_PER_INCH)


def test_long_notes_are_broken_into_lines_within_the_figure() -> None:
    figure = figure_of([("", drawing(width=300))], ["word " * 60])
    lines = [text.get_text() for text in figure.axes[0].texts if "word" in text.get_text()]
    assert " ".join(lines).split() == ["word"] * 60
    assert max(map(len, lines)) * 5.5 <= 300


def test_no_text_of_a_real_picture_leaves_the_figure() -> None:
    picture = quality_chart(draw_quality("300M"), "quality")
    with paper_style():
        figure = figure_of([("caption", picture)], ["note " * 30])
        figure.draw_without_rendering()
        for text in figure.axes[0].texts:
            box = text.get_window_extent()
            assert box.x0 >= -1
            assert box.x1 <= figure.bbox.width + 1, text.get_text()
            assert box.y0 >= -1


@pytest.mark.parametrize(
    ("strange", "message"),
    [
        (svg.line((0, 0), (1, 1), "unheard"), "one known class of lines, got 'unheard'"),
        (svg.line((0, 0), (1, 1), "axis grid"), "one known class of lines, got 'axis grid'"),
        (svg.text(0, 0, "x", "panel-title"), "a known class of text, got 'panel-title'"),
    ],
)
def test_what_is_not_known_is_an_error(strange: Markup, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        figure_of([("", drawing(strange))], ())


def test_names_are_never_read_as_formulas() -> None:
    with paper_style():
        figure = figure_of([("$\\frac{1}{0}$", drawing(svg.text(5, 5, "$x^2$", "tick")))], ["_x^"])
        figure.draw_without_rendering()
        assert "$x^2$" in [text.get_text() for text in figure.axes[0].texts]
