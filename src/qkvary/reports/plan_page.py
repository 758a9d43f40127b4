"""The page of a plan: the question, what follows, every variant, and three pictures.

One HTML file like the page of a study, made by the same environment. Draws with ``svg`` alone, so
that a page needs no plotting library.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from qkvary.costs.decoding import weight_bytes
from qkvary.costs.parameters import model_parameters
from qkvary.planning.advice import nearest_size
from qkvary.planning.pictures import (
    MOST_MEMORY,
    SIZES,
    draw_cache,
    draw_users,
)
from qkvary.planning.plans import Plan, ServingAnswer
from qkvary.reports import plan_tables, plan_variants
from qkvary.reports.documents import render_document
from qkvary.reports.plan_charts import cache_chart, users_chart
from qkvary.reports.published_quality import Picture, show_published
from qkvary.text import names, numbers, units

PAGE_NAME = "plan.html"


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


def _view(plan: Plan) -> Mapping[str, Any]:
    answer = plan.answer
    serving = answer if isinstance(answer, ServingAnswer) else None
    size = nearest_size(model_parameters(plan.model).total)
    cache = None if serving is None else _cache(plan)
    users = None if serving is None else _users(plan)
    return {
        "plan": plan,
        "question": _question(plan),
        "facts": _facts(plan, serving),
        "advice": answer.advice,
        "caveats": (*answer.caveats, *plan.notes),
        "savings": None if serving is None else plan_variants.describe_savings(plan, serving),
        "variants": plan_variants.variants_table(plan, "variants"),
        "cache": cache,
        "users": users,
        "missing": () if serving is None else tuple(_missing(cache, users)),
        "published": show_published([size, *(other for other in SIZES if other != size)], "quality")
        if plan.task == "causal" and plan.model.is_causal
        else None,
        "compared": size,
    }


def _missing(cache: Picture | None, users: Picture | None) -> Iterator[str]:
    """Why a picture is not there."""
    if cache is None:
        yield "No picture of the cache: no variant keeps any."
    elif users is None:
        yield (
            "No picture of users and memory: not one user of any variant fits beside the weights "
            f"on one device, even of {MOST_MEMORY} times this memory."
        )


def _question(plan: Plan) -> str:
    demand, name = plan.demand, names.clip(plan.model.name, 80)
    device = names.clip(demand.device.title, 80)
    tokens = names.count(demand.context, "token")
    if isinstance(plan.answer, ServingAnswer):
        users = names.count(demand.users, "user")
        return f"What serves {users} of {tokens} with {name} on {device}?"
    return f"What trains {name} on sequences of {tokens} on {device}?"


def _facts(plan: Plan, serving: ServingAnswer | None) -> list[tuple[str, str]]:
    demand, size = plan.demand, _size(plan)
    weights = size(weight_bytes(plan.model, demand.weights))
    facts = [
        ("parameters", numbers.compact(model_parameters(plan.model).total)),
        ("layers", numbers.whole(len(plan.model.layers))),
        (f"weights in {demand.weights.name}", weights),
        ("memory of the device", size(demand.device.memory_bytes)),
        (f"after {numbers.share(demand.reserve)} reserve", size(demand.usable_bytes)),
    ]
    if serving is not None:
        first = serving.rows[0].plan
        devices = "none fit" if first.devices is None else numbers.whole(first.devices)
        facts.append((f"cache a user, {first.cache.name}", size(first.user_bytes)))
        facts.append(("devices, as it is", devices))
    if demand.price is not None:
        facts.append(("price of a device", f"{numbers.money(demand.price)} a month"))
    return facts


def _size(plan: Plan) -> Callable[[float], str]:
    def write(value: float) -> str:
        return units.data_size(value, decimal=plan.decimal)

    return write


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
