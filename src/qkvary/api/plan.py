"""Plan a deployment: exact savings, memory, speed, price, and dominated variants."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.options import AnyModel, Variants
from qkvary.api.results import Result
from qkvary.costs.comparison import choose_context
from qkvary.costs.devices import choose_device
from qkvary.costs.formats import parse_format, parse_formats
from qkvary.costs.serving import Demand
from qkvary.planning.advice import Goal, TaskKind
from qkvary.planning.plans import Plan, make_plan
from qkvary.planning.training_advice import Regime
from qkvary.reports.plan import plan_report
from qkvary.text.numbers import Count, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Options for the device to plan for."""

    gpu: Annotated[str | None, Parameter(name=("--gpu", "--device"))] = None
    """A device, such as a100-40gb."""
    memory: str | None = None
    """Memory, if it differs from the device's: 24GiB, 40GB. Can be given without a device."""
    bandwidth: str | None = None
    """Memory bandwidth, such as 68GB/s."""
    flops: str | None = None
    """Peak speed of 16-bit matrix multiplication, such as 2TFLOPS."""
    reserve: Share = 0.1
    """Share of the memory to reserve for activations and the engine."""
    price: float | None = None
    """Price of one device per month."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load to plan for: context, users and number formats."""

    context: Count | None = None
    """Tokens per sequence: 2048, 32k (32,768), 1M. By default the model's maximum, at most 8k."""
    users: Count = 1
    """Concurrent users, each with one sequence."""
    encoder_tokens: Count | None = None
    """Tokens in the input of an encoder; the context if not given."""
    dtype: Annotated[str, Parameter(name=("--dtype", "--cache"))] = "bf16,int8"
    """Number formats of the cache, separated by commas."""
    weights: str = "bf16"
    """Number format of the weights: fp32, bf16, fp8, int8, int4."""
    task: TaskKind = "causal"
    """Kind of task: causal text, sets, or images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose(Regime):
    """Serving or training, and the settings of training."""

    goal: Goal = "serving"
    """Goal of the plan: serving or training."""


HARDWARE, LOAD, PURPOSE = Hardware(), Load(), Purpose()


@verb
def plan(
    model: AnyModel,
    variants: Variants = (),
    *,
    hardware: Hardware = HARDWARE,
    load: Load = LOAD,
    purpose: Purpose = PURPOSE,
) -> Result[Plan]:
    """Plan a deployment: exact savings, memory, speed, price, and dominated variants.

    The answer says what works now, what would work with a quantised cache, and what would work
    after training. Speeds are upper bounds from bandwidth and arithmetic (roofline). The
    published quality differences are from networks trained from scratch, not from converted
    networks.

    Args:
        model: The model, by its name or as a value.
        variants: Compare these variants, in any spelling (Q-K=V, q,k=v, MQA). If none are
            given, variants that are worth comparing are chosen.
        hardware: The device, its price and the reserved memory.
        load: The context, users and number formats.
        purpose: Serving or training, with the settings of training.

    Raises:
        ValueError: if a model, label, device or format is unknown, if neither a device nor memory
            is given, or if a number makes no sense.
        DownloadError: if the hub cannot be reached.
    """
    demand = Demand(
        device=choose_device(
            hardware.gpu,
            memory=hardware.memory,
            bandwidth=hardware.bandwidth,
            flops=hardware.flops,
        ),
        context=choose_context(model, load.context),
        users=load.users,
        weights=parse_format(load.weights),
        reserve=hardware.reserve,
        price=hardware.price,
        encoder_tokens=load.encoder_tokens,
    )
    made = make_plan(
        model,
        demand,
        parse_formats(load.dtype),
        variants,
        goal=purpose.goal,
        task=load.task,
        regime=purpose,
    )
    return Result(made, plan_report(made))
