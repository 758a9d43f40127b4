"""How a serving plan is printed, and written as JSON."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from qkvary.cli._models import describe_layers
from qkvary.cli._output import printable
from qkvary.cli._plans import Question
from qkvary.cli._tables import print_table
from qkvary.costs.decoding import weight_bytes
from qkvary.costs.devices import Device
from qkvary.costs.formats import Format
from qkvary.costs.macs import count_encoder_tokens
from qkvary.literature.quality import Quality
from qkvary.planning.advice import ServedVariant
from qkvary.planning.plans import ServingAnswer
from qkvary.reports.plan_variants import Savings
from qkvary.reports.tables import Table
from qkvary.text.names import count
from qkvary.text.numbers import share
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


def print_savings(screen: Console, savings: Savings) -> None:
    """Say what the weights as they are allow to save, exact methods first, lossy ones marked."""
    screen.print(Text("\nWith the weights as they are", style="bold"))
    screen.print(Text(f"  now: {savings.now}"))
    for saved, explanation in savings.methods:
        screen.print(Text(f"  {saved}"))
        screen.print(Text(f"    {explanation}", style="dim"))
    if not savings.methods:
        screen.print(Text("  exact: nothing"))
    for sentence in savings.reasons:
        screen.print(Text(f"    {sentence}", style="dim"))
    marked = "a user (scales counted); changes the function, to be measured"
    screen.print(Text(f"  lossy: {savings.lossy} {marked}"))


def print_serving(screen: Console, variants: Table, formats: Sequence[Format]) -> None:
    """Print the table of variants, each format by itself."""
    screen.print(Text("\nVariants (all but * would have to be trained)", style="bold"))
    place = [column.key for column in variants.columns].index("cache")
    for form in formats:
        lossy = ", lossy" if form.is_lossy else ""
        screen.print(Text(f"cache in {form.name}{lossy}", style="italic"))
        part = dataclasses.replace(
            variants,
            columns=variants.columns[:place] + variants.columns[place + 1 :],
            rows=tuple(
                row[:place] + row[place + 1 :]
                for row in variants.rows
                if row[place].raw == form.name
            ),
            notes=variants.notes if form == formats[-1] else (),
        )
        print_table(screen, part)


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
