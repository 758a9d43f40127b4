"""Advice on which variant to serve, based on costs and published quality.

A variant is dominated by another variant that needs no more cache and is no worse by the published
numbers. The published numbers come from one seed and are rounded, so each number gets an interval
for its rounding. The quality of a variant without published numbers is never estimated. Never
imports torch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.models import count_kinds
from qkvary.arch.published_quality import STACKING_REMARK
from qkvary.arch.variants import QKV
from qkvary.costs.cache import model_state_bytes
from qkvary.costs.candidates import AS_IT_IS, Candidate
from qkvary.costs.exact_savings import LOSSY_FORMATS
from qkvary.costs.formats import Format, parse_format
from qkvary.costs.serving import Demand, ServingPlan, plan_serving
from qkvary.planning.quality import Quality, Size, Status, compare, quality_of
from qkvary.text.names import count, listed
from qkvary.text.numbers import compact

TaskKind = Literal["causal", "set", "image"]
Goal = Literal["serving", "training"]
RowStatus = Status | Literal["same function", "no published figure"]

HALVED = parse_format("fp8")
"""A format with half the bytes of 16-bit numbers."""
CONVERSION_PRICE = (
    "the loss of SmolLM2-135M rose by 0.086 ± 0.006 nats per token without training and by 0.015 "
    "± 0.005 after healing on a million tokens; an 8-bit cache adds 0.001"
)
"""The loss of quality by a conversion, as measured by the study ``cache-conversion``."""
SMALL = 600_000_000
"""Models with fewer parameters are compared with the papers' 300M networks, others with 1.2B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVariant(Candidate):
    """One variant, served with its cache in one format."""

    plan: ServingPlan
    state_bytes: int
    """Bytes of one user's cache that do not grow with the context."""
    quality: Quality | None
    """The published change of perplexity relative to QKV."""
    status: RowStatus
    """The frontier status among the variants in the same format."""
    dominated_by: tuple[str, ...]

    @property
    def cache(self) -> Format:
        """The format of the variant's cache."""
        return self.plan.cache


def serve_variants(
    candidates: Sequence[Candidate],
    demand: Demand,
    formats: Sequence[Format],
    *,
    size: Size,
    hidden_candidates: Sequence[Candidate] = (),
) -> tuple[ServedVariant, ...]:
    """Plan every candidate in every format, and compare candidates within a format.

    A candidate that stores only states is planned in the first format only. ``size`` names the
    papers' model from which the published changes in perplexity are taken. Hidden candidates are
    not returned, but they can dominate the returned candidates.
    """
    shown = {candidate.label for candidate in candidates}
    compared = [*candidates, *(one for one in hidden_candidates if one.label not in shown)]
    qualities = [published_change(candidate, size) for candidate in compared]
    served: list[ServedVariant] = []
    for number, cache in enumerate(formats):
        plans = [plan_serving(candidate.model, demand, cache) for candidate in compared]
        # Exact savings compute the same function: they neither dominate nor are dominated.
        statuses = compare(
            {
                candidate.label: (plan.user_bytes, quality)
                for candidate, plan, quality in zip(compared, plans, qualities, strict=True)
                if candidate.saving is None and quality is not None
            }
        )
        for candidate, plan, quality in zip(candidates, plans, qualities, strict=False):
            state_bytes = model_state_bytes(candidate.model, cache)
            if number and state_bytes and state_bytes == plan.user_bytes:
                # States are stored in single precision, whatever the format of the cache.
                continue
            status: RowStatus = "same function"
            dominated_by: tuple[str, ...] = ()
            if candidate.saving is None:
                status, dominated_by = statuses.get(candidate.label, ("no published figure", ()))
            served.append(
                ServedVariant(
                    **{field.name: getattr(candidate, field.name) for field in fields(candidate)},
                    plan=plan,
                    state_bytes=state_bytes,
                    quality=quality,
                    status=status,
                    dominated_by=dominated_by,
                )
            )
    return tuple(served)


