"""The tables of a plan: every variant, and the figures behind its charts."""

from collections.abc import Iterator, Sequence

from qkvary.literature.quality import Quality
from qkvary.literature.rounding import useful_decimals
from qkvary.planning.advice import ServedVariant
from qkvary.planning.curves import (
    REAL_RANGE,
    CacheCurves,
    QualityPoints,
    UserCurves,
)
from qkvary.planning.plans import Plan, Regime, ServingAnswer
from qkvary.planning.training_advice import TrainedVariant
from qkvary.reports.plan_charts import write_share
from qkvary.reports.tables import Cell, Column, Table, named, plain
from qkvary.text import names, numbers, units

MOST_COLUMNS = 7
"""The maximum number of columns of an axis."""


def cache_table(data: CacheCurves, *, decimal: bool) -> Table:
    """Return the cache of one user at some contexts, including the requested one."""
    places = _thin(data.low, data.high, (data.context, data.max_tokens))
    notes = [
        (
            f"Stored in {data.cache.name}; the peak up to that many tokens. "
            "Both axes of the chart are logarithmic; a window bends a line where it is full."
        )
    ]
    if data.left_out:
        notes.append(f"Without a cache: {names.listed(data.left_out)}.")
    return Table(
        key="cache",
        title="Cache of one user",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            *(
                Column(key=f"bytes_at_{tokens:.0f}", title=units.tokens(tokens), below="tokens")
                for tokens in places
            ),
        ),
        rows=tuple(
            (
                named(name),
                *(
                    plain(held[place], units.data_size(held[place], decimal=decimal))
                    for place in places
                ),
            )
            for curve in data.curves
            for held in (dict(curve.points),)
            for name in curve.names
        ),
        notes=tuple(notes),
    )


def users_table(data: UserCurves, *, decimal: bool) -> Table:
    """Return the users of one device at some amounts of memory, including the plan's."""
    places = _thin(data.low, data.high, (data.memory_bytes,))
    notes = [
        (
            f"One copy of the model on one device, {numbers.share(data.reserve)} of its "
            f"memory kept free, the cache in {data.cache.name}. The plan's table spreads a copy "
            "over several devices if that needs fewer in all."
        )
    ]
    if data.left_out:
        notes.append(f"Not in the chart: {names.listed(data.left_out)}.")
    return Table(
        key="users",
        title=f"Users of {data.context:,} tokens on one device",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            *(
                Column(
                    key=f"users_at_{place:.0f}",
                    title=units.data_size(place, decimal=decimal),
                    below="this device" if place == data.memory_bytes else "memory",
                )
                for place in places
            ),
        ),
        rows=tuple(
            (
                named(name),
                *(plain(own, numbers.whole(own) if own else "none") for own in users),
            )
            for curve, users in zip(
                data.curves, zip(*map(data.users_at, places), strict=True), strict=True
            )
            for name in curve.names
        ),
        notes=tuple(notes),
    )


def quality_table(data: QualityPoints) -> Table:
    """Return the published points with their intervals and the estimate per real token."""
    most, fewest = (numbers.percent(share, 0) for share in REAL_RANGE)
    return Table(
        key=f"quality-{data.size}",
        title=f"{data.size} networks: change of perplexity against cache",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key="cache_share", title="cache", below="of QKV's"),
            Column(key="perplexity", title="perplexity", below="as printed"),
            Column(key="change_percent", title="change", below="% as published"),
            Column(key="estimate_percent", title="change", below="% per real token, estimate"),
            Column(key="standing", title="standing", numeric=False),
        ),
        rows=tuple(
            (
                named(point.variant),
                plain(point.share, write_share(point.share)),
                plain(point.perplexity),
                change_cell(point.change_percent, point.low, point.high),
                plain(
                    point.real_low,
                    numbers.MISSING
                    if point.real_low == point.real_high
                    else f"{numbers.fixed(point.real_low, 1, sign=True)} to "
                    f"{numbers.fixed(point.real_high, 1, sign=True)}",
                ),
                status_cell(point.status, point.dominated_by),
            )
            for point in data.points
        ),
        notes=(
            (
                f"The estimate assumes that {fewest} to {most} of the positions are real tokens "
                "and that padding costs nothing."
            ),
        ),
    )


