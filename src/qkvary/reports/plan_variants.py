"""What a plan says of its variants: the page and the terminal print the same tables and sentences.

Needs neither the page's environment nor a plotting library.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkvary.costs.exact_savings import Saving
from qkvary.literature.quality import Quality
from qkvary.literature.rounding import meant_decimals
from qkvary.planning.advice import ServedVariant
from qkvary.planning.plans import Plan, Regime, ServingAnswer
from qkvary.planning.training_advice import TrainedVariant
from qkvary.reports.tables import Cell, Column, Table, named, plain
from qkvary.text import names, numbers, units


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """What can be stored less with the weights as they are."""

    now: str
    """The cache as it is stored."""
    methods: tuple[tuple[str, str], ...]
    """What each saves, and what has to be known about it."""
    reasons: tuple[str, ...]
    """What is saved already, and why nothing more is."""
    lossy: str
    """What fewer bits would leave."""


def describe_savings(plan: Plan, answer: ServingAnswer) -> Savings:
    """Return in words what the weights as they are allow to save."""
    report, total = answer.savings, len(plan.model.layers)
    return Savings(
        now=f"{_size(report.bytes_now, plan)} of cache a user in {plan.formats[0].name}",
        methods=tuple(
            describe_saving(saving, total, decimal=plan.decimal) for saving in report.savings
        ),
        reasons=(*report.already, *report.obstacles),
        lossy=names.listed([f"{name} {_size(held, plan)}" for name, held in report.lossy]),
    )


def describe_saving(saving: Saving, total: int, *, decimal: bool) -> tuple[str, str]:
    """Return what a method saves, and what has to be known about it."""
    count = len(saving.layers)
    where = f"all {total} layers" if count == total else f"{count} of {total} layers"
    then = units.data_size(saving.model_bytes_then, decimal=decimal)
    saved = f"{numbers.percent(-saving.share_of_model)}"
    if count < total:
        saved += f", {numbers.percent(-saving.share_of_layers)} of those layers"
    exact = saving.certainty == "exact"
    certainty = "exact" if exact else f"possible, {saving.certainty}"
    return (
        f"{certainty}: {saving.method}, {where}: {then} a user ({saved})",
        f"{saving.explanation}; {saving.price}",
    )


def variants_table(plan: Plan, key: str) -> Table:
    """Return the table of a plan's variants, in serving or in training.

    Raises:
        ValueError: if a plan of training does not say how.
    """
    if isinstance(plan.answer, ServingAnswer):
        return serving_table(plan, plan.answer, key)
    if plan.regime is None:
        raise ValueError("expected a plan of training with its regime, got none")
    return training_table(plan.answer.rows, plan.regime, key, decimal=plan.decimal)


def serving_table(plan: Plan, answer: ServingAnswer, key: str) -> Table:
    """Return every variant in every format: what fits, what it costs, where it stands."""
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
        key=key,
        title="Variants of the model at this demand",
        columns=columns,
        rows=tuple(_serving_row(row, priced=priced, decimal=plan.decimal) for row in answer.rows),
        notes=tuple(_serving_notes(plan, answer)),
    )


def _serving_notes(plan: Plan, answer: ServingAnswer) -> Iterator[str]:
    device, made_for = plan.demand.device, plan.model.max_tokens
    limit = "" if made_for is None else f" (the model was made for {made_for:,})"
    yield "* the weights as they are; every other row would have to be trained."
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
    lossy = [*dict.fromkeys(row.cache.name for row in answer.rows if row.cache.is_lossy)]
    if lossy:
        yield f"Lossy, scales counted: {names.listed(lossy)}; to be measured."


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
            Column(key="published_tokens_per_second", title="published tokens/s"),
            Column(key="change_percent", title="published %", below="perplexity"),
        ),
        rows=tuple(_training_row(row, rows[0], decimal=decimal) for row in rows),
        notes=(
            (
                f"Precision: {regime.precision}; "
                f"{'each block computed again' if regime.checkpointing else 'activations kept'}, "
                f"at {numbers.share(regime.utilization)} of the matrix rate."
            ),
            (
                "Weights: with their optimizer; activations: of one sequence, of a fused softmax "
                "core and logits in 32 bits; sequences: beside weights and optimizer on one "
                "device; MACs: per token."
            ),
            (
                "Published tokens/s: paper 1's own machines and its 300M networks; published %: "
                "change of perplexity, and what its digits leave open."
            ),
        ),
    )


def change_cell(change: float, low: float, high: float) -> Cell:
    """Return a published change with the interval that its printed digits leave."""
    if low == high == 0:
        return plain(0.0, "baseline", tone="quiet")
    digits = meant_decimals(low, high)
    below = (numbers.interval(low, high, digits),)
    return Cell(raw=change, text=numbers.fixed(change, digits, sign=True), below=below)


def standing_cell(standing: str, above: Sequence[str]) -> Cell:
    """Return where a variant stands, with those that dominate it."""
    if not above:
        return plain(standing, tone="" if standing == "frontier" else "quiet")
    return Cell(raw=standing, text=standing, below=(f"by {names.listed(above)}",), tone="quiet")


def _serving_row(row: ServedVariant, *, priced: bool, decimal: bool) -> tuple[Cell, ...]:
    plan = row.plan
    users, together = plan.users_per_device, plan.devices_per_replica or 1
    return (
        named(row.name + (" *" if row.is_original else "")),
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
        standing_cell(row.standing, row.dominated_by),
    )


def _training_row(row: TrainedVariant, base: TrainedVariant, *, decimal: bool) -> tuple[Cell, ...]:
    plan, published = row.plan, row.published_tokens_per_second
    change = numbers.change(plan.macs_per_token, base.plan.macs_per_token)
    return (
        named(row.label + (" *" if row.is_original else "")),
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


def _size(amount: float, plan: Plan) -> str:
    return units.data_size(amount, decimal=plan.decimal)
