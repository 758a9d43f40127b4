"""The tables of a plan: every variant, and the values that its charts show."""

import math
from collections.abc import Iterator
from functools import partial

from qkvary.costs.serving import ServingPlan
from qkvary.planning.advice import ServedVariant
from qkvary.planning.curves import PublishedPoint, QualityPoints
from qkvary.planning.plans import Plan
from qkvary.planning.quality import Quality
from qkvary.reports.plan_charts import write_share
from qkvary.reports.tables import (
    Brief,
    Cell,
    Field,
    Table,
    Tone,
    label,
    look_up,
    named,
    number,
    plain,
    tabulate,
    word,
)
from qkvary.text import names, numbers
from qkvary.text.printed import useful_decimals


def quality_table(data: QualityPoints) -> Table:
    """Return the published points with their intervals."""
    return tabulate(
        f"quality-{data.size}",
        f"{data.size} networks: change in perplexity against cache size",
        data.points,
        label("variant"),
        number("cache_share=share", "cache", write_share, below="of QKV's"),
        number("perplexity", below="as printed"),
        number("change_percent=", "change", change_cell, below="% as published"),
        _STATUS,
    )


def serving_table(plan: Plan) -> Table:
    """Return every variant in every format: users, costs and frontier status."""
    size = numbers.data_size
    price = number(
        "price_per_month=plan.price_per_month", "price", numbers.money, below="per month"
    )
    most = plan.model.max_tokens or math.inf

    def longest(count: int | None) -> str:
        return f"{_whole_or('no limit', count)}{' †' if (count or math.inf) > most else ''}"

    speed = "tokens_per_second=plan.tokens_per_second"
    brief = "variant cache_bytes_per_user users_per_replica devices price_per_month change_percent"
    return tabulate(
        "variants",
        "Variants of the model for the requested users and tokens",
        plan.answer.rows,
        _variant("name"),
        word("cache=plan.cache.name", "format"),
        number("cache_bytes_per_user=plan.user_bytes", "cache", size, below="per user"),
        number("users_per_replica=plan", "users", _users, below="per replica"),
        number("devices=plan", "devices", _devices, below="in all"),
        *([] if plan.demand.price is None else [price]),
        number(
            "longest_context=plan.longest_context", "longest", longest, below="tokens of one user"
        ),
        number(speed, "tokens/s", numbers.compact, below="of one replica"),
        word("bound=plan.bound", "bound by"),
        _CHANGE,
        _STATUS,
        notes=_serving_notes(plan),
        main=True,
        brief=Brief(
            columns=tuple(brief.split()),
            rows=sum(row.cache == plan.formats[0] for row in plan.answer.rows),
        ),
    )


def _variant(path: str) -> Field:
    """Return the column of variant names, with a star for the given weights."""
    return word(
        "variant=",
        write=lambda row: named(look_up(row, path), mark=" *" if row.is_original else ""),
    )


def _whole_or(none: str, count: int | None) -> str:
    return none if count is None else numbers.whole(count)


def _users(plan: ServingPlan) -> Cell:
    users, together = plan.users_per_replica, plan.devices_per_replica or 1
    spread = f" on {together}" if together > 1 else ""
    return plain(users, f"{numbers.whole(users)}{spread}" if plan.fits else "none")


def _devices(plan: ServingPlan) -> Cell:
    return plain(plan.devices, _whole_or("none", plan.devices), "" if plan.fits else "warn")


def _serving_notes(plan: Plan) -> Iterator[str]:
    device, made_for = plan.demand.device, plan.model.max_tokens
    limit = ""
    if made_for is not None:
        limit = f"; † marks more than the {made_for:,} tokens that the model was made for"
    yield "A row marked * keeps the model's weights; other variants have to be trained."
    most = names.count(plan.demand.replica_sizes[-1], "device")
    yield (
        "The cache is given per user. “Users” is the number of users that one replica serves. A "
        f"replica may span several devices (at most {most}); “13 on 2” means 13 users on 2 "
        "devices. “Devices” is the number of devices needed for all users. “Longest” is the "
        f"longest context of a single user that fits into the memory of one replica{limit}."
    )
    if device.bandwidth_bytes_per_second is None:
        yield "To compute tokens/s, give the memory bandwidth of the device with --bandwidth."
    else:
        known = device.flops_per_second_16_bit is not None
        yield (
            "Tokens/s is the roofline (upper bound) of one replica with the users that it "
            f"serves.{'' if known else ' Only bandwidth is counted; --flops adds the arithmetic.'}"
        )
    yield (
        "“Change %” is the published change in perplexity relative to the variant with all heads "
        "and projections; both variants were trained from scratch. Beneath it is the range that "
        "the rounding of the published perplexities allows. If the published change does not "
        "follow from these perplexities, the recomputed change is given before the range. A dash "
        "means that nothing was published."
    )
    states = {row.name: row.state_bytes for row in plan.answer.rows if row.state_bytes}
    for name, held in states.items():
        size = numbers.data_size(held)
        yield (
            f"{name}: {size} of the cache per user is a state that does not grow with the context."
        )
    lossy = [*dict.fromkeys(row.cache.name for row in plan.answer.rows if row.cache.is_lossy)]
    if lossy:
        yield (
            f"These formats are lossy, so measure the quality: {names.listed(lossy)}. Sizes "
            "include the quantization scales."
        )


