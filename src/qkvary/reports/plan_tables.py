"""The tables of a plan's page: what the terminal prints, and the figures behind the pictures."""

from collections.abc import Sequence

from qkvary.costs.exact_savings import Saving
from qkvary.literature.quality import Quality
from qkvary.literature.rounding import meant_decimals
from qkvary.planning.advice import ServedVariant
from qkvary.planning.pictures import (
    REAL_RANGE,
    CachePicture,
    QualityPicture,
    UsersPicture,
)
from qkvary.planning.plans import Plan, Regime, ServingAnswer
from qkvary.planning.training_advice import TrainedVariant
from qkvary.reports.plan_charts import write_share
from qkvary.reports.tables import Cell, Column, Table, named, plain
from qkvary.text import names, numbers, units

MOST_COLUMNS = 7
"""Places of an axis that a table shows."""


def serving_table(plan: Plan, answer: ServingAnswer, key: str) -> Table:
    """Return every variant in every format: what fits, what it costs, where it stands."""
    priced = plan.demand.price is not None
    columns = (
        Column(key="variant", title="variant", numeric=False),
        Column(key="cache", title="cache", numeric=False),
        Column(key="cache_bytes_per_user", title="cache", below="per user"),
        Column(key="users_per_device", title="users", below="per device"),
        Column(key="devices", title="devices", below="for all users"),
        *([Column(key="price_per_month", title="price", below="per month")] if priced else []),
        Column(key="longest_context", title="longest", below="tokens of one user"),
        Column(key="tokens_per_second", title="tokens/s", below="of one replica"),
        Column(key="bound", title="bound by", numeric=False),
        Column(key="change_percent", title="published", below="% perplexity"),
        Column(key="standing", title="standing", numeric=False),
    )
    notes = [
        (
            "* the weights as they are; every other row would have to be trained. Longest: of one "
            "user alone on one replica. Tokens/s: the roofline of one replica as full as this "
            "demand makes it, which no engine exceeds."
        ),
        (
            "Published: change of perplexity against all heads and projections, trained from "
            "scratch, with what the printed digits leave open; a dash where nothing was published."
        ),
    ]
    if any(row.cache.is_lossy for row in answer.rows):
        lossy = [*dict.fromkeys(row.cache.name for row in answer.rows if row.cache.is_lossy)]
        notes.append(f"Lossy, scales counted: {names.listed(lossy)}; to be measured.")
    return Table(
        key=key,
        title="Variants of the model at this demand",
        columns=columns,
        rows=tuple(_serving_row(row, priced=priced, decimal=plan.decimal) for row in answer.rows),
        notes=tuple(notes),
    )


def training_table(
    rows: Sequence[TrainedVariant], regime: Regime, key: str, *, decimal: bool
) -> Table:
    """Return every variant: memory and throughput of training on one device."""
    return Table(
        key=key,
        title="Variants of the model in training",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key="parameters", title="parameters"),
            Column(key="state_bytes", title="weights", below="with optimizer"),
            Column(key="sequence_bytes", title="activations", below="per sequence"),
            Column(key="largest_batch", title="sequences", below="on one device"),
            Column(key="macs_per_token", title="MACs", below="per token"),
            Column(key="tokens_per_second", title="tokens/s", below="on one device"),
            Column(key="published_tokens_per_second", title="tokens/s", below="published"),
            Column(key="change_percent", title="published", below="% perplexity"),
        ),
        rows=tuple(_training_row(row, decimal=decimal) for row in rows),
        notes=(
            (
                f"Precision: {regime.precision}; "
                f"{'each block computed again' if regime.checkpointing else 'activations kept'}, "
                f"at {numbers.share(regime.utilization)} of the matrix rate. Published "
                "tokens/s: paper 1's own machines and its 300M networks."
            ),
        ),
    )


def cache_table(picture: CachePicture, key: str, *, decimal: bool) -> Table:
    """Return the cache of one user at some contexts, the one that was asked for among them."""
    places = _thin(picture.low, picture.high, (picture.context, picture.max_tokens))
    notes = [
        (
            f"Stored in {picture.form.name}; the most that is kept on the way to that many tokens. "
            "Both axes of the picture are logarithmic; a window bends a line where it is full."
        )
    ]
    if picture.left_out:
        notes.append(f"Without a cache: {names.listed(picture.left_out)}.")
    return Table(
        key=key,
        title="Cache of one user",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            *(
                Column(key=f"bytes_at_{tokens}", title=units.tokens(tokens), below="tokens")
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
            for curve in picture.curves
            for held in (dict(curve.points),)
            for name in curve.names
        ),
        notes=tuple(notes),
    )


def users_table(picture: UsersPicture, key: str, *, decimal: bool) -> Table:
    """Return the users of one device at some amounts of memory, the plan's device among them."""
    places = _thin(picture.low, picture.high, (picture.memory_bytes,))
    notes = [
        (
            f"One copy of the model on one device, {numbers.share(picture.reserve)} of its "
            f"memory left alone, the cache in {picture.form.name}. The plan's table spreads a copy "
            "over several devices where that takes fewer in all."
        )
    ]
    if picture.left_out:
        notes.append(f"Not in the picture: {names.listed(picture.left_out)}.")
    return Table(
        key=key,
        title=f"Users of {picture.context:,} tokens on one device",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            *(
                Column(
                    key=f"users_at_{place:.0f}",
                    title=units.data_size(place, decimal=decimal),
                    below="this device" if place == picture.memory_bytes else "memory",
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
                picture.curves, zip(*map(picture.users_at, places), strict=True), strict=True
            )
            for name in curve.names
        ),
        notes=tuple(notes),
    )