def published_change(candidate: Candidate, size: Size) -> Quality | None:
    """Return the published quality of a variant, or ``None``."""
    if candidate.label == AS_IT_IS:
        return None
    layers = (layer.attention for layer in candidate.model.layers)
    heads = (one.config.num_heads for one in layers if isinstance(one, ProjectedAttention))
    return quality_of(candidate.label, size, num_heads=next(heads))


def nearest_size(parameters: int) -> Size:
    """Return the size of the papers' model to which a model of ``parameters`` is compared."""
    return "300M" if parameters < SMALL else "1.2B"


def summarize_serving(served: Sequence[ServedVariant], demand: Demand) -> tuple[str, ...]:
    """Return one sentence for each way to save memory, in the order in which to try them.

    The ways are a low-bit cache, exact savings, a conversion, training another variant, and a
    smaller model. ``served`` has the variants in each cache format; ``served[0]`` must be the
    model as it is, in the first format.
    """
    original = served[0]
    first = [row for row in served if row.cache == original.cache]
    most = original.plan.users_per_device
    now = [
        row
        for row in first
        if row.saving is not None
        and (_needs_fewer(row, original) or row.plan.users_per_device > most)
    ]
    exact = [f"the model as it is ({_held(original.plan)})"]
    exact += [f"{row.saving} ({_held(row.plan)})" for row in now]
    forms = [form for form in map(parse_format, LOSSY_FORMATS) if form.bits < original.cache.bits]
    plans = [plan_serving(original.model, demand, form) for form in forms]
    bits = [
        f"{plan.cache.name} ({_held(plan)})"
        for plan in plans
        if plan.user_bytes < original.plan.user_bytes
    ]
    better = (row for row in _rank(first) if not row.is_original)
    trained = next((row for row in better if _needs_fewer(row, original)), None)
    return (
        (
            f"Use a low-bit cache now, and measure how much quality it loses: {'; '.join(bits)}."
            if bits
            else "No low-bit format would make the cache smaller than it already is."
        ),
        f"Keep all outputs exact: {'; '.join(exact)}.",
        *_advise_conversion(original, demand),
        (
            f"Train another variant: {trained.label} ({_held(trained.plan)}, {_change(trained)} as "
            "published)."
            if trained
            else "Training another variant saves no devices: no variant with a published quality "
            "needs fewer."
        ),
        *_advise_smaller(original, demand),
    )


def _advise_conversion(original: ServedVariant, demand: Demand) -> Iterator[str]:
    """Yield a sentence on a conversion that halves the model's cache, if that is possible."""
    if original.cache.bits != HALVED.bits * 2 or not all(
        isinstance(layer.attention, ProjectedAttention)
        and layer.attention.config.variant.core_name == "softmax"
        and layer.attention.config.variant.latent is None
        and layer.attention.config.variant.sharing == QKV.sharing
        and not layer.attention.norms
        and layer.attention.config.variant.head_norm == "none"
        for layer, _ in count_kinds(original.model.layers)
    ):
        return
    # The converted cache takes as many bytes as one with half the bits.
    held = _held(plan_serving(original.model, demand, HALVED))
    yield (
        f"Convert the model (qkvary convert --to latent --cache 50%): {held}; {CONVERSION_PRICE}."
    )


def _advise_smaller(original: ServedVariant, demand: Demand) -> Iterator[str]:
    """Yield the largest model size that fits one device, if the given model does not fit."""
    if original.plan.devices_per_replica == 1:
        return
    left = demand.usable_bytes - original.plan.user_bytes
    if left <= 0:
        return
    formats = dict.fromkeys((demand.weights.name, "int4"))
    most = (
        f"{compact(8 * left / parse_format(name).bits)} parameters in {name}" for name in formats
    )
    yield (
        "Use a smaller model, or weights with fewer bits: next to one user's present cache, "
        f"one device holds {' or '.join(most)}."
    )


