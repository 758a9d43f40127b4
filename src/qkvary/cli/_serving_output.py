"""How a serving plan is printed, and written as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkvary.cli._models import describe_layers
from qkvary.cli._output import fits, printable, table
from qkvary.cli._plans import Question
from qkvary.costs.decoding import weight_bytes
from qkvary.costs.devices import Device
from qkvary.costs.exact_savings import Saving, SavingsReport
from qkvary.costs.formats import Format
from qkvary.costs.macs import count_encoder_tokens
from qkvary.literature.quality import Quality
from qkvary.literature.rounding import meant_decimals
from qkvary.planning.advice import ServedVariant
from qkvary.planning.plans import ServingAnswer
from qkvary.text.names import count, listed
from qkvary.text.numbers import MISSING, compact, fixed, interval, money, share, whole
from qkvary.text.units import data_size


def print_head(screen: Console, question: Question, *, decimal: bool) -> None:
    """Say what is planned: model, device, load."""
    model, load, device = question.model, question.load, question.device
    screen.print(Text(printable(model.name), style="bold"))
    screen.print(Text(f"{len(model.layers)} layers: {describe_layers(model)}", style="dim"))
    weights = data_size(weight_bytes(model, question.weights), decimal=decimal)
    usable = data_size(question.demand.usable_bytes, decimal=decimal)
    room = (
        f"{device.title}: {data_size(device.memory_bytes, decimal=decimal)}, {usable} after the "
        f"reserve of {share(question.reserve)}"
    )
    users = count(load.users, "user")
    served = f"{users} of {question.context:,} tokens on {room}; weights {weights} in "
    screen.print(Text(room if question.trains else served + question.weights.name))


def print_savings(
    screen: Console, question: Question, *, report: SavingsReport, decimal: bool
) -> None:
    """Say what the weights as they are allow to save, exact methods first, lossy ones marked."""
    first = question.formats[0]
    screen.print(Text("\nWith the weights as they are", style="bold"))
    held = data_size(report.bytes_now, decimal=decimal)
    screen.print(Text(f"  now: {held} of cache a user in {first.name}"))
    for saving in report.savings:
        then = data_size(saving.model_bytes_then, decimal=decimal)
        where = _layers(saving, len(question.model.layers))
        saved = f"-{saving.share_of_model:.1%}"
        if len(saving.layers) < len(question.model.layers):
            saved += f"; -{saving.share_of_layers:.1%} of those layers"
        screen.print(Text(f"  {_certainty(saving)}: {saving.method}, {where}: {then} ({saved})"))
        screen.print(Text(f"    {saving.explanation}; {saving.price}", style="dim"))
    if not report.savings:
        screen.print(Text("  exact: nothing"))
    for sentence in (*report.already, *report.obstacles):
        screen.print(Text(f"    {sentence}", style="dim"))
    lossy = (f"{name} {data_size(held, decimal=decimal)}" for name, held in report.lossy)
    marked = "a user (scales counted); changes the function, to be measured"
    screen.print(Text(f"  lossy: {', '.join(lossy)} {marked}"))


def print_serving(
    screen: Console, question: Question, rows: Sequence[ServedVariant], *, decimal: bool
) -> None:
    """Print the table of variants and formats."""
    screen.print(Text("\nVariants (all but * would have to be trained)", style="bold"))
    tables = _tables(question, rows, decimal=decimal)
    if all(fits(screen, made) for _, made in tables):
        for form, made in tables:
            lossy = ", lossy" if form.is_lossy else ""
            screen.print(Text(f"cache in {form.name}{lossy}", style="italic"))
            screen.print(made)
        screen.print(Text(_legend(question), style="dim"))
        return
    for row in rows:
        screen.print(Text(f"{_label(row)}, {row.cache.name}", style="bold"))
        for name, value in _lines(row, question, decimal=decimal):
            screen.print(Text(f"  {name}: {value}"))


def _tables(
    question: Question, rows: Sequence[ServedVariant], *, decimal: bool
) -> list[tuple[Format, Table]]:
    """The rows of each format as a table."""
    priced = question.price is not None
    columns = [
        ("variant", "left"),
        ("per user", "right"),
        ("users", "right"),
        ("devices", "right"),
        *([("price", "right")] if priced else []),
        ("longest", "right"),
        ("tokens/s", "right"),
        ("bound", "left"),
        ("published %", "right"),
        ("standing", "left"),
    ]
    return [
        (
            form,
            table(
                columns,
                (_cells(row, priced=priced, decimal=decimal) for row in rows if row.cache == form),
            ),
        )
        for form in dict.fromkeys(row.cache for row in rows)
    ]


def _legend(question: Question) -> str:
    """What the columns mean."""
    speed = (
        "tokens/s: of one replica as full as this demand makes it, at the roofline"
        if question.device.bandwidth_bytes_per_second and question.device.flops_per_second_16_bit
        else "tokens/s: give --bandwidth and --flops of the device"
    )
    most, made_for = question.demand.replica_sizes[-1], question.model.max_tokens
    limit = "" if made_for is None else f" (the model was made for {made_for:,})"
    return (
        "users: on one device; devices: for all users, such as 8 by 2 where every 2 share a copy "
        f"of the model ({most} at most); longest: tokens of one user alone that one such copy has "
        f"memory for{limit}; {speed}; published: change of perplexity against all heads and "
        "projections, trained from scratch, and what its printed digits leave open"
    )


def serving_to_dict(answer: ServingAnswer) -> dict[str, Any]:
    """The answer as JSON-ready data."""
    report = answer.savings
    return {
        "savings": {
            "cache_bytes_now": report.bytes_now,
            "methods": [
                {
                    "method": saving.method,
                    "certainty": saving.certainty,
                    "layers": saving.layers,
                    "bytes_now": saving.bytes_now,
                    "bytes_then": saving.bytes_then,
                    "model_bytes_then": saving.model_bytes_then,
                    "share_of_layers": saving.share_of_layers,
                    "share_of_model": saving.share_of_model,
                    "explanation": saving.explanation,
                    "price": saving.price,
                }
                for saving in report.savings
            ],
            "already": report.already,
            "obstacles": report.obstacles,
            "lossy": [{"cache": name, "cache_bytes": held} for name, held in report.lossy],
        },
        "rows": [_row_to_dict(row) for row in answer.rows],
        "advice": answer.advice,
        "caveats": answer.caveats,
    }


def question_to_dict(question: Question) -> dict[str, Any]:
    """What was asked, as JSON-ready data."""
    model, load = question.model, question.load
    return {
        "model": model.name,
        "layers": describe_layers(model),
        "goal": "training" if question.trains else "serving",
        "task": load.task,
        "context": question.context,
        "encoder_tokens": (
            count_encoder_tokens(model, load.encoder_tokens, question.context) or None
        ),
        "users": load.users,
        "weights": question.weights.name,
        "weight_bytes": weight_bytes(model, question.weights),
        "reserve": question.reserve,
        "price": question.price,
        "device": device_to_dict(question.device),
        **(_regime_to_dict(question) if question.trains else {}),
    }


def _regime_to_dict(question: Question) -> dict[str, Any]:
    return {
        "precision": question.purpose.precision,
        "checkpointing": question.purpose.checkpointing,
        "utilization": question.utilization,
    }


def device_to_dict(device: Device) -> dict[str, Any]:
    """A device as JSON-ready data."""
    return {
        "name": device.name,
        "title": device.title,
        "memory_bytes": device.memory_bytes,
        "bandwidth_bytes_per_second": device.bandwidth_bytes_per_second,
        "flops_per_second_16_bit": device.flops_per_second_16_bit,
        "source": device.source,
    }


def quality_to_dict(quality: Quality | None) -> dict[str, Any] | None:
    """A published change as JSON-ready data."""
    if quality is None:
        return None
    return {
        "variant": quality.variant,
        "size": quality.size,
        "change_percent": quality.change_percent,
        "low": quality.low,
        "high": quality.high,
        "printed": quality.printed,
        "seeds": quality.seeds,
        "source": quality.source,
        "caveats": quality.caveats,
    }


def describe_change(quality: Quality | None) -> str:
    """A published change with the interval that its printed digits leave."""
    if quality is None:
        return MISSING
    if quality.low == quality.high == 0:
        return "baseline"
    digits = meant_decimals(quality.low, quality.high)
    change = fixed(quality.change_percent, digits, sign=True)
    return f"{change} {interval(quality.low, quality.high, digits)}"


def _certainty(saving: Saving) -> str:
    return saving.certainty if saving.certainty == "exact" else f"possible, {saving.certainty}"


def _layers(saving: Saving, total: int) -> str:
    count = len(saving.layers)
    return f"all {total} layers" if count == total else f"{count} of {total} layers"


def _label(row: ServedVariant) -> str:
    return row.name + (" *" if row.is_original else "")


def _cells(row: ServedVariant, *, priced: bool, decimal: bool) -> list[str]:
    plan = row.plan
    cells = [_label(row), data_size(plan.user_bytes, decimal=decimal), _users(row)]
    cells.append(_devices(row))
    if priced:
        cells.append(money(plan.price_per_month))
    cells.append(_longest(row))
    cells.append(compact(plan.tokens_per_second))
    cells.append(plan.bound or MISSING)
    return [*cells, describe_change(row.quality), _standing(row)]


def _lines(row: ServedVariant, question: Question, *, decimal: bool) -> Iterator[tuple[str, str]]:
    plan = row.plan
    yield "cache per user", data_size(plan.user_bytes, decimal=decimal)
    yield "users per device", _users(row)
    yield "devices", _devices(row)
    if question.price is not None:
        yield "price per month", money(plan.price_per_month)
    yield "longest context of one user", _longest(row)
    yield (
        "tokens/s at the roofline",
        f"{compact(plan.tokens_per_second)} ({plan.bound or MISSING})",
    )
    yield "published change", f"{describe_change(row.quality)}, {_standing(row)}"


def _longest(row: ServedVariant) -> str:
    longest = row.plan.longest_context
    return "no limit" if longest is None else whole(longest)


def _devices(row: ServedVariant) -> str:
    plan = row.plan
    if plan.devices is None:
        return "none"
    together = plan.devices_per_replica or 1
    return f"{plan.devices:,}" + (f" by {together}" if together > 1 else "")


def _users(row: ServedVariant) -> str:
    users = row.plan.users_per_device
    if not row.plan.fits:
        return "none"
    return f"{users:,.0f}" if users >= 100 or users % 1 == 0 else f"{users:,.3g}"


def _standing(row: ServedVariant) -> str:
    return f"dominated by {listed(row.dominated_by)}" if row.dominated_by else row.standing


def _row_to_dict(row: ServedVariant) -> dict[str, Any]:
    plan, step = row.plan, row.plan.step
    return {
        "variant": row.label,
        "original": row.is_original,
        "stored": row.saving,
        "cache": plan.cache.name,
        "lossy": plan.cache.is_lossy,
        "cache_bytes_per_user": plan.user_bytes,
        "fits": plan.fits,
        "users_per_replica": plan.users_per_replica,
        "users_per_device": plan.users_per_device,
        "devices_per_replica": plan.devices_per_replica,
        "devices": plan.devices,
        "price_per_month": plan.price_per_month,
        "longest_context": plan.longest_context,
        "fills": plan.fills,
        "batch": None if step is None else step.batch,
        "moved_bytes_per_step": None if step is None else step.moved_bytes,
        "flops_per_byte": None if step is None else step.flops_per_byte,
        "tokens_per_second": plan.tokens_per_second,
        "tokens_per_second_and_user": plan.tokens_per_second_and_user,
        "bound": plan.bound,
        "quality": quality_to_dict(row.quality),
        "standing": row.standing,
        "dominated_by": row.dominated_by,
    }