def quality_table(picture: QualityPicture, key: str) -> Table:
    """Return the published points with their intervals and the estimate per real token."""
    most, fewest = (numbers.percent(share, 0) for share in REAL_RANGE)
    return Table(
        key=key,
        title=f"{picture.size} networks: change of perplexity against cache",
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
                _change_cell(point.change_percent, point.low, point.high),
                plain(
                    point.real_low,
                    numbers.MISSING
                    if point.real_low == point.real_high
                    else f"{numbers.fixed(point.real_low, 1, sign=True)} to "
                    f"{numbers.fixed(point.real_high, 1, sign=True)}",
                ),
                _standing_cell(point.status, point.dominated_by),
            )
            for point in picture.points
        ),
        notes=(
            (
                f"The estimate assumes that {fewest} to {most} of the positions are real tokens "
                "and that padding costs nothing."
            ),
        ),
    )


def describe_saving(saving: Saving, total: int, *, decimal: bool) -> tuple[str, str]:
    """Return what a method saves, and what has to be known about it."""
    count = len(saving.layers)
    where = f"all {total} layers" if count == total else f"{count} of {total} layers"
    sure = saving.certainty == "exact"
    then = units.data_size(saving.model_bytes_then, decimal=decimal)
    saved = f"{numbers.percent(-saving.share_of_model)}"
    if count < total:
        saved += f", {numbers.percent(-saving.share_of_layers)} of those layers"
    certainty = "exact" if sure else f"possible, {saving.certainty}"
    return (
        f"{certainty}: {saving.method}, {where}: {then} a user ({saved})",
        f"{saving.explanation}; {saving.price}",
    )


def _serving_row(row: ServedVariant, *, priced: bool, decimal: bool) -> tuple[Cell, ...]:
    plan = row.plan
    users, together = plan.users_per_device, plan.devices_per_replica or 1
    devices = None if plan.devices is None else f"{plan.devices:,}"
    longest = "no limit" if plan.longest_context is None else numbers.whole(plan.longest_context)
    return (
        named(row.name + (" *" if row.is_original else "")),
        plain(plan.cache.name),
        plain(plan.user_bytes, units.data_size(plan.user_bytes, decimal=decimal)),
        plain(users, f"{users:,.4g}" if plan.fits and users < 1000 else _whole(users, plan.fits)),
        Cell(
            raw=plan.devices,
            text=devices or "none",
            below=(f"{together} together",) if together > 1 else (),
            tone="" if plan.fits else "warn",
        ),
        *([plain(plan.price_per_month, numbers.money(plan.price_per_month))] if priced else []),
        plain(plan.longest_context, longest),
        plain(plan.tokens_per_second, numbers.compact(plan.tokens_per_second)),
        plain(plan.bound),
        _quality_cell(row.quality),
        _standing_cell(row.standing, row.dominated_by),
    )


def _whole(users: float, fits: bool) -> str:
    return numbers.whole(users) if fits else "none"


def _training_row(row: TrainedVariant, *, decimal: bool) -> tuple[Cell, ...]:
    plan = row.plan
    return (
        named(row.label + (" *" if row.is_original else "")),
        plain(row.parameters, numbers.compact(row.parameters)),
        plain(plan.state_bytes, units.data_size(plan.state_bytes, decimal=decimal)),
        plain(plan.sequence_bytes, units.data_size(plan.sequence_bytes, decimal=decimal)),
        plain(plan.largest_batch, numbers.whole(plan.largest_batch)),
        plain(plan.macs_per_token, numbers.compact(plan.macs_per_token)),
        plain(plan.tokens_per_second, numbers.compact(plan.tokens_per_second)),
        plain(
            row.published_tokens_per_second,
            None
            if row.published_tokens_per_second is None
            else numbers.whole(row.published_tokens_per_second),
        ),
        _quality_cell(row.quality),
    )


def _quality_cell(quality: Quality | None) -> Cell:
    if quality is None:
        return plain(None)
    return _change_cell(quality.change_percent, quality.low, quality.high)


def _change_cell(change: float, low: float, high: float) -> Cell:
    if low == high == 0:
        return plain(0.0, "baseline", tone="quiet")
    digits = meant_decimals(low, high)
    interval = f"[{numbers.fixed(low, digits)}, {numbers.fixed(high, digits)}]"
    return Cell(raw=change, text=numbers.fixed(change, digits, sign=True), below=(interval,))


def _standing_cell(standing: str, above: Sequence[str]) -> Cell:
    if not above:
        return plain(standing, tone="" if standing == "frontier" else "quiet")
    return Cell(raw=standing, text=standing, below=(f"by {names.listed(above)}",), tone="quiet")


def _thin(low: float, high: float, wanted: Sequence[int | None]) -> list[float]:
    """Powers of two along an axis, few enough for a table, and what was asked for."""
    first, last = round(low).bit_length() - 1, round(high).bit_length() - 1
    kept = sorted({value for value in wanted if value is not None and low <= value <= high})
    room = max(2, MOST_COLUMNS - len(kept))
    every = max(1, -(-(last - first) // (room - 1)))
    regular = {2**power for power in range(last, first - 1, -every)}
    return sorted({float(value) for value in (*kept, *regular)})
