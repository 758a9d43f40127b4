"""Plans that the tests of their reports share."""

import dataclasses
from collections.abc import Sequence

from qkvary.arch.families.sizes import load_size
from qkvary.arch.models import Model
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.devices import Device, find_device
from qkvary.costs.formats import parse_format
from qkvary.costs.serving import Demand
from qkvary.planning.plans import Plan, Regime, answer_serving, answer_training


def make_plan(
    model: Model | str = "300M",
    *,
    labels: Sequence[str] = (),
    context: int = 32_768,
    device: Device | None = None,
    trains: bool = False,
    decimal: bool = False,
) -> Plan:
    """A plan for a hundred users of a model, which may be a named size."""
    known = load_size(model) if isinstance(model, str) else model
    candidates = choose_candidates(known, labels)
    formats = (parse_format("bf16"), parse_format("int8"))
    demand = Demand(
        device=device or find_device("a100-40gb"),
        context=context,
        users=100,
        weights=formats[0],
        price=2000.0,
    )
    regime = Regime(precision="mixed", checkpointing=False, utilization=0.4) if trains else None
    return Plan(
        model=known,
        layers="layers in words",
        candidates=candidates,
        demand=demand,
        formats=formats,
        task="causal",
        answer=(
            answer_serving(candidates, demand, formats)
            if regime is None
            else answer_training(candidates, demand, regime)
        ),
        regime=regime,
        notes=("a note on the model",),
        decimal=decimal,
    )


def renamed(plan: Plan, text: str) -> Plan:
    """The plan with a text in front of everything that comes from outside."""
    model = dataclasses.replace(plan.model, name=text + plan.model.name)
    device = dataclasses.replace(plan.demand.device, title=text + plan.demand.device.title)
    answer = dataclasses.replace(
        plan.answer,
        advice=tuple(text + sentence for sentence in plan.answer.advice),
        caveats=tuple(text + sentence for sentence in plan.answer.caveats),
    )
    return dataclasses.replace(
        plan,
        model=model,
        layers=text + plan.layers,
        demand=dataclasses.replace(plan.demand, device=device),
        answer=answer,
        notes=tuple(text + note for note in plan.notes),
    )
