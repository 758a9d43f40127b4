"""The published model quality against cache size, as blocks of a report: charts, tables, caveats.

These blocks are shown in a plan, and in a study whose variants were trained as language models.
"""

from collections.abc import Sequence
from functools import partial

from qkvary.planning.curves import compute_quality_points
from qkvary.planning.quality import Size
from qkvary.reports import svg
from qkvary.reports.plan_charts import quality_chart
from qkvary.reports.plan_tables import quality_table
from qkvary.reports.report import Block, Chart, Group, Legend
from qkvary.reports.variant_styles import FAMILIES, mark, swatch


def published_quality(sizes: Sequence[Size]) -> tuple[Block, ...]:
    """Return the published model quality against cache size, for networks of these sizes.

    Each caveat appears once.
    """
    points = [compute_quality_points(size) for size in sizes]
    shared = tuple(
        one for one in points[0].caveats if all(one in chart.caveats for chart in points)
    )
    charts = tuple(
        Chart(
            draw=partial(quality_chart, one),
            caption=f"The papers’ {one.size} networks",
            table=quality_table(one),
            notes=tuple(caveat for caveat in one.caveats if caveat not in shared),
        )
        for one in points
    )
    group = Group(blocks=charts, notes=shared, layout="wide", file="quality-against-cache")
    return _legend(), group


def _legend() -> Legend:
    family = FAMILIES[0]
    digits = svg.group(svg.whisker(8, 4, 12, 5, "whisker"), class_="f-base")
    return Legend(
        title="Marks of the published points",
        entries=(
            ("on the frontier", swatch(mark(family, 8, 8, 5))),
            ("† dominated", swatch(mark(family, 8, 8, 5, hollow=True))),
            ("range that the printed digits allow", swatch(digits)),
        ),
    )
