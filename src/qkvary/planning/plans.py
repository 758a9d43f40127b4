"""A whole plan as a value: what was asked, every variant's answer, what follows, what limits it.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkvary.arch.models import Model
from qkvary.costs.candidates import Candidate, Candidates, choose_candidates
from qkvary.costs.exact_savings import SavingsReport, find_savings
from qkvary.costs.formats import Format
from qkvary.costs.parameters import model_parameters
from qkvary.costs.serving import Demand
from qkvary.costs.training import Precision
from qkvary.planning.advice import (
    ServedVariant,
    TaskKind,
    advise_serving,
    advise_task,
    caveats_of,
    nearest_size,
    serve_variants,
)
from qkvary.planning.training_advice import TrainedVariant, advise_training, train_variants


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAnswer:
    """Everything that is said about serving."""

    savings: SavingsReport
    """What can be saved with the weights as they are."""
    rows: tuple[ServedVariant, ...]
    """Every variant in every format."""
    advice: tuple[str, ...]
    """What follows."""
    caveats: tuple[str, ...]
    """What must be known about the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAnswer:
    """Everything that is said about training."""

    rows: tuple[TrainedVariant, ...]
    """Every variant."""
    advice: tuple[str, ...]
    """What follows."""
    caveats: tuple[str, ...]
    """What must be known about the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How a model is trained."""

    precision: Precision
    """What weights, gradients and activations are kept in."""
    checkpointing: bool
    """Whether blocks are computed again instead of kept."""
    utilization: float
    """The share of the matrix rate that is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A question with its answer, as reports show it."""

    model: Model
    """The model as it is."""
    layers: str
    """Its kinds of attention, in words."""
    candidates: Candidates
    """It and its variants."""
    demand: Demand
    """What it has to do, on what."""
    formats: tuple[Format, ...]
    """How the cache may be stored; pictures show the first."""
    task: TaskKind
    """What the model reads."""
    answer: ServingAnswer | TrainingAnswer
    """Every variant, and what follows."""
    regime: Regime | None = None
    """How it is trained; ``None`` for a serving plan."""
    notes: tuple[str, ...] = ()
    """What must be known about the model."""
    decimal: bool = False
    """Whether amounts of memory are written in powers of ten."""


def answer_serving(
    candidates: Candidates, demand: Demand, formats: Sequence[Format], *, task: TaskKind = "causal"
) -> ServingAnswer:
    """Plan the serving of every candidate in every format, and say what follows.

    Args:
        candidates: A model and its variants.
        demand: What is to be served, on what.
        formats: How the cache may be stored; savings are counted in the first.
        task: What the model reads.
    """
    model = candidates.original.model
    size = nearest_size(model_parameters(model).total)
    # A variant that was asked for is dominated by those that nobody asked for too.
    rivals = choose_candidates(model).rows
    rows = serve_variants(candidates.rows, demand, formats, size=size, rivals=rivals)
    return ServingAnswer(
        savings=find_savings(
            model,
            context=demand.context,
            stored_as=formats[0],
            encoder_tokens=demand.encoder_tokens,
            peak=True,
        ),
        rows=rows,
        advice=(*advise_serving(rows), *advise_task(task)),
        caveats=caveats_of(row.quality for row in rows),
    )


def answer_training(
    candidates: Candidates, demand: Demand, regime: Regime, *, task: TaskKind = "causal"
) -> TrainingAnswer:
    """Plan the training of every candidate on one device, and say what follows.

    Args:
        candidates: A model and its variants; how they store a cache does not matter here.
        demand: The device, its reserve and the tokens of a sequence.
        regime: How the model is trained.
        task: What the model reads.
    """
    trained: list[Candidate] = [row for row in candidates.rows if row.saving is None]
    rows = train_variants(
        trained,
        device=demand.device,
        tokens=demand.context,
        precision=regime.precision,
        checkpointing=regime.checkpointing,
        reserve=demand.reserve,
        utilization=regime.utilization,
        size=nearest_size(model_parameters(candidates.original.model).total),
        encoder_tokens=demand.encoder_tokens,
    )
    return TrainingAnswer(
        rows=rows,
        advice=(*advise_training(rows), *advise_task(task)),
        caveats=caveats_of(row.quality for row in rows),
    )