def _thin(low: float, high: float, wanted: Sequence[int | None]) -> list[float]:
    """Return powers of two along an axis, few enough for a table, and the requested value."""
    first, last = round(low).bit_length() - 1, round(high).bit_length() - 1
    kept = sorted({value for value in wanted if value is not None and low <= value <= high})
    room = max(2, MOST_COLUMNS - len(kept))
    every = max(1, -(-(last - first) // (room - 1)))
    regular = {2**power for power in range(last, first - 1, -every)}
    return sorted({float(value) for value in (*kept, *regular)})


def variants_table(plan: Plan) -> Table:
    """Return the table of a plan's variants, in serving or in training.

    Raises:
        ValueError: if a plan of training has no regime.
    """
    if isinstance(plan.answer, ServingAnswer):
        return serving_table(plan, plan.answer)
    if plan.regime is None:
        raise ValueError("expected a plan of training with its regime, got none")
    return training_table(plan.answer.rows, plan.regime, decimal=plan.decimal)


def serving_table(plan: Plan, answer: ServingAnswer) -> Table:
    """Return every variant in every format: users, costs and frontier status."""
    priced = plan.demand.price is not None
    columns = (
        Column(key="variant", title="variant", numeric=False),
        Column(key="cache", title="format", numeric=False),
        Column(key="cache_bytes_per_user", title="cache", below="per user"),
        Column(key="users_per_device", title="users", below="per device"),
        Column(key="devices", title="devices", below="for all users"),
        *([Column(key="price_per_month", title="price", below="per month")] if priced else []),
        Column(key="longest_context", title="longest", below="tokens of one user"),
        Column(key="tokens_per_second", title="tokens/s", below="of one replica"),
        Column(key="bound", title="bound by", numeric=False),
        Column(key="change_percent", title="published %", below="perplexity"),
        Column(key="standing", title="standing", numeric=False),
    )
    return Table(
        key="variants",
        title="Variants of the model at this demand",
        columns=columns,
        rows=tuple(_serving_row(row, priced=priced, decimal=plan.decimal) for row in answer.rows),
        notes=tuple(_serving_notes(plan, answer)),
    )


def _serving_notes(plan: Plan, answer: ServingAnswer) -> Iterator[str]:
    device, made_for = plan.demand.device, plan.model.max_tokens
    limit = "" if made_for is None else f" (the model was made for {made_for:,})"
    yield "* the given weights; every other row would have to be trained."
    yield (
        "Cache: of one user; users: on one device; devices: for all users, such as 8 by 2 where "
        f"every 2 share a copy of the model ({plan.demand.replica_sizes[-1]} at most); longest: "
        f"tokens of one user alone that one such copy has memory for{limit}."
    )
    if device.bandwidth_bytes_per_second and device.flops_per_second_16_bit:
        yield (
            "Tokens/s: the roofline of one replica as full as this demand makes it, which no "
            "engine exceeds."
        )
    else:
        yield "Tokens/s: give --bandwidth and --flops of the device."
    yield (
        "Published: change of perplexity against all heads and projections, trained from scratch, "
        "with what the printed digits leave open; a dash where nothing was published."
    )
    states = {row.name: row.state_bytes for row in answer.rows if row.state_bytes}
    for name, held in states.items():
        size = units.data_size(held, decimal=plan.decimal)
        yield f"{name}: {size} per user are a state that does not grow with the context."
    lossy = [*dict.fromkeys(row.cache.name for row in answer.rows if row.cache.is_lossy)]
    if lossy:
        yield f"Lossy, scales counted: {names.listed(lossy)}; to be measured."


def training_table(rows: Sequence[TrainedVariant], regime: Regime, *, decimal: bool) -> Table:
    """Return every variant: memory and throughput of training on one device."""
    return Table(
        key="variants",
        title="Variants of the model in training",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key="parameters", title="parameters"),
            Column(key="state_bytes", title="weights", below="with optimizer"),
            Column(key="sequence_bytes", title="activations", below="per sequence"),
            Column(key="largest_batch", title="sequences", below="on one device"),
            Column(key="macs_per_token", title="MACs", below="per token"),
            Column(key="tokens_per_second", title="tokens/s", below="on one device"),
            Column(key="published_tokens_per_second", title="published tokens/s"),
            Column(key="change_percent", title="published %", below="perplexity"),
        ),
        rows=tuple(_training_row(row, rows[0], decimal=decimal) for row in rows),
        notes=(
            (
                f"Precision: {regime.precision}; "
                f"{'each block recomputed' if regime.checkpointing else 'activations stored'}, "
                f"at {numbers.share(regime.utilization)} of the matrix rate."
            ),
            (
                "Weights: with their optimizer; activations: of one sequence, of a fused softmax "
                "core and logits in 32 bits; sequences: with weights and optimizer on one "
                "device; MACs: per token."
            ),
            (
                "Published tokens/s: paper 1's own machines and its 300M networks; published %: "
                "change of perplexity, and what its digits leave open."
            ),
        ),
    )


