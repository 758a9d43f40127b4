"""``qk.plan``: what serves or trains a model, and which variant to choose."""

from __future__ import annotations

from qkvary.api.models import Configured, Labels, find_model, read_count, read_labels, read_share
from qkvary.api.results import Result
from qkvary.arch.models import Model
from qkvary.arch.networks import Network
from qkvary.costs.comparison import choose_context
from qkvary.costs.devices import Device, choose_device
from qkvary.costs.formats import parse_format, parse_formats
from qkvary.costs.serving import Demand
from qkvary.costs.training import Precision
from qkvary.planning.advice import Goal, TaskKind
from qkvary.planning.plans import Plan, Regime, make_plan
from qkvary.reports.plan import plan_report
from qkvary.storage.paths import StrPath


# The parameters are the options of the command, by the same names.
def plan(  # noqa: PLR0913
    model: StrPath | Model | Network | Configured,
    variants: Labels = (),
    *,
    gpu: str | None = None,
    memory: str | None = None,
    bandwidth: str | None = None,
    flops: str | None = None,
    reserve: float | str = 0.1,
    price: float | None = None,
    context: int | str | None = None,
    users: int | str = 1,
    encoder_tokens: int | None = None,
    dtype: str = "bf16,int8",
    weights: str = "bf16",
    task: TaskKind = "causal",
    goal: Goal = "serving",
    precision: Precision = "mixed",
    checkpointing: bool = False,
    utilization: float | str = 0.4,
    decimal: bool = False,
) -> Result[Plan]:
    """Plan a deployment: exact savings, memory, speed, price, and dominated variants.

    The answer says what serves now, what would with fewer bits of cache, and what after training.
    Speeds are bounds by bandwidth and arithmetic (roofline). Published changes of quality are those
    of networks trained from scratch, not of converted ones.

    Args:
        model: As for ``qk.cost``.
        variants: The variants to compare, or their labels; those worth comparing by default.
        gpu: The device, such as ``a100-40gb``.
        memory: Memory, if not the device's: ``24GiB``, ``40GB``. Enough without a device.
        bandwidth: Its bandwidth, such as ``68GB/s``.
        flops: Its 16-bit matrix rate, such as ``2TFLOPS``.
        reserve: The share of memory for activations and the engine: 0.1 or ``"10%"``.
        price: Price per device and month.
        context: Tokens per sequence; by default the model's maximum, at most 8,192.
        users: Users at once, a sequence each.
        encoder_tokens: Tokens that an encoder reads; as many as ``context`` by default.
        dtype: Formats of the cache, separated by commas.
        weights: The format of the weights.
        task: The kind of task: ``causal``, ``set`` or ``image``.
        goal: ``serving`` or ``training``.
        precision: Training: ``mixed`` or ``fp32``.
        checkpointing: Training: store only each block's input and recompute the block.
        utilization: Training: the share of the matrix rate reached.
        decimal: Show kB, MB and GB instead of KiB, MiB and GiB.

    Raises:
        ValueError: for an unknown model, label, device or format, neither device nor memory, or a
            number that makes no sense.
        DownloadError: if the hub cannot be reached.
    """
    device = _choose_device(gpu, memory, bandwidth, flops)
    found = find_model(model)
    made = make_plan(
        found,
        Demand(
            device=device,
            context=choose_context(found, None if context is None else read_count(context)),
            users=read_count(users),
            weights=parse_format(weights),
            reserve=read_share(reserve),
            price=price,
            encoder_tokens=encoder_tokens,
        ),
        parse_formats(dtype),
        read_labels(variants),
        goal=goal,
        task=task,
        regime=Regime(
            precision=precision,
            checkpointing=checkpointing,
            utilization=read_share(utilization),
        ),
        decimal=decimal,
    )
    return Result(made, plan_report(made))


def _choose_device(*given: str | None) -> Device:
    """Return the device; a number without its unit is refused as on the command line."""
    gpu, memory, bandwidth, flops = (None if one is None else str(one) for one in given)
    return choose_device(gpu, memory=memory, bandwidth=bandwidth, flops=flops)
