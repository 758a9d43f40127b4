"""The papers' quality against cache as blocks of a report: charts, tables, caveats.

Shown in a plan, and in a study whose variants were trained as language models.
"""

from collections.abc import Sequence
from functools import partial

from qkvary.planning.curves import compute_quality_points, estimate_note, shared_caveats
from qkvary.planning.quality import Size
from qkvary.reports import svg
from qkvary.reports.plan_charts import quality_chart
from qkvary.reports.plan_tables import quality_table
from qkvary.reports.report import Block, Chart, Group, Legend
from qkvary.reports.variant_styles import FAMILIES, mark, swatch


def published_quality(sizes: Sequence[Size]) -> tuple[Block, ...]:
    """Return the papers' quality against cache, each caveat once.

    Args:
        sizes: The sizes of their networks, in this order.
    """
    points = [compute_quality_points(size) for size in sizes]
    shared = shared_caveats(points)
    charts = tuple(
        Chart(
            draw=partial(quality_chart, one),
            caption=f"The papers’ {one.size} networks",
            table=quality_table(one),
            notes=tuple(caveat for caveat in one.caveats if caveat not in shared),
        )
        for one in points
    )
    return (
        _legend(),
        Group(
            blocks=charts,
            notes=(*shared, estimate_note()),
            layout="wide",
            file="quality-against-cache",
        ),
    )


def _legend() -> Legend:
    family = FAMILIES[0]
    return Legend(
        title="Marks of the published points",
        entries=(
            ("on the frontier", swatch(mark(family, 8, 8, 5))),
            ("† dominated", swatch(mark(family, 8, 8, 5, hollow=True))),
            (
                "what the printed digits leave open",
                swatch(svg.group(svg.whisker(8, 4, 12, 5, "whisker"), class_="f-base")),
            ),
            (
                "estimate per real token",
                swatch(svg.group(svg.whisker(8, 2, 14, 5, "estimate"), class_="f-base")),
            ),
        ),
    )
