"""Plans that the tests of their reports share."""

from collections.abc import Sequence

from qkvary.arch.families.sizes import load_size
from qkvary.arch.models import Model
from qkvary.costs.devices import Device, find_device
from qkvary.costs.formats import parse_format
from qkvary.costs.serving import Demand
from qkvary.planning import plans
from qkvary.planning.plans import Plan


def make_plan(
    model: Model | str = "300M",
    *,
    labels: Sequence[str] = (),
    context: int = 32_768,
    device: Device | None = None,
    trains: bool = False,
) -> Plan:
    """A plan for a hundred users of a model, which may be a named size."""
    formats = (parse_format("bf16"), parse_format("int8"))
    demand = Demand(
        device=device or find_device("a100-40gb"),
        context=context,
        users=100,
        weights=formats[0],
        price=2000.0,
    )
    return plans.make_plan(
        load_size(model) if isinstance(model, str) else model,
        demand,
        formats,
        labels,
        goal="training" if trains else "serving",
    )
