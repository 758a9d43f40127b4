"""The options of a plan, and the question that they resolve to."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from qkvary.arch.models import Model
from qkvary.cli._models import Context, EncoderTokens, WeightFormat
from qkvary.cli._options import convert_positive
from qkvary.costs.candidates import Candidates
from qkvary.costs.devices import Device
from qkvary.costs.formats import Format
from qkvary.costs.serving import Demand
from qkvary.costs.training import Precision
from qkvary.planning.advice import Goal, TaskKind


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The demand on a model."""

    context: Context = None
    users: Annotated[
        int,
        Parameter(
            name="--users", converter=convert_positive, help="Users at once, a sequence each."
        ),
    ] = 1
    encoder_tokens: EncoderTokens = None
    dtype: Annotated[
        str,
        Parameter(name=("--dtype", "--cache"), help="Formats of the cache, separated by commas."),
    ] = "bf16,int8"
    weights: WeightFormat = "bf16"
    task: Annotated[
        TaskKind,
        Parameter(name="--task", help="Kind of task: causal text, sets, or images."),
    ] = "causal"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """Serving or training, and the settings of training."""

    goal: Annotated[
        Goal, Parameter(name="--goal", help="Goal of the plan: serving or training.")
    ] = "serving"
    precision: Annotated[
        Precision,
        Parameter(name="--precision", help="Training: 16-bit with 32-bit master weights, or fp32."),
    ] = "mixed"
    checkpointing: Annotated[
        bool,
        Parameter(
            name="--checkpointing",
            negative=(),
            help="Training: store only each block's input and recompute the block.",
        ),
    ] = False
    utilization: Annotated[
        str,
        Parameter(name="--utilization", help="Training: the share of the matrix rate reached."),
    ] = "40%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The resolved question of a plan."""

    model: Model
    """The given model."""
    candidates: Candidates
    """The model and its variants."""
    device: Device
    """The device."""
    context: int
    """Tokens of a sequence."""
    load: Load
    """The demand as given."""
    purpose: Purpose
    """The goal as given."""
    reserve: float
    """The share of memory that stays free."""
    utilization: float
    """The share of the peak matrix rate in training."""
    price: float | None
    """The price of one device per month."""
    formats: tuple[Format, ...]
    """The formats of the cache."""
    weights: Format
    """The format of the weights."""

    @property
    def demand(self) -> Demand:
        """The demand of a serving plan."""
        return Demand(
            device=self.device,
            context=self.context,
            users=self.load.users,
            weights=self.weights,
            reserve=self.reserve,
            price=self.price,
            encoder_tokens=self.load.encoder_tokens,
        )

    @property
    def trains(self) -> bool:
        """Whether the plan is for training, or for a network that does not decode."""
        serving = self.purpose.goal == "serving" and self.load.task == "causal"
        return not (serving and self.model.is_causal)
