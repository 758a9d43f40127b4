"""Plan a deployment: exact savings, memory, speed, price, and dominated variants."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._hardware import Hardware, choose_device
from qkvary.cli._models import (
    Decimal,
    ModelName,
    VariantLabels,
    choose_context,
    collect_notes,
    describe_layers,
    find_model,
    read_formats,
)
from qkvary.cli._options import Json
from qkvary.cli._output import show
from qkvary.cli._plans import Load, Purpose, Question
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.formats import parse_format
from qkvary.planning.plans import Plan, Regime, answer_serving, answer_training
from qkvary.reports.plan import plan_report
from qkvary.reports.report import ReportFormat
from qkvary.storage.errors import UsageError
from qkvary.text.units import parse_share

DEFAULT_HARDWARE = Hardware()
DEFAULT_LOAD = Load()
DEFAULT_PURPOSE = Purpose()

PlanFolder = Annotated[
    Path | None,
    Parameter(name="--out", help="Folder of plan.html and the charts (SVG, PNG, PDF)."),
]
PlanFormats = Annotated[
    tuple[ReportFormat, ...],
    Parameter(name="--format", negative=(), help="Format to write to --out; repeat it for more."),
]


def command(
    model: ModelName,
    /,
    *,
    variant: VariantLabels = (),
    hardware: Hardware = DEFAULT_HARDWARE,
    load: Load = DEFAULT_LOAD,
    purpose: Purpose = DEFAULT_PURPOSE,
    decimal: Decimal = False,
    out: PlanFolder = None,
    formats: PlanFormats = (),
    json_output: Json = False,
) -> None:
    """Plan a deployment: exact savings, memory, speed, price, and dominated variants.

    Speeds are bounds by bandwidth and arithmetic (roofline). Published changes of quality are those
    of networks trained from scratch, not of converted ones.
    """
    if formats and out is None:
        raise UsageError("expected --out with a folder for the files of --format, got none")
    plan = _answer(_resolve(model, variant, hardware, load, purpose), decimal=decimal)
    report = plan_report(plan)
    files: tuple[Path, ...] = ()
    if out is not None:
        from qkvary.reports.files import write_report

        files = write_report(report, out, formats or ("html", "svg", "png", "pdf"))
    show(report, json_output=json_output, files=files)


def _answer(question: Question, *, decimal: bool) -> Plan:
    """Return the question with its answer."""
    candidates, demand, task = question.candidates, question.demand, question.load.task
    regime = None
    if question.trains:
        regime = Regime(
            precision=question.purpose.precision,
            checkpointing=question.purpose.checkpointing,
            utilization=question.utilization,
        )
    return Plan(
        model=question.model,
        layers=describe_layers(question.model),
        candidates=candidates,
        demand=demand,
        formats=question.formats,
        task=task,
        answer=(
            answer_serving(candidates, demand, question.formats, task=task)
            if regime is None
            else answer_training(candidates, demand, regime, task=task)
        ),
        regime=regime,
        notes=tuple(
            collect_notes(
                question.model,
                candidates,
                question.context,
                encoder_tokens=question.load.encoder_tokens,
            )
        ),
        decimal=decimal,
    )


def _resolve(
    name: str, labels: Sequence[str], hardware: Hardware, load: Load, purpose: Purpose
) -> Question:
    device = choose_device(hardware)
    model = find_model(name)
    return Question(
        model=model,
        candidates=choose_candidates(model, labels),
        device=device,
        context=choose_context(model, load.context),
        load=load,
        purpose=purpose,
        reserve=parse_share(hardware.reserve),
        utilization=parse_share(purpose.utilization),
        price=hardware.price,
        formats=read_formats(load.dtype),
        weights=parse_format(load.weights),
    )
