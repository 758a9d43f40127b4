"""The pictures of a plan as files for a paper: SVG, PNG and PDF, caveats written below.

Equal plans give equal bytes.
"""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from qkvary.literature.quality import Size
from qkvary.planning.pictures import (
    SIZES,
    CachePicture,
    UsersPicture,
    draw_cache,
    draw_quality,
    draw_users,
    estimate_note,
    shared_caveats,
)
from qkvary.planning.plans import Plan, ServingAnswer
from qkvary.reports.drawn_figures import figure_of
from qkvary.reports.figure_style import Format, paper_style, save_figure
from qkvary.reports.plan_charts import cache_chart, quality_chart, users_chart
from qkvary.text import names, numbers

CACHE_NAME = "cache-against-context"
USERS_NAME = "users-against-memory"
QUALITY_NAME = "quality-against-cache"
_STAR = "* the weights as they are; every other line would have to be trained."
_CACHE_MARKS = (
    "Marks: the context that was asked for. Shaded: one user no longer fits beside the weights and "
    "the reserve on one device."
)
_QUALITY_MARKS = (
    "Filled: on the frontier, which the line joins; hollow and †: dominated. Solid bars: what the "
    "printed digits leave open."
)


def plan_files(plan: Plan, formats: Sequence[Format]) -> dict[str, bytes]:
    """Return every figure of a plan in every format by file name.

    Args:
        plan: What was asked, and the answer.
        formats: Any of ``svg``, ``png`` and ``pdf``.
    """
    files: dict[str, bytes] = {}
    if formats:
        with paper_style():
            for name, figure in _figures(plan):
                files |= save_figure(figure, name, formats)
    return files


def quality_figure(sizes: Sequence[Size] = SIZES) -> Figure:
    """Draw the papers' quality against cache, a panel for each size, every caveat below.

    Args:
        sizes: Which of their networks, in this order.
    """
    pictures = [draw_quality(size) for size in sizes]
    shared = shared_caveats(pictures)
    notes = [_QUALITY_MARKS, estimate_note(), *shared]
    for picture in pictures:
        own = " ".join(caveat for caveat in picture.caveats if caveat not in shared)
        notes.append(f"{picture.size}: {own}")
    drawings = [
        (f"the papers' {picture.size} networks", quality_chart(picture, f"quality-{index}"))
        for index, picture in enumerate(pictures)
    ]
    return figure_of(drawings, notes)


def _figures(plan: Plan) -> Iterator[tuple[str, Figure]]:
    if isinstance(plan.answer, ServingAnswer):
        cache, users = draw_cache(plan), draw_users(plan)
        if cache is not None:
            yield CACHE_NAME, _cache(plan, cache)
        if users is not None:
            yield USERS_NAME, _users(plan, users)
    if plan.task == "causal" and plan.model.is_causal:
        yield QUALITY_NAME, quality_figure()


def _cache(plan: Plan, picture: CachePicture) -> Figure:
    notes = [_STAR, _CACHE_MARKS]
    drawing = cache_chart(picture, "cache", decimal=plan.decimal)
    return figure_of([(_title(plan, "cache of one user"), drawing)], notes)


def _users(plan: Plan, picture: UsersPicture) -> Figure:
    reserve = numbers.share(picture.reserve)
    marks = (
        f"One copy of the model on one device, {reserve} of its memory left alone. Marks: the "
        "device of the plan."
    )
    notes = [_STAR, marks]
    drawing = users_chart(picture, "users", decimal=plan.decimal)
    return figure_of([(_title(plan, "users of one device"), drawing)], notes)


def _title(plan: Plan, what: str) -> str:
    return f"{names.short(plan.model.name, 30)}: {what}"
