"""What a plan is asked, as it is typed and resolved, before anything is counted or printed."""

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
    """What a model is planned to do."""

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
        Parameter(
            name=("--dtype", "--cache"), help="How the cache may be stored, separated by commas."
        ),
    ] = "bf16,int8"
    weights: WeightFormat = "bf16"
    task: Annotated[
        TaskKind,
        Parameter(name="--task", help="What the model reads: causal text, sets, or images."),
    ] = "causal"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """Serving or training, and how it is trained."""

    goal: Annotated[
        Goal, Parameter(name="--goal", help="What is planned: serving or training.")
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
            help="Training: keep each block's input only and compute the block again.",
        ),
    ] = False
    utilization: Annotated[
        str,
        Parameter(name="--utilization", help="Training: the share of the matrix rate reached."),
    ] = "40%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything that was asked, resolved."""

    model: Model
    """The model as it is."""
    candidates: Candidates
    """It and its variants."""
    device: Device
    """What it runs on."""
    context: int
    """Tokens of a sequence."""
    load: Load
    """What it has to do."""
    purpose: Purpose
    """Serving or training."""
    reserve: float
    """The share of memory that is left alone."""
    utilization: float
    """The share of the matrix rate that training reaches."""
    price: float | None
    """Of one device and month."""
    formats: tuple[Format, ...]
    """How the cache may be stored."""
    weights: Format
    """How weights are stored."""

    @property
    def demand(self) -> Demand:
        """As a serving plan wants it."""
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
        """Whether training is planned, or a network that decodes nothing."""
        serving = self.purpose.goal == "serving" and self.load.task == "causal"
        return not (serving and self.model.is_causal)
