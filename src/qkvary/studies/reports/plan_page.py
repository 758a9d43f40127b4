"""The page of a plan: the question, what follows, every variant, and three pictures.

One HTML file like the page of a study, made by the same environment. Draws with ``svg`` alone, so
that a page needs no plotting library.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.decoding import weight_bytes
from qkvary.costs.formats import parse_format
from qkvary.costs.parameters import model_parameters
from qkvary.studies.advice import nearest_size
from qkvary.studies.plan_pictures import (
    SIZES,
    QualityPicture,
    draw_cache,
    draw_quality,
    draw_users,
    estimate_note,
    shared_caveats,
)
from qkvary.studies.plans import Plan, ServingAnswer
from qkvary.studies.quality import Size
from qkvary.studies.reports import plan_tables, svg, wording
from qkvary.studies.reports.documents import render_document
from qkvary.studies.reports.families import FAMILIES, mark
from qkvary.studies.reports.plan_charts import cache_chart, quality_chart, users_chart
from qkvary.studies.reports.tables import Table

PAGE_NAME = "plan.html"
LOSSY = ("fp8", "int8", "int4")
"""Formats that are shown as an alternative to sharing anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing with the table behind it and what must be known about it."""

    caption: str
    drawing: Markup
    table: Table
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """What can be stored less with the weights as they are."""

    now: str
    methods: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    lossy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSection:
    """The papers' quality against cache: a picture a size, and what limits all of them."""

    pictures: tuple[Picture, ...]
    caveats: tuple[str, ...]
    key: tuple[tuple[str, Markup], ...]


def plan_files(plan: Plan, formats: Sequence[Literal["html"]] = ("html",)) -> dict[str, bytes]:
    """Return the page of a plan by its file name.

    Args:
        plan: What was asked, and the answer.
        formats: ``html``, the only one that this module writes.
    """
    return {PAGE_NAME: render_plan(plan).encode()} if formats else {}


def render_plan(plan: Plan) -> str:
    """Write the page of a plan; equal plans give equal text."""
    return render_document("plan.html.j2", _view(plan))


def published_section(sizes: Sequence[Size], name: str) -> PublishedSection:
    """Return the papers' quality against cache, with every caveat once.

    Args:
        sizes: Which of their networks, in this order.
        name: Begins the ids of the drawings.
    """
    pictures = [draw_quality(size) for size in sizes]
    shared = shared_caveats(pictures)
    return PublishedSection(
        pictures=tuple(
            _quality(picture, f"{name}-{index}", shared) for index, picture in enumerate(pictures)
        ),
        caveats=(*shared, estimate_note()),
        key=_quality_key(),
    )


def _view(plan: Plan) -> Mapping[str, Any]:
    answer = plan.answer
    serving = answer if isinstance(answer, ServingAnswer) else None
    size = nearest_size(model_parameters(plan.model).total)
    return {
        "plan": plan,
        "question": _question(plan),
        "facts": _facts(plan, serving),
        "advice": answer.advice,
        "caveats": (*answer.caveats, *plan.notes),
        "savings": None if serving is None else _savings(plan, serving),
        "variants": (
            plan_tables.serving_table(plan, serving, "variants")
            if serving is not None
            else _training_table(plan)
        ),
        "cache": _cache(plan) if serving is not None else None,
        "users": _users(plan) if serving is not None else None,
        "published": published_section(
            [size, *(other for other in SIZES if other != size)], "quality"
        )
        if plan.task == "causal" and plan.model.is_causal
        else None,
        "compared": size,
    }


def _question(plan: Plan) -> str:
    demand, name = plan.demand, wording.clip(plan.model.name, 80)
    device = wording.clip(demand.device.title, 80)
    tokens = wording.count(demand.context, "token")
    if isinstance(plan.answer, ServingAnswer):
        users = wording.count(demand.users, "user")
        return f"What serves {users} of {tokens} with {name} on {device}?"
    return f"What trains {name} on sequences of {tokens} on {device}?"