def change_cell(change: float, low: float, high: float) -> Cell:
    """Return a published change with the interval of its printed digits."""
    if low == high == 0:
        return plain(0.0, "baseline", tone="quiet")
    digits = useful_decimals(low, high)
    below = (numbers.interval(low, high, digits),)
    return Cell(raw=change, text=numbers.fixed(change, digits, sign=True), below=below)


def status_cell(status: str, above: Sequence[str]) -> Cell:
    """Return the frontier status of a variant, with those that dominate it."""
    if not above:
        return plain(status, tone="" if status == "frontier" else "quiet")
    return Cell(raw=status, text=status, below=(f"by {names.listed(above)}",), tone="quiet")


def _serving_row(row: ServedVariant, *, priced: bool, decimal: bool) -> tuple[Cell, ...]:
    plan = row.plan
    users, together = plan.users_per_device, plan.devices_per_replica or 1
    return (
        named(row.name, mark=" *" if row.is_original else ""),
        plain(plan.cache.name),
        plain(plan.user_bytes, units.data_size(plan.user_bytes, decimal=decimal)),
        plain(users, numbers.trim(numbers.real(users, 4)) if plan.fits else "none"),
        Cell(
            raw=plan.devices,
            text="none" if plan.devices is None else numbers.whole(plan.devices),
            below=(f"by {together}",) if plan.devices is not None and together > 1 else (),
            tone="" if plan.fits else "warn",
        ),
        *([plain(plan.price_per_month, numbers.money(plan.price_per_month))] if priced else []),
        plain(
            plan.longest_context,
            "no limit" if plan.longest_context is None else numbers.whole(plan.longest_context),
        ),
        plain(plan.tokens_per_second, numbers.compact(plan.tokens_per_second)),
        plain(plan.bound),
        _quality_cell(row.quality),
        status_cell(row.status, row.dominated_by),
    )


def _training_row(row: TrainedVariant, base: TrainedVariant, *, decimal: bool) -> tuple[Cell, ...]:
    plan, published = row.plan, row.published_tokens_per_second
    change = numbers.change(plan.macs_per_token, base.plan.macs_per_token)
    return (
        named(row.label, mark=" *" if row.is_original else ""),
        plain(row.parameters, numbers.compact(row.parameters, 4)),
        plain(plan.state_bytes, units.data_size(plan.state_bytes, 4, decimal=decimal)),
        plain(plan.sequence_bytes, units.data_size(plan.sequence_bytes, 4, decimal=decimal)),
        plain(plan.largest_batch, numbers.whole(plan.largest_batch)),
        Cell(
            raw=plan.macs_per_token,
            text=numbers.compact(plan.macs_per_token, 4),
            below=() if change in {"", "="} else (f"({change})",),
        ),
        plain(plan.tokens_per_second, numbers.compact(plan.tokens_per_second)),
        plain(published, numbers.whole(published)),
        _quality_cell(row.quality),
    )


def _quality_cell(quality: Quality | None) -> Cell:
    if quality is None:
        return plain(None)
    return change_cell(quality.change_percent, quality.low, quality.high)
