"""The report of a smaller cache: the loss after each stage, what it saves, and each layer."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from qkvary.arch.labels import format_label
from qkvary.conversions.caches.budget import layer_bytes, network_bytes
from qkvary.conversions.caches.forms import count_numbers
from qkvary.conversions.caches.stages import SmallerCache, Stage
from qkvary.costs.network import network_costs
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Brief, Table, label, number, plain, tabulate, word
from qkvary.text import numbers, units

MOST_LAYERS = 6
"""Maximum number of runs of equal layers that the terminal lists by default."""


def describe_stage(stage: Stage, first: Stage) -> str:
    """Return a stage as a sentence.

    Args:
        stage: The stage.
        first: The unchanged network.
    """
    if stage is first:
        return f"{stage.name}: loss {stage.loss:.4f} nats a token on the held-out text"
    seconds = stage.cpu_seconds
    took = f", {units.duration(seconds, 2)} of CPU time" if seconds else ""
    return (
        f"{stage.name}: loss {stage.loss:.4f} ({stage.loss - first.loss:+.4f}), divergence "
        f"{stage.divergence:.4f}{took}"
    )


def smaller_cache_report(made: SmallerCache, checkpoint: str) -> Report:
    """Return the report of a conversion, or of its forecast.

    Args:
        made: The conversion.
        checkpoint: The name of the checkpoint.
    """
    tables = (_stages(made), _costs(made), _layers(made))
    return Report(
        subject=f"smaller cache: {checkpoint}",
        question=(
            f"What does {made.plan.method} at {made.share:.0%} of the cache make of {checkpoint}?"
        ),
        lead=_lead(made),
        sections=(Section(key="conversion", title="Conversion", blocks=tables, brief=True),),
        caveats=tuple(_caveats(made)),
        data=_data(made, checkpoint),
    )


def _lead(made: SmallerCache) -> str:
    found = made.forecast
    if made.layers or found is None:
        last, first = made.stages[-1], made.stages[0]
        return f"{made.statement}; the loss is {last.loss - first.loss:+.4f} nats a token"
    seconds = units.duration(made.seconds or 0.0, 2)
    return (
        f"{made.statement}; forecast: up to {found.divergence:+.4f} nats a token before the refit, "
        f"{seconds} of CPU time; nothing was converted"
    )


def _caveats(made: SmallerCache) -> Iterator[str]:
    yield (
        f"losses are of {made.held_out_tokens:,} tokens that the conversion did not read; it was "
        f"fitted to {made.fitted_tokens:,}"
    )


def _stages(made: SmallerCache) -> Table:
    first = made.stages[0]
    rows = [{"stage": one, "change": one.loss - first.loss} for one in made.stages]
    return tabulate(
        "stages",
        f"Loss on {made.held_out_tokens:,} held-out tokens",
        rows,
        word("stage=stage.name"),
        number("loss=stage.loss", write=lambda loss: plain(loss, f"{loss:.4f}")),
        number("change", write=lambda change: plain(change, f"{change:+.4f}")),
        number("divergence=stage.divergence", write=lambda found: plain(found, f"{found:.4f}")),
        number(
            "cpu_seconds=stage.cpu_seconds",
            "CPU time",
            lambda seconds: plain(seconds, units.duration(seconds, 2) if seconds else "-"),
        ),
        notes=["Nats a token; divergence is KL(as it is || stage)."],
    )


def _costs(made: SmallerCache) -> Table:
    stored_as = made.plan.budget.stored_as
    rows = [
        {"network": name, "costs": network_costs(config), "bytes": network_bytes(config, stored_as)}
        for name, config in (("before", made.original.config), ("after", made.config))
    ]
    return tabulate(
        "costs",
        f"Costs, the cache in {stored_as.name}",
        rows,
        word("network"),
        number(
            "cache_bytes_per_token=bytes",
            "cache/token",
            lambda size: plain(size, units.data_size(round(size))),
        ),
        number("parameters=costs.parameters.total", write=numbers.whole),
        number("attention_parameters=costs.parameters.attention", "attention", numbers.whole),
        number("macs_per_token=costs.macs_per_token", "MACs/token", numbers.compact),
    )


def _layers(made: SmallerCache) -> Table:
    """Return what becomes of each layer; neighbours of one form without figures share a row."""
    rows = _describe_layers(made)
    if not made.layers and made.forecast is None:
        rows = [next(iter(alike)) for _, alike in groupby(rows, key=lambda row: row["after"])]
    return tabulate(
        "layers",
        "Layers",
        rows,
        number("layer"),
        label("before"),
        label("after"),
        number("numbers"),
        number("lost", "left out", _percent),
        number("error", "error of output", _percent),
        number("refitted_error", "refitted", _percent),
        number("forecast", write=_nats),
        brief=Brief(rows=MOST_LAYERS) if len(rows) > MOST_LAYERS else None,
        notes=[
            "Left out: the share of the spectrum of keys and values.",
            "Errors are relative to the output of attention.",
            "Forecast: nats a token, of a layer alone, not refitted.",
        ],
    )


def _percent(share: float | None) -> Any:
    return plain(share, None if share is None else numbers.percent(share))


def _nats(value: float | None) -> Any:
    return plain(value, None if value is None else f"{value:.4f}")


def _describe_layers(made: SmallerCache) -> list[dict[str, Any]]:
    layers = zip(made.original.config.layers, made.config.layers, strict=True)
    return [
        {
            "layer": index + 1,
            "before": format_label(before.variant),
            "after": format_label(after.variant),
            "numbers": count_numbers(after),
            "bytes": layer_bytes(after, made.plan.budget.stored_as),
            "lost": made.layers[index].lost if made.layers else None,
            "error": made.layers[index].error if made.layers else None,
            "refitted_error": made.layers[index].refitted_error if made.layers else None,
            "forecast": made.forecast.layers[index] if made.forecast else None,
        }
        for index, (before, after) in enumerate(layers)
    ]


def _data(made: SmallerCache, checkpoint: str) -> dict[str, Any]:
    stored_as = made.plan.budget.stored_as
    return {
        "checkpoint": checkpoint,
        "method": made.plan.method,
        "statement": made.statement,
        "cache_share": made.share,
        "cache_format": stored_as.name,
        "cache_bytes_per_token": {
            "before": network_bytes(made.original.config, stored_as),
            "after": network_bytes(made.config, stored_as),
        },
        "stages": [
            {
                "name": one.name,
                "loss": one.loss,
                "divergence": one.divergence,
                "cpu_seconds": one.cpu_seconds,
            }
            for one in made.stages
        ],
        "forecast": None
        if made.forecast is None
        else {"divergence": made.forecast.divergence, "cpu_seconds": made.seconds},
        "fitted_tokens": made.fitted_tokens,
        "held_out_tokens": made.held_out_tokens,
        "layers": _describe_layers(made),
    }