def _facts(plan: Plan, serving: ServingAnswer | None) -> list[tuple[str, str]]:
    demand, size = plan.demand, _size(plan)
    weights = size(weight_bytes(plan.model, demand.weights))
    facts = [
        ("parameters", wording.compact(model_parameters(plan.model).total)),
        ("layers", wording.whole(len(plan.model.layers))),
        (f"weights in {demand.weights.name}", weights),
        ("memory of the device", size(demand.device.memory_bytes)),
        (f"after {wording.percent(demand.reserve, 0)} reserve", size(demand.usable_bytes)),
    ]
    if serving is not None:
        first = serving.rows[0].plan
        devices = "none fit" if first.devices is None else wording.whole(first.devices)
        facts.append((f"cache a user, {first.cache.name}", size(first.user_bytes)))
        facts.append(("devices, as it is", devices))
    if demand.price is not None:
        facts.append(("price of a device", f"{wording.whole(demand.price)} a month"))
    return facts


def _size(plan: Plan) -> Callable[[float], str]:
    def write(value: float) -> str:
        return wording.data_size(value, decimal=plan.decimal)

    return write


def _savings(plan: Plan, answer: ServingAnswer) -> Savings:
    report, size = answer.savings, _size(plan)
    total = len(plan.model.layers)
    lossy: list[str] = []
    for name in LOSSY:
        held = model_cache_bytes(
            plan.model,
            context=plan.demand.context,
            stored_as=parse_format(name),
            encoder_tokens=plan.demand.encoder_tokens,
        )
        lossy.append(f"{name} {size(held)}")
    return Savings(
        now=f"{size(report.bytes_now)} of cache a user in {plan.formats[0].name}",
        methods=tuple(
            plan_tables.describe_saving(saving, total, decimal=plan.decimal)
            for saving in report.savings
        ),
        reasons=(*report.already, *report.obstacles),
        lossy=wording.listed(lossy),
    )


def _training_table(plan: Plan) -> Table:
    if isinstance(plan.answer, ServingAnswer) or plan.regime is None:
        raise ValueError("expected a plan of training with its regime, got none")
    return plan_tables.training_table(
        plan.answer.rows, plan.regime, "variants", decimal=plan.decimal
    )


def _cache(plan: Plan) -> Picture | None:
    picture = draw_cache(plan)
    if picture is None:
        return None
    return Picture(
        caption="Cache of one user against context",
        drawing=cache_chart(picture, "cache", decimal=plan.decimal),
        table=plan_tables.cache_table(picture, "cache", decimal=plan.decimal),
    )


def _users(plan: Plan) -> Picture | None:
    picture = draw_users(plan)
    if picture is None:
        return None
    return Picture(
        caption="Users of one device against its memory",
        drawing=users_chart(picture, "users", decimal=plan.decimal),
        table=plan_tables.users_table(picture, "users", decimal=plan.decimal),
    )


def _quality(picture: QualityPicture, name: str, shared: Sequence[str]) -> Picture:
    return Picture(
        caption=f"The papers’ {picture.size} networks",
        drawing=quality_chart(picture, name),
        table=plan_tables.quality_table(picture, name),
        caveats=tuple(caveat for caveat in picture.caveats if caveat not in shared),
    )


def _quality_key() -> tuple[tuple[str, Markup], ...]:
    """Small drawings of what the marks mean, none told by its colour."""
    family = FAMILIES[0]
    bar = [svg.line((8, 4), (8, 12), "whisker"), *(_end(y, "whisker") for y in (4, 12))]
    dots = [svg.line((8, 2), (8, 14), "estimate"), *(_end(y, "estimate") for y in (2, 14))]
    return (
        ("on the frontier", _swatch(mark(family, 8, 8, 5))),
        ("† dominated", _swatch(mark(family, 8, 8, 5, hollow=True))),
        ("what the printed digits leave open", _swatch(svg.group(bar, class_="f-base"))),
        ("estimate per real token", _swatch(svg.group(dots, class_="f-base"))),
    )


def _end(y: float, class_: str) -> Markup:
    return svg.line((3, y), (13, y), class_)


def _swatch(drawn: Markup) -> Markup:
    return svg.element("svg", drawn, viewBox="0 0 16 16", width=16, height=16, aria_hidden="true")
