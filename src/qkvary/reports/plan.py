"""The report of a plan: exact savings, every variant, charts, and published quality."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from qkvary.costs.decoding import weight_bytes
from qkvary.costs.exact_savings import Saving, SavingsReport
from qkvary.costs.parameters import model_parameters
from qkvary.planning.advice import ServedVariant, nearest_size
from qkvary.planning.curves import (
    SIZES,
    CacheCurves,
    compute_cache_curves,
    compute_quality_points,
)
from qkvary.planning.engines import VLLM
from qkvary.planning.plans import Plan
from qkvary.planning.quality import Quality
from qkvary.planning.training_advice import TrainedVariant
from qkvary.reports.plan_charts import cache_chart, quality_chart
from qkvary.reports.plan_tables import (
    engines_table,
    quality_table,
    serving_table,
    training_table,
)
from qkvary.reports.report import Bullets, Chart, Group, Pairs, Prose, Report, Section
from qkvary.reports.tables import pick
from qkvary.text import names, numbers


def plan_report(plan: Plan) -> Report:
    """Return the report of a serving plan or of a training plan."""
    answer, savings = plan.answer, plan.answer.savings
    variants = training_table(plan) if savings is None else serving_table(plan)
    curves = None if savings is None else compute_cache_curves(plan)
    sections = (
        *([] if savings is None else [_savings(plan, savings)]),
        Section(key="variants", title="Variants", blocks=(variants,), brief=True),
        *([_engines(plan)] if answer.engines else []),
        *_sentences("advice", "Further advice", answer.advice),
        *_sentences("limits", "Limitations of the published numbers", answer.caveats[1:]),
        *([] if curves is None else [_context(curves)]),
        *_published(plan),
    )
    demand, name = plan.demand, names.clip(plan.model.name, 80)
    device, tokens = names.clip(demand.device.title, 80), names.count(demand.context, "token")
    users = names.count(demand.users, "user")
    return Report(
        subject=f"plan: {plan.model.name}",
        question=f"How can {name} serve {users} of {tokens} on {device}?"
        if answer.rows
        else f"How can {name} be trained with sequences of {tokens} on {device}?",
        lead=f"{names.count(len(plan.model.layers), 'layer')}: {plan.layers}",
        answer=answer.summary,
        caveats=(*answer.caveats[:1], *plan.notes),
        facts=tuple(_facts(plan)),
        sections=sections,
        datasets=(variants,),
        data=_data(plan),
        stem="plan",
    )


def _sentences(key: str, title: str, sentences: tuple[str, ...]) -> Iterator[Section]:
    if sentences:
        yield Section(key=key, title=title, blocks=(Bullets(sentences),), full=True)


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    demand, size = plan.demand, numbers.data_size
    yield "parameters", numbers.compact(model_parameters(plan.model).total)
    yield "layers", numbers.whole(len(plan.model.layers))
    yield f"weights in {demand.weights.name}", size(weight_bytes(plan.model, demand.weights))
    yield "memory of the device", size(demand.device.memory_bytes)
    yield f"after {numbers.share(demand.reserve)} reserve", size(demand.usable_bytes)
    if plan.answer.rows:
        first = plan.answer.rows[0].plan
        yield f"cache per user, {first.cache.name}", size(first.user_bytes)
        for row in plan.answer.engines:
            if row.engine == VLLM and row.user_bytes is not None and row.tokens is not None:
                yield row.engine, f"{size(row.user_bytes)} (log: {row.tokens:,} tokens)"
        none = first.devices is None
        yield "devices for all users", "none fit" if none else numbers.whole(first.devices)
    if demand.price is not None:
        yield "price of a device", f"{numbers.money(demand.price)} per month"


def _savings(plan: Plan, report: SavingsReport) -> Section:
    """Return the exact savings with the given weights."""
    size = numbers.data_size
    now = f"{size(report.bytes_now)} of cache per user in {plan.formats[0].name}"
    methods = [_describe_saving(one, len(plan.model.layers), size) for one in report.savings]
    lossy = names.listed([f"{name} {size(held)}" for name, held in report.lossy])
    known = (*report.already, *report.obstacles)
    words = (
        "sizes include quantization scales; the model no longer computes the same function, so "
        "measure the quality"
    )
    return Section(
        key="savings",
        title="With the given weights",
        link="Exact savings",
        blocks=(
            Prose(
                f"The given model now needs {now}. Exact methods compute the same function as the "
                "given model."
            ),
            Pairs(tuple(methods) or (("exact: no saving", ""),)),
            *([Bullets(known)] if known else []),
            Pairs(((f"lossy: {lossy} per user", words),)),
        ),
        full=True,
    )


def _describe_saving(saving: Saving, layers: int, size: Callable[[float], str]) -> tuple[str, str]:
    """Describe the saving of a method and its requirements."""
    count = len(saving.layers)
    where = f"all {layers} layers" if count == layers else f"{count} of {layers} layers"
    saved = numbers.percent(-saving.share_of_model)
    if count < layers:
        saved += f", {numbers.percent(-saving.share_of_layers)} in those layers"
    then = size(saving.model_bytes_then)
    return (
        f"exact: {saving.method}, {where}: {then} per user ({saved})",
        f"{saving.explanation}; {saving.price}",
    )


def _engines(plan: Plan) -> Section:
    return Section(
        key="engines",
        title="The cache as engines allocate it",
        lead=f"The table shows the cache of the given model in {plan.formats[0].name}. An engine "
        "reserves more memory than the cache needs, because it allocates whole blocks and adds "
        "room for a prefill chunk to each attention window.",
        blocks=(engines_table(plan),),
        full=True,
    )


def _context(curves: CacheCurves) -> Section:
    chart = Chart(
        draw=partial(cache_chart, curves),
        caption="Cache of one user against context",
        file="cache-against-context",
    )
    left_out = (
        (f"Rows without a cache: {names.listed(curves.left_out)}.",) if curves.left_out else ()
    )
    return Section(
        key="context",
        title="Cache and context",
        lead="Each line shows how the cache of one user grows with the context, if it is stored in "
        f"{curves.cache.name}. A line bends where an attention window is full. Variants whose "
        "caches are equal share a line. A mark shows the requested context. In the shaded area, "
        "the weights and the cache of one user no longer fit on one device. The line marked * has "
        "the given weights; every other variant would have to be trained.",
        blocks=(Group(blocks=(chart,), notes=left_out, layout="wide"),),
    )


def _published(plan: Plan) -> Iterator[Section]:
    if plan.task == "causal" and plan.model.is_causal:
        size = nearest_size(model_parameters(plan.model).total)
        nearest_first = sorted(SIZES, key=lambda one: one != size)
        points = [compute_quality_points(one) for one in nearest_first]
        charts = tuple(
            Chart(
                draw=partial(quality_chart, one),
                caption=f"The papers’ {one.size} networks",
                table=quality_table(one),
            )
            for one in points
        )
        yield Section(
            key="published",
            title="Published quality",
            lead="These are the papers’ measurements of networks that were trained from scratch, "
            "not measurements of this model; the plan compares this model with the papers’ "
            f"{size} networks. The line joins the points on the frontier: no other point is better "
            "at the same or a smaller cache. A hollow point with the mark † is dominated by "
            "another point. A bar shows the range that the printed digits allow.",
            blocks=(
                Group(
                    blocks=charts,
                    notes=tuple(dict.fromkeys(text for one in points for text in one.caveats)),
                    layout="wide",
                    file="quality-against-cache",
                ),
            ),
        )


def _data(plan: Plan) -> dict[str, Any]:
    model, demand, answer = plan.model, plan.demand, plan.answer
    said: dict[str, Any] = {
        "model": model.name,
        "layers": plan.layers,
        "goal": "training" if plan.regime else "serving",
        "task": plan.task,
        "context": demand.context,
        "encoder_tokens": (
            model.count_encoder_tokens(demand.encoder_tokens, demand.context) or None
        ),
        "users": demand.users,
        "weights": demand.weights.name,
        "weight_bytes": weight_bytes(model, demand.weights),
        **pick(demand, "reserve price"),
        "device": pick(
            demand.device,
            "name title memory_bytes bandwidth_bytes_per_second flops_per_second_16_bit source",
        ),
    }
    if plan.regime:
        said |= pick(plan.regime, "precision checkpointing utilization")
    if (report := answer.savings) is not None:
        said["savings"] = {
            "cache_bytes_now": report.bytes_now,
            "methods": [
                {"certainty": "exact"}
                | pick(
                    saving,
                    "method layers bytes_now bytes_then model_bytes_then "
                    "share_of_layers share_of_model explanation price",
                )
                for saving in report.savings
            ],
            **pick(report, "already obstacles"),
            "lossy": [{"cache": name, "cache_bytes": held} for name, held in report.lossy],
        }
        said["engines"] = [
            pick(row, "engine cache_bytes_per_user=user_bytes users tokens remark")
            for row in answer.engines
        ]
        said["rows"] = [_served(row) for row in answer.rows]
    else:
        said["rows"] = [_trained(row) for row in answer.trained]
    advice = (*answer.summary, *answer.advice)
    return {**said, "advice": advice, "caveats": answer.caveats, "notes": plan.notes}


def _served(row: ServedVariant) -> dict[str, Any]:
    return {
        **pick(row, "variant=label original=is_original stored=saving"),
        "state_bytes_per_user": row.state_bytes,
        **pick(
            row.plan,
            "cache=cache.name lossy=cache.is_lossy cache_bytes_per_user=user_bytes fits "
            "users_per_replica users_per_device devices_per_replica devices price_per_month "
            "longest_context fills batch=step.batch moved_bytes_per_step=step.moved_bytes "
            "flops_per_byte=step.flops_per_byte tokens_per_second tokens_per_second_and_user bound",
        ),
        "quality": _quality(row.quality),
        **pick(row, "standing=status dominated_by"),
    }


def _trained(row: TrainedVariant) -> dict[str, Any]:
    return {
        **pick(row, "variant=label original=is_original"),
        "parameters": {"total": row.parameters},
        **pick(row.plan, "state_bytes sequence_bytes largest_batch macs_per_token"),
        **pick(row, "tokens_per_second=plan.tokens_per_second published_tokens_per_second"),
        "quality": _quality(row.quality),
    }


def _quality(quality: Quality | None) -> dict[str, Any] | None:
    if quality is None:
        return None
    return pick(quality, "variant size change_percent low high printed seeds source caveats")
