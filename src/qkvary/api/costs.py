"""``qk.cost``: what a model costs in every variant."""

from __future__ import annotations

from qkvary.api.models import Configured, Labels, find_model, read_count, read_labels
from qkvary.api.results import Result
from qkvary.arch.models import Model
from qkvary.arch.networks import Network
from qkvary.costs.comparison import CostComparison, compare_model
from qkvary.costs.formats import parse_format
from qkvary.reports.cost import cost_report
from qkvary.storage.paths import StrPath


def cost(
    model: StrPath | Model | Network | Configured,
    variants: Labels = (),
    *,
    context: int | str | None = None,
    batch: int | str = 1,
    dtype: str = "bf16",
    weights: str = "bf16",
    encoder_tokens: int | None = None,
    decimal: bool = False,
) -> Result[CostComparison]:
    """Count what a model costs in every variant: parameters, arithmetic, weights and cache.

    Args:
        model: A name (``lm-300m``, ``300M``, ``llama-3.1-8b``), a ``config.json`` or its folder, a
            checkpoint (its header is read: a ``.gguf`` or ``.bin`` of any size), a hub id, a
            configuration, or a network.
        variants: The variants to compare, or their labels; those worth comparing by default.
        context: Tokens per sequence, such as 2048 or ``"32k"``; by default the model's maximum, at
            most 8,192.
        batch: Sequences in a batch.
        dtype: The format of the cache: fp32, bf16, fp16, fp8, int8, int4, int4-g32.
        weights: The format of the weights.
        encoder_tokens: Tokens that an encoder reads; as many as ``context`` by default.
        decimal: Show kB, MB and GB instead of KiB, MiB and GiB.

    Raises:
        ValueError: for an unknown model, label or format, or a number that makes no sense.
        DownloadError: if the hub cannot be reached.
    """
    costs = compare_model(
        find_model(model),
        read_labels(variants),
        context=None if context is None else read_count(context),
        batch=read_count(batch),
        weights=parse_format(weights),
        cache=parse_format(dtype),
        encoder_tokens=encoder_tokens,
        decimal=decimal,
    )
    return Result(costs, cost_report(costs))