def engines_table(plan: Plan) -> Table:
    """Return the cache of one user in each engine, compared with the minimum."""
    least = plan.answer.engines[0].user_bytes

    def against(held: int | None) -> Cell:
        more = None if held is None or not least else held / least - 1
        return plain(more, numbers.MISSING if more is None else numbers.percent(more, sign=True))

    return tabulate(
        "engines",
        "The cache as engines allocate it",
        plan.answer.engines,
        label("engine"),
        number(
            "cache_bytes_per_user=user_bytes",
            "cache",
            numbers.data_size,
            below="per user",
        ),
        number("against_minimum=user_bytes", "more", against, below="than the minimum"),
        number("users", write=numbers.whole, below="per replica"),
        number("tokens", "in its log", numbers.whole, below="total tokens"),
        notes=(f"{row.engine}: {row.remark}." for row in plan.answer.engines[1:]),
        main=True,
    )


def training_table(plan: Plan) -> Table:
    """Return every variant: memory and throughput of training on one device."""
    rows, regime = plan.answer.trained, plan.regime
    if regime is None:
        raise ValueError("expected a training plan, got a serving plan")
    size = partial(numbers.data_size, digits=4)
    compact = partial(numbers.compact, digits=4)

    brief = "variant parameters state_bytes largest_batch macs_per_token change_percent"

    def macs(per_token: int) -> Cell:
        change = numbers.change(per_token, rows[0].plan.macs_per_token)
        below = () if change in {"", "="} else (f"({change})",)
        return Cell(raw=per_token, text=compact(per_token), below=below)

    return tabulate(
        "variants",
        "Training costs of the variants of the model",
        rows,
        _variant("label"),
        number("parameters", write=compact),
        number("state_bytes=plan.state_bytes", "weights", size, below="with optimizer"),
        number("sequence_bytes=plan.sequence_bytes", "activations", size, below="per sequence"),
        number("largest_batch=plan.largest_batch", "sequences", numbers.whole, below="per device"),
        number("macs_per_token=plan.macs_per_token", "MACs", macs, below="per token"),
        number(
            "tokens_per_second=plan.tokens_per_second",
            "tokens/s",
            numbers.compact,
            below="on one device",
        ),
        number("published_tokens_per_second", "published tokens/s", numbers.whole),
        _CHANGE,
        notes=(
            (
                f"The table assumes {regime.precision} precision, "
                f"{'recomputed blocks' if regime.checkpointing else 'stored activations'} and "
                f"{numbers.share(regime.utilization)} of the peak matmul rate."
            ),
            (
                "Weights include the optimizer state. The activations are those of one sequence, "
                "with a fused softmax core and 32-bit logits. “Sequences” is the number of "
                "sequences that fit on one device, next to the weights and the optimizer state. "
                "MACs are per token."
            ),
            (
                "Published tokens/s were measured by the authors with 300M networks. “Change %” is "
                "the published change in perplexity. Beneath it is the range that the rounding of "
                "the published perplexities allows."
            ),
        ),
        main=True,
        brief=Brief(columns=tuple(brief.split())),
    )


def change_cell(quality: Quality | PublishedPoint | None) -> Cell:
    """Return a published change as printed, and the interval that the printed perplexities allow.

    If the printed change does not agree with the printed perplexities, the change recomputed from
    the perplexities is written before the interval.
    """
    if quality is None:
        return plain(None)
    low, high = quality.low, quality.high
    if low == high == 0:
        return plain(0.0, "baseline", tone="quiet")
    interval = numbers.interval(low, high, useful_decimals(low, high))
    below = interval if quality.agrees else f"{quality.recomputed} {interval}"
    return Cell(raw=quality.change_percent, text=quality.printed.removesuffix(" %"), below=(below,))


def _status(row: ServedVariant | PublishedPoint) -> Cell:
    """Return the frontier status of a variant, with the variants that dominate it."""
    below = (f"by {names.listed(row.dominated_by)}",) if row.dominated_by else ()
    tone: Tone = "" if row.status == "frontier" and not below else "quiet"
    return Cell(raw=row.status, text=row.status, below=below, tone=tone)


_CHANGE = number("change_percent=quality", "change %", change_cell, below="published")
_STATUS = word("standing=", "status", _status)
