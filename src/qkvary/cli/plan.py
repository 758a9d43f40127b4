"""Plan a deployment: exact savings, memory, speed, price, and dominated variants."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.checkpoints.reference_models import find_reference
from qkvary.cli._hardware import Hardware
from qkvary.cli._models import Decimal, ModelName, VariantLabels
from qkvary.cli._options import Full, Json
from qkvary.cli._output import show
from qkvary.cli._plans import Load, Purpose
from qkvary.costs.comparison import choose_context
from qkvary.costs.devices import choose_device
from qkvary.costs.formats import parse_format, parse_formats
from qkvary.costs.serving import Demand
from qkvary.planning.plans import Regime, make_plan
from qkvary.reports.plan import plan_report
from qkvary.reports.report import ReportFormat
from qkvary.storage.errors import UsageError
from qkvary.text.units import parse_share

DEFAULT_HARDWARE = Hardware()
DEFAULT_LOAD = Load()
DEFAULT_PURPOSE = Purpose()

PlanFolder = Annotated[
    Path | None, Parameter(help="Folder of plan.html and the charts (SVG, PNG, PDF).")
]
PlanFormats = Annotated[
    tuple[ReportFormat, ...],
    Parameter(name="--format", help="Format to write to --out; repeat it for more."),
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
    full: Full = False,
    json_output: Json = False,
) -> None:
    """Plan a deployment: exact savings, memory, speed, price, and dominated variants.

    The answer says what serves now, what would with fewer bits of cache, and what after training.
    Speeds are bounds by bandwidth and arithmetic (roofline). Published changes of quality are those
    of networks trained from scratch, not of converted ones.
    """
    if formats and out is None:
        raise UsageError("expected --out with a folder for the files of --format, got none")
    device = choose_device(
        hardware.gpu,
        memory=hardware.memory,
        bandwidth=hardware.bandwidth,
        flops=hardware.flops,
    )
    named = find_reference(model)
    demand = Demand(
        device=device,
        context=choose_context(named, load.context),
        users=load.users,
        weights=parse_format(load.weights),
        reserve=parse_share(hardware.reserve),
        price=hardware.price,
        encoder_tokens=load.encoder_tokens,
    )
    regime = Regime(
        precision=purpose.precision,
        checkpointing=purpose.checkpointing,
        utilization=parse_share(purpose.utilization),
    )
    plan = make_plan(
        named,
        demand,
        parse_formats(load.dtype),
        variant,
        goal=purpose.goal,
        task=load.task,
        regime=regime,
        decimal=decimal,
    )
    written = formats or ("html", "svg", "png", "pdf")
    show(plan_report(plan), json_output=json_output, target=out, formats=written, full=full)
