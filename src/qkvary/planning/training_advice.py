"""Advice on which variant to train, based on speed, memory and published quality.

Never imports torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkvary.arch.published_quality import LANGUAGE_MODELS, SPEED_REMARK
from qkvary.costs.candidates import Candidate
from qkvary.costs.parameters import model_parameters
from qkvary.costs.pareto import dominates
from qkvary.costs.serving import Demand
from qkvary.costs.training import Precision, TrainingPlan, plan_training
from qkvary.planning.advice import published_change
from qkvary.planning.quality import Quality, Size
from qkvary.text.numbers import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The settings of the training that is planned."""

    precision: Precision = "mixed"
    """For training: 16-bit with 32-bit master weights, or fp32."""
    checkpointing: bool = False
    """For training: store only each block's input and recompute the block."""
    utilization: Share = 0.4
    """For training: the share of the device's peak FLOPS that is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedVariant:
    """One variant with its plan for training on one device."""

    label: str
    is_original: bool
    parameters: int
    plan: TrainingPlan
    published_tokens_per_second: float | None
    """The published training speed of the 300M model, on its authors' machines."""
    quality: Quality | None
    """The published change of perplexity."""


def train_variants(
    candidates: Sequence[Candidate], demand: Demand, regime: Regime, *, size: Size
) -> tuple[TrainedVariant, ...]:
    """Plan the training of every candidate on one device.

    ``size`` names the papers' model from which the published changes in perplexity are taken.
    """
    printed = LANGUAGE_MODELS["300M"].variants if size == "300M" else {}
    speeds = {label: one.tokens_per_second for label, one in printed.items()}
    rows: list[TrainedVariant] = []
    for candidate in candidates:
        quality = published_change(candidate, size)
        plan = plan_training(
            candidate.model,
            device=demand.device,
            tokens=demand.context,
            precision=regime.precision,
            checkpointing=regime.checkpointing,
            reserve=demand.reserve,
            utilization=regime.utilization,
            encoder_tokens=demand.encoder_tokens,
        )
        rows.append(
            TrainedVariant(
                label=candidate.label,
                is_original=candidate.is_original,
                parameters=model_parameters(candidate.model).total,
                plan=plan,
                published_tokens_per_second=(
                    None if quality is None else speeds.get(quality.variant)
                ),
                quality=quality,
            )
        )
    return tuple(rows)


def advise_training(rows: Sequence[TrainedVariant]) -> Iterator[str]:
    """Yield the training advice, one sentence each."""
    base = rows[0]
    if base.plan.largest_batch < 1:
        yield _explain_misfit(base)
    known = [row for row in rows if row.quality is not None]
    points = [(row.plan.macs_per_token, row.quality.change_percent) for row in rows if row.quality]
    better = [
        row
        for row, point in zip(known, points, strict=True)
        if not any(dominates(other, point) for other in points)
    ]
    if better:
        best = min(better, key=lambda row: row.plan.macs_per_token)
        saved = 100 * (1 - best.plan.macs_per_token / base.plan.macs_per_token)
        if saved > 0:
            yield (
                "Of the variants on the published frontier of arithmetic and quality, "
                f"{best.label} needs the fewest multiply-accumulates: {saved:.1f} % fewer than the "
                "given model. At most that share of the training time can be saved."
            )
        else:
            yield (
                "No variant on the published frontier of arithmetic and quality needs fewer "
                "multiply-accumulates than the given model."
            )
    if {"Q-K=V", "MQA"} <= {row.label for row in known}:
        yield SPEED_REMARK


def _explain_misfit(base: TrainedVariant) -> str:
    """Explain why the training of a model does not fit on one device, and what to do."""
    if base.plan.free_bytes < 0:
        return (
            "The weights, gradients and optimizer state of the given model alone do not fit on one "
            "device: shard them."
        )
    fewer = "" if base.plan.checkpointing else "keep fewer activations (--checkpointing), "
    return (
        "The weights, gradients and optimizer state of the given model leave no room on one device "
        f"for a sequence: shard them, {fewer}or shorten --context."
    )
