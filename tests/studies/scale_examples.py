"""A study of scales that nobody ran."""

from collections.abc import Mapping
from typing import Any

from qkvary.arch.caches import CacheLayout
from qkvary.studies.scale_records import BITS, WAYS, ScaleRecord, ScaleStudy

FACTORS: Mapping[str, float] = {
    "g32": 1.0,
    "g32-rot": 0.9,
    "g32-r16": 0.5,
    "g32-r32": 0.4,
    "b32": 0.1,
    "b32-r16": 0.04,
    "b32-rot": 0.2,
}
VARIANTS = ("QKV@alibi", "Q-K=V@alibi", "QKV@rotary", "Q-K=V@rotary")


def figures(kl: float, *, drifts: bool = False, meets: bool = True) -> dict[str, Any]:
    return {
        "windows": 3,
        "context": 20,
        "mean_kl": kl,
        "median_kl": kl / 2,
        "perplexity_change": kl / 10,
        "top1": 1 - kl,
        "drifts": drifts,
        "meets_int8_gate": meets,
    }


def made_up(seeds: tuple[int, ...] = (0, 1, 2)) -> ScaleStudy:
    """By channel a tenth of by token, fourfold for each bit less, twofold for one tensor."""
    records: list[ScaleRecord] = []
    for variant in VARIANTS:
        for seed in seeds:
            cases: list[tuple[CacheLayout, int, str, float]] = [
                ("sources", bits, way, FACTORS[way]) for bits in BITS for way in WAYS
            ]
            if "rotary" in variant:
                cases += [("rotated", 4, "b32", 0.3)]
            for layout, bits, way, factor in cases:
                kl = (
                    1e-6 * 4.0 ** (8 - bits) * factor * (1 + 0.01 * seed * (bits + WAYS.index(way)))
                )
                kl *= 1 + 0.001 * seed * len(variant) + 0.014 * seed * (layout == "sources")
                kl *= 2 if variant.startswith("Q-K=V") else 1
                records.append(
                    ScaleRecord(
                        variant=variant,
                        seed=seed,
                        layout=layout,
                        bits=bits,
                        scales=way,
                        figures=figures(kl, drifts=bits == 3, meets=way != "g32"),
                    )
                )
    return ScaleStudy(
        name="made-up",
        question="Which scales?",
        description="Nothing was measured.",
        command="qkvary bench scales made-up --seeds 0,1,2",
        environment={"python": "3.11", "cpu": "an abacus"},
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:01:00+00:00",
        losses={variant: tuple(2.0 + seed for seed in seeds) for variant in VARIANTS},
        seeds=seeds,
        windows=3,
        context=20,
        records=tuple(records),
    )
