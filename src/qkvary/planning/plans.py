"""A complete plan as a value: the question, a row per variant, advice and limitations.

Never imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qkvary.arch.descriptions import describe_layers
from qkvary.arch.models import Model
from qkvary.arch.published_quality import TASK_REMARKS
from qkvary.arch.variants import AnyVariant
from qkvary.costs.candidates import Candidates, choose_candidates
from qkvary.costs.comparison import collect_notes
from qkvary.costs.exact_savings import SavingsReport, find_savings
from qkvary.costs.formats import Format
from qkvary.costs.parameters import model_parameters
from qkvary.costs.serving import Demand
from qkvary.planning.advice import (
    Goal,
    ServedVariant,
    TaskKind,
    advise_serving,
    collect_caveats,
    nearest_size,
    serve_variants,
    summarize_serving,
)
from qkvary.planning.engines import EngineRow, compare_engines
from qkvary.planning.training_advice import Regime, TrainedVariant, advise_training, train_variants


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The results of a plan for serving or training: one row per variant, and advice."""

    rows: tuple[ServedVariant, ...] = ()
    """One row for every variant in every format of the cache. Empty for a training plan."""
    trained: tuple[TrainedVariant, ...] = ()
    """One row for every variant. Empty for a serving plan."""
    savings: SavingsReport | None = None
    """The exact savings. They keep the given weights. ``None`` for a training plan."""
    engines: tuple[EngineRow, ...] = ()
    """The cache of the given model as each engine allocates it. Empty for a training plan."""
    summary: tuple[str, ...]
    """The answer in sentences."""
    advice: tuple[str, ...]
    """Further advice, in sentences."""
    caveats: tuple[str, ...]
    """The limitations of the published numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The inputs and the results of a plan for serving or training."""

    model: Model
    layers: str
    """The model's kinds of attention, in words."""
    candidates: Candidates
    demand: Demand
    formats: tuple[Format, ...]
    """The formats of the cache; charts show the first."""
    task: TaskKind
    answer: Answer
    regime: Regime | None
    """The settings of training; ``None`` for a serving plan."""
    notes: tuple[str, ...]
    """Remarks about the model."""


def make_plan(
    model: Model,
    demand: Demand,
    formats: Sequence[Format],
    labels: Sequence[AnyVariant | str] = (),
    *,
    goal: Goal = "serving",
    task: TaskKind = "causal",
    regime: Regime | None = None,
) -> Plan:
    """Plan the serving or the training of a model and its variants.

    Args:
        model: The model.
        demand: The workload and the device.
        formats: The formats of the cache, at least one.
        labels: The variants, or their labels; if empty, the variants worth comparing.
        goal: Serving or training. A network that does not decode is always trained.
        task: The kind of task.
        regime: The settings of training.

    Raises:
        ValueError: for an invalid label.
    """
    regime = regime or Regime()
    candidates = choose_candidates(model, labels)
    serves = goal == "serving" and task == "causal" and model.is_causal
    notes = collect_notes(model, candidates, demand.context, encoder_tokens=demand.encoder_tokens)
    return Plan(
        model=model,
        layers=describe_layers(model),
        candidates=candidates,
        demand=demand,
        formats=tuple(formats),
        task=task,
        answer=_answer_serving(candidates, demand, formats)
        if serves
        else _answer_training(candidates, demand, regime, task),
        regime=None if serves else regime,
        notes=tuple(notes),
    )


def _answer_serving(candidates: Candidates, demand: Demand, formats: Sequence[Format]) -> Answer:
    model = candidates.original.model
    size = nearest_size(model_parameters(model).total)
    # Variants that were not requested may dominate requested ones.
    hidden = choose_candidates(model).rows
    rows = serve_variants(candidates.rows, demand, formats, size=size, hidden_candidates=hidden)
    return Answer(
        rows=rows,
        savings=find_savings(
            model,
            context=demand.context,
            stored_as=formats[0],
            encoder_tokens=demand.encoder_tokens,
        ),
        engines=compare_engines(model, demand, rows[0].plan),
        summary=summarize_serving(rows, demand),
        advice=(*advise_serving(rows), *TASK_REMARKS["causal"]),
        caveats=collect_caveats(row.quality for row in rows),
    )


def _answer_training(
    candidates: Candidates, demand: Demand, regime: Regime, task: TaskKind
) -> Answer:
    # How the cache is stored does not matter here.
    distinct = [row for row in candidates.rows if row.saving is None]
    size = nearest_size(model_parameters(candidates.original.model).total)
    rows = train_variants(distinct, demand, regime, size=size)
    return Answer(
        trained=rows,
        summary=tuple(advise_training(rows)),
        advice=TASK_REMARKS[task],
        caveats=collect_caveats(row.quality for row in rows),
    )
