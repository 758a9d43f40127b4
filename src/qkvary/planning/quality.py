"""The published changes in perplexity of the variants, with their limitations.

Changes are recomputed from the published perplexities, with intervals for their rounding. Never
imports torch.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from qkvary.arch.labels import as_label, format_label
from qkvary.arch.models import as_model
from qkvary.arch.named_networks import gpt_300m, gpt_1200m
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.published_quality import BASELINE, LANGUAGE_MODELS, QualityTable, Size
from qkvary.arch.variants import AnyVariant, Variant
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.pareto import dominates
from qkvary.text.printed import printed_interval, useful_decimals

Status = Literal["frontier", "dominated", "dominated by the printed digits only"]

SEEDS = 1
"""Number of trained networks per variant and size."""
_ONE_SEED = (
    "Only one network was trained per variant, so it is unknown how much of each difference is due "
    "to chance."
)
_DILUTED = (
    "Documents were padded to 2,048 tokens and the loss includes the padding, so the change per "
    "real token is larger than the published change, as the study lm-dilution shows."
)
_SHIPPED_GROUPS = (
    "The released script for Q-GQA has 8 KV heads (75 % less cache); the paper's table says 4."
)
_STOPPED_EARLY = (
    "The figures are those of step 7,500, after 8.85B positions; learning rate, warm-up "
    "and batch differ from those of the 300M networks."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The published change of a variant's validation perplexity relative to QKV."""

    variant: str
    size: Size
    change_percent: float
    """The change of perplexity in percent, recomputed from the two published perplexities."""
    low: float
    """The smallest change consistent with the published perplexities, in percent."""
    high: float
    """The largest change consistent with the published perplexities, in percent."""
    printed: str
    """The published change. It does not always agree with the published perplexities."""
    perplexity: float
    """The published perplexity. It includes padded positions, not only real tokens."""
    seeds: int
    """The number of trained networks over which the perplexity is averaged."""
    source: str
    caveats: tuple[str, ...]
    """Limitations of the published change, in sentences."""

    @property
    def recomputed(self) -> str:
        """The change computed from the published perplexities, rounded to reliable digits."""
        return f"{self.change_percent:+.{useful_decimals(self.low, self.high)}f}"

    @property
    def agrees(self) -> bool:
        """Whether the published change equals the change computed from the perplexities."""
        printed = self.printed.removesuffix(" %")
        if not self.change_percent:
            return True
        decimals = len(printed.partition(".")[2])
        return f"{self.change_percent:+.{decimals}f}" == printed


def find_label(variant: AnyVariant | str, num_heads: int | None, table: QualityTable) -> str | None:
    """Return the label of a variant in a table, or ``None`` if the table does not have it.

    Shared heads must save the same share of the cache. In a table with 16 query heads, GQA-2 with
    ``num_heads=8`` therefore has the label GQA-4, and MQA with ``num_heads=8`` has no label. If
    ``num_heads`` is ``None``, the number of query heads in the table is used.
    """
    found = as_label(variant)
    if isinstance(found, Variant) and found.num_kv_heads is not None:
        theirs = table.num_heads or 0
        heads, rest = divmod(found.num_kv_heads * theirs, num_heads or theirs or 1)
        if rest or not heads:
            return None
        found = replace(found, num_kv_heads=heads)
    label = format_label(found)
    return label if label in table.variants else None


def quality_of(label: str, size: Size = "300M", *, num_heads: int | None = None) -> Quality | None:
    """Return a variant's published change in perplexity relative to QKV, or ``None``.

    ``num_heads`` is the number of query heads, by default that of the papers' network.
    """
    table = LANGUAGE_MODELS[size]
    variant = find_label(label, num_heads, table)
    if variant is None:
        return None
    own, base = table.variants[variant], table.variants[BASELINE]
    (low, high), (base_low, base_high) = printed_interval(own), printed_interval(base)
    is_base = own is base
    return Quality(
        variant=variant,
        size=size,
        change_percent=change(base.value, own.value),
        low=0.0 if is_base else change(base_high, low),
        high=0.0 if is_base else change(base_low, high),
        printed="-" if is_base else f"{own.change} %",
        perplexity=own.value,
        seeds=SEEDS,
        source=table.source,
        caveats=() if is_base else tuple(_caveats(variant, size)),
    )


def qualities(size: Size = "300M") -> tuple[Quality, ...]:
    """Return the published change in perplexity of every variant at this size, QKV first."""
    found = (quality_of(label, size) for label in LANGUAGE_MODELS[size].variants)
    return tuple(quality for quality in found if quality is not None)


def compare(
    places: Mapping[str, tuple[float, Quality]],
) -> dict[str, tuple[Status, tuple[str, ...]]]:
    """Return the frontier status of each variant, and the variants that dominate it.

    A variant that dominates another costs no more and is no worse, and it is strictly better in
    cost or in quality. If rounding may explain the better quality, the status says so.
    """
    points = {label: (cost, one.change_percent) for label, (cost, one) in places.items()}
    found: dict[str, tuple[Status, tuple[str, ...]]] = {}
    for label, (_, quality) in places.items():
        above = [other for other in points if dominates(points[other], points[label])]
        # The intervals of rounding do not overlap.
        is_sure = any(places[other][1].high <= quality.low for other in above)
        status: Status = "frontier"
        if above:
            status = "dominated" if is_sure else "dominated by the printed digits only"
        found[label] = status, tuple(above)
    return found


def network(label: str, size: Size = "300M") -> LanguageModelConfig:
    """Return the papers' language model of this size, with the variant ``label`` as attention."""
    return gpt_300m(label) if size == "300M" else gpt_1200m(label)


@functools.cache
def cache_bytes(label: str, size: Size = "300M", *, tokens: int = 1) -> int:
    """Return the size in bytes of a 16-bit cache of ``tokens`` tokens in the papers' model.

    ``size`` is the size of the model.
    """
    return model_cache_bytes(as_model(network(label, size)), context=tokens, stored_as="bf16")


def change(before: float, after: float) -> float:
    """Return the relative change from ``before`` to ``after`` in percent."""
    return 100 * (after / before - 1)


def _caveats(variant: str, size: Size) -> list[str]:
    found = [_ONE_SEED, _DILUTED]
    if size == "1.2B":
        found.append(_STOPPED_EARLY)
    elif variant == "Q-GQA-4":
        found.append(_SHIPPED_GROUPS)
    layer = network(variant, size).layers[0]
    shared = layer.variant.sharing
    if shared.key == shared.value and shared.query != shared.key:
        half = layer.num_kv_heads / 2
        found.append(
            f"GQA-{half:.0f} has a cache of the same size, but the papers never compared it with "
            "this variant."
            if half >= 1
            else "Head sharing alone cannot make the cache this small with heads of this size."
        )
    return found
