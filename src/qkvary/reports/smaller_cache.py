"""The report of a conversion to a smaller cache.

The report has the loss after each stage, the memory that the smaller cache saves, and a table of
the layers.
"""

from collections.abc import Sequence
from typing import Any

from qkvary.arch.labels import format_label
from qkvary.conversions.caches.budget import layer_bytes, network_bytes
from qkvary.conversions.caches.forms import count_numbers
from qkvary.conversions.caches.stages import SmallerCache, Stage
from qkvary.costs.network import network_costs
from qkvary.reports.conversion import COST_COLUMNS, decoding_macs, note_macs
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Brief, Table, label, number, pick, tabulate, word
from qkvary.text import numbers


def describe_stage(stage: Stage, first: Stage) -> str:
    """Describe a stage in one sentence.

    The stage is compared with ``first``, the stage of the unchanged network.
    """
    if stage is first:
        return f"{stage.name}: loss {stage.loss:.4f} nats a token on the held-out text"
    seconds = stage.cpu_seconds
    took = f", {numbers.duration(seconds, 2)} of CPU time" if seconds else ""
    return (
        f"{stage.name}: loss {stage.loss:.4f} ({stage.loss - first.loss:+.4f}), divergence "
        f"{stage.divergence:.4f}{took}"
    )


def smaller_cache_report(made: SmallerCache, checkpoint: str, notes: Sequence[str] = ()) -> Report:
    """Return the report of the conversion of a named checkpoint, with notes on the texts.

    If nothing was converted, the report states the forecast of the conversion.
    """
    tables = (_stages(made), _costs(made), _layers(made))
    caveat = (
        f"losses are measured on {made.held_out_tokens:,} held-out tokens; the conversion was "
        f"fitted to {made.fitted_tokens:,} other tokens"
    )
    return Report(
        subject=f"smaller cache: {checkpoint}",
        question=(
            f"How does {checkpoint} change if the method {made.plan.method} reduces its cache to "
            f"{made.share:.0%}?"
        ),
        lead=_lead(made),
        sections=(Section(key="conversion", title="Conversion", blocks=tables, brief=True),),
        caveats=(caveat, *notes),
        data={**_data(made, checkpoint), "notes": notes},
    )


def _lead(made: SmallerCache) -> str:
    found = made.forecast
    if made.layers or found is None:
        last, first = made.stages[-1], made.stages[0]
        return f"{made.statement}; the loss changes by {last.loss - first.loss:+.4f} nats per token"
    seconds = numbers.duration(made.seconds or 0.0, 2)
    return (
        f"{made.statement}; nothing was converted. The forecast is a divergence of up to "
        f"{found.divergence:+.4f} nats per token before the refit. The conversion is expected to "
        f"take {seconds} of CPU time."
    )


def _stages(made: SmallerCache) -> Table:
    first = made.stages[0]
    rows = [{"stage": one, "change": one.loss - first.loss} for one in made.stages]
    return tabulate(
        "stages",
        f"Loss on {made.held_out_tokens:,} held-out tokens",
        rows,
        word("stage=stage.name"),
        number("loss=stage.loss", write="{:.4f}".format),
        number("change", write="{:+.4f}".format),
        number("divergence=stage.divergence", write="{:.4f}".format),
        number(
            "cpu_seconds=stage.cpu_seconds",
            "CPU time",
            lambda seconds: numbers.duration(seconds, 2) if seconds else "-",
        ),
        notes=[
            (
                "Losses and divergences are in nats per token. The divergence is KL(unchanged "
                "network || network after the stage)."
            )
        ],
    )


def _costs(made: SmallerCache) -> Table:
    stored_as = made.plan.budget.stored_as
    rows = [
        {
            "network": name,
            "costs": network_costs(config),
            "macs": decoding_macs(config),
            "bytes": network_bytes(config, stored_as),
        }
        for name, config in (("before", made.original.config), ("after", made.config))
    ]
    return tabulate(
        "costs",
        f"Costs (cache in {stored_as.name})",
        rows,
        word("network"),
        number(
            "cache_bytes_per_token=bytes",
            "cache/token",
            lambda size: numbers.data_size(round(size)),
        ),
        *COST_COLUMNS,
        notes=[note_macs(made.original.config)],
    )


def _layers(made: SmallerCache) -> Table:
    return tabulate(
        "layers",
        "Layers",
        _describe_layers(made),
        number("layer"),
        label("before"),
        label("after"),
        number("numbers", "numbers/token"),
        number("lost", "left out", numbers.percent),
        number("error", "output error", numbers.percent),
        number("refitted_error", "after refit", numbers.percent),
        number("forecast", write=lambda nats: numbers.MISSING if nats is None else f"{nats:.4f}"),
        brief=Brief(rows=6),
        notes=[
            (
                "“Left out” is the fraction of the joint spectrum of keys and values that the new "
                "tensors do not keep."
            ),
            "Both errors are relative to the output of attention.",
            (
                "“Forecast” is the divergence in nats per token if only this layer is converted, "
                "before the refit."
            ),
        ],
    )


def _describe_layers(made: SmallerCache) -> list[dict[str, Any]]:
    layers = zip(made.original.config.layers, made.config.layers, strict=True)
    return [
        {
            "layer": index + 1,
            "before": format_label(before.variant),
            "after": format_label(after.variant),
            "numbers": count_numbers(after),
            "bytes": layer_bytes(after, made.plan.budget.stored_as),
            **pick(made.layers[index] if made.layers else None, "lost error refitted_error"),
            "forecast": made.forecast.layers[index] if made.forecast else None,
        }
        for index, (before, after) in enumerate(layers)
    ]


def _data(made: SmallerCache, checkpoint: str) -> dict[str, Any]:
    stored_as = made.plan.budget.stored_as
    return {
        "checkpoint": checkpoint,
        **pick(made, "method=plan.method statement cache_share=share"),
        "cache_format": stored_as.name,
        "cache_bytes_per_token": {
            "before": network_bytes(made.original.config, stored_as),
            "after": network_bytes(made.config, stored_as),
        },
        "stages": [pick(one, "name loss divergence cpu_seconds") for one in made.stages],
        "forecast": made.forecast
        and {"divergence": made.forecast.divergence, "cpu_seconds": made.seconds},
        **pick(made, "fitted_tokens held_out_tokens"),
        "layers": _describe_layers(made),
    }
