"""What rounded caches cost the networks of a study, as values: records, estimates, ratios.

Knows figures; does not know how they were measured, nor how they are shown. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qkvary.arch.caches import CacheLayout
from qkvary.studies.results.statistics import Estimate, corrected_confidence, paired_t

BITS = (8, 4, 3)
WAYS = ("g32", "g32-rot", "g32-r16", "g32-r32", "b32", "b32-rot", "b32-r16")
"""Scales by token, or by channel over 32 tokens; rotated first; newest tokens as they are.
With ``b32-r16`` those are 16 to 47, with ``g32-r32`` always 32."""
RATIOS = (
    (
        "b32-r16",
        "g32-r32",
        "by channel instead of by token, with as many newest tokens as they are",
    ),
    ("g32-r16", "g32", "by token, the newest 16 tokens as they are instead of rounded"),
    ("b32-r16", "b32", "by channel, at least 16 newest tokens as they are instead of none"),
    ("g32-rot", "g32", "by token, rotated first instead of not"),
    ("b32-rot", "b32", "by channel, rotated first instead of not"),
)
RATIO_BITS = (8, 4)
"""Bits for which ratios are asked."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRecord:
    """One storage of one trained network."""

    variant: str
    """Label of the network's attention."""
    seed: int
    """Of its training."""
    layout: CacheLayout
    """What the cache keeps of a token."""
    bits: int
    """Of a code."""
    scales: str
    """How codes share scales, as it is spelled behind the bits."""
    figures: Mapping[str, Any]
    """Everything measured."""

    @property
    def storage(self) -> str:
        """As it is typed."""
        return f"int{self.bits}-{self.scales}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSummary:
    """One storage of all networks of a variant, over seeds."""

    variant: str
    """Label."""
    layout: CacheLayout
    """What the cache keeps of a token."""
    bits: int
    """Of a code."""
    scales: str
    """How codes share scales."""
    seeds: int
    """Networks."""
    mean_kl: Estimate
    """Logarithm of the mean divergence of a network: the mean over networks is geometric."""
    median_kl: Estimate
    """Logarithm of the median divergence."""
    perplexity_change: Estimate
    """As a share."""
    top1: float
    """Mean share of positions with the same most probable token."""
    drifting: int
    """Networks whose divergence rises with the position, beyond two errors."""
    meeting: int
    """Networks that stay within what codes of 8 bits promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How the mean divergence changes from one storage or network to another, paired by seed."""

    what: str
    """What is compared."""
    where: str
    """On which networks."""
    bits: int
    """Of a code."""
    log: Estimate
    """Logarithm of the ratio."""

    @property
    def verdict(self) -> str:
        """What the interval supports."""
        low, high = self.log.low, self.log.high
        if low is None or high is None:
            return "no interval"
        return "lower" if high < 0 else "higher" if low > 0 else "not distinguished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleStudy:
    """Everything about a study of scales."""

    name: str
    """Of the study whose networks were measured."""
    question: str
    """What it asks."""
    description: str
    """How its networks were made."""
    command: str
    """What was typed."""
    environment: Mapping[str, Any]
    """Versions and machine of the measurement."""
    started: str
    """ISO 8601, UTC."""
    ended: str
    """ISO 8601, UTC."""
    losses: Mapping[str, tuple[float, ...]]
    """Test losses of the networks without rounding, by variant, in the order of the seeds."""
    seeds: tuple[int, ...]
    """Of the networks."""
    windows: int
    """Windows of text that each network was measured on."""
    context: int
    """Tokens of each."""
    records: tuple[ScaleRecord, ...]
    """What was measured."""

    def summaries(self) -> list[StorageSummary]:
        """One for each storage of each variant, in the order of measurement."""
        groups: dict[tuple[str, CacheLayout, int, str], list[ScaleRecord]] = {}
        for record in self.records:
            key = (record.variant, record.layout, record.bits, record.scales)
            groups.setdefault(key, []).append(record)
        return [_summarise(group) for group in groups.values()]

    def ratios(self) -> list[Ratio]:
        """All planned comparisons; their intervals hold at once."""
        asked = [*self._of_storages(), *self._of_layouts(), *self._of_variants()]
        confidence = corrected_confidence(CONFIDENCE, max(1, len(asked)))
        return [
            Ratio(what=what, where=where, bits=bits, log=paired_t(logs, confidence=confidence))
            for what, where, bits, logs in asked
        ]

    @property
    def variants(self) -> list[str]:
        """In the order of measurement."""
        return list(dict.fromkeys(record.variant for record in self.records))

    def _of_storages(self) -> Iterable[tuple[str, str, int, list[float]]]:
        for variant in self.variants:
            for new, old, what in RATIOS:
                for bits in RATIO_BITS:
                    logs = _logs(self._kl(variant, bits, new), self._kl(variant, bits, old))
                    if logs:
                        yield what, variant, bits, logs

    def _of_layouts(self) -> Iterable[tuple[str, str, int, list[float]]]:
        for variant in self.variants:
            for scales, how in (("g32", "by token"), ("b32", "by channel")):
                for bits in RATIO_BITS:
                    turned = self._kl(variant, bits, scales, "rotated")
                    logs = _logs(turned, self._kl(variant, bits, scales))
                    if logs:
                        yield f"{how}, keys stored rotated instead of not", variant, bits, logs

    def _of_variants(self) -> Iterable[tuple[str, str, int, list[float]]]:
        for single in self.variants:
            apart = single.replace("Q-K=V", "QKV")
            if apart == single or apart not in self.variants:
                continue
            for scales, how in (("g32-r32", "by token"), ("b32-r16", "by channel")):
                for bits in RATIO_BITS:
                    logs = _logs(self._kl(single, bits, scales), self._kl(apart, bits, scales))
                    if logs:
                        yield (
                            f"{how}, newest tokens as they are, one tensor instead of two",
                            single,
                            bits,
                            logs,
                        )

    def _kl(
        self, variant: str, bits: int, scales: str, layout: CacheLayout = "sources"
    ) -> dict[int, float]:
        wanted = (variant, bits, scales, layout)
        return {
            record.seed: record.figures["mean_kl"]
            for record in self.records
            if (record.variant, record.bits, record.scales, record.layout) == wanted
        }


def _logs(new: Mapping[int, float], old: Mapping[int, float]) -> list[float]:
    return [math.log(new[seed] / old[seed]) for seed in sorted(new.keys() & old.keys())]


def _summarise(group: Sequence[ScaleRecord]) -> StorageSummary:
    first, figures = group[0], [record.figures for record in group]

    def estimate(name: str, *, log: bool) -> Estimate:
        values = [one[name] for one in figures]
        # A divergence of zero has no logarithm; the smallest double has one.
        return paired_t([math.log(max(value, 5e-324)) for value in values] if log else values)

    return StorageSummary(
        variant=first.variant,
        layout=first.layout,
        bits=first.bits,
        scales=first.scales,
        seeds=len(group),
        mean_kl=estimate("mean_kl", log=True),
        median_kl=estimate("median_kl", log=True),
        perplexity_change=estimate("perplexity_change", log=False),
        top1=sum(one["top1"] for one in figures) / len(figures),
        drifting=sum(one["drifts"] for one in figures),
        meeting=sum(one["meets_int8_gate"] for one in figures),
    )