def advise_serving(served: Sequence[ServedVariant]) -> Iterator[str]:
    """Yield advice on serving, one sentence at a time.

    Only the plans with the cache format of the first plan are used.
    """
    first = [row for row in served if row.cache == served[0].cache]
    frontier = [row for row in _rank(first) if row.status == "frontier" and not row.is_original]
    if frontier:
        listing = (
            f"{row.label} ({count(row.plan.devices or 0, 'device')}, {_change(row)})"
            for row in frontier
        )
        yield (
            "Variants on the published frontier of cache size and quality (each requires "
            f"training): {'; '.join(listing)}."
        )
    for row in first:
        if row.dominated_by:
            one = len(row.dominated_by) == 1
            yield (
                f"{row.label} is {row.status}: {listed(row.dominated_by)} "
                f"{'takes' if one else 'take'} no more cache and {'is' if one else 'are'} no worse "
                "by the published numbers."
            )
    both = next((row for row in first if row.label == "Q-MQA" and row.quality is not None), None)
    if both is not None and any(row.label == "MQA" for row in first):
        yield STACKING_REMARK.format(change=_change(both))
    yield from _warn_of_llama_cpp(first)


def _warn_of_llama_cpp(rows: Sequence[ServedVariant]) -> Iterator[str]:
    """Yield a warning about K=V with several KV heads, for which llama.cpp has no kernel."""
    for row in rows:
        attention = row.model.layers[0].attention
        if not isinstance(attention, ProjectedAttention):
            continue
        sharing, heads = attention.config.variant.sharing, attention.config.num_kv_heads
        if sharing.key == sharing.value and heads > 1:
            yield (
                f"Stock llama.cpp is slow for K=V with many KV heads ({row.label}): it multiplies "
                f"each query head by the tensor of all KV heads, which takes {heads} times as much "
                "work as multiplying each query head by its own KV head. In a test at 30M "
                "parameters, K=V with 8 KV heads ran at 0.38 times the speed of QKV, and K=V with "
                "one KV head ran at 0.95 times the speed of QKV."
            )
            return


def collect_caveats(found_qualities: Iterable[Quality | None]) -> tuple[str, ...]:
    """Return the limitations of the published numbers that were used, each once."""
    qualities = [quality for quality in found_qualities if quality is not None]
    sources = [
        "The published changes in perplexity were measured on a language model of "
        f"{quality.size} parameters without an encoder: {quality.source}."
        for quality in qualities
    ]
    changed = [quality for quality in qualities if quality.caveats]
    everywhere = [
        caveat
        for caveat in (changed[0].caveats if changed else ())
        if all(caveat in quality.caveats for quality in changed)
    ]
    of_one = [
        f"{quality.variant} at {quality.size}: {caveat}"
        for quality in changed
        for caveat in quality.caveats
        if caveat not in everywhere
    ]
    return tuple(dict.fromkeys((*sources, *everywhere, *of_one)))


def _held(plan: ServingPlan) -> str:
    """Describe how many users fit on a replica, and how many devices serve all users."""
    if plan.devices is None:
        return "the devices have no room for even one user's cache next to the weights"
    users = count(plan.users_per_replica, "user")
    copy = count(plan.devices_per_replica or 1, "device")
    return f"{users} on {copy}, {count(plan.devices, 'device')} for all users"


def _rank(rows: Sequence[ServedVariant]) -> list[ServedVariant]:
    """Return the rows that fit and have a published quality, sorted by devices, then by quality."""
    fitting = [(row, row.quality) for row in rows if row.quality and row.plan.fits]
    fitting.sort(key=lambda pair: (pair[0].plan.devices or 0, pair[1].change_percent))
    return [row for row, _ in fitting]


def _needs_fewer(row: ServedVariant, original: ServedVariant) -> bool:
    """Return whether a variant serves all users with fewer devices than the given model."""
    own, other = original.plan.devices, row.plan.devices
    return other is not None and (own is None or other < own)


def _change(row: ServedVariant) -> str:
    quality = row.quality
    if quality is None:
        return "no published change"
    if quality.change_percent == 0:
        return "the baseline"
    return f"{quality.printed} perplexity"
