"""The options of a plan: the demand and the goal."""

from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._models import Context, EncoderTokens, WeightFormat
from qkvary.cli._options import options, positive
from qkvary.costs.training import Precision
from qkvary.planning.advice import Goal, TaskKind


@options
class Load:
    """The demand on a model."""

    context: Context = None
    users: Annotated[int, positive("Users at once, a sequence each.")] = 1
    encoder_tokens: EncoderTokens = None
    dtype: Annotated[
        str,
        Parameter(name=("--dtype", "--cache"), help="Formats of the cache, separated by commas."),
    ] = "bf16,int8"
    weights: WeightFormat = "bf16"
    task: Annotated[TaskKind, Parameter(help="Kind of task: causal text, sets, or images.")] = (
        "causal"
    )


@options
class Purpose:
    """Serving or training, and the settings of training."""

    goal: Annotated[Goal, Parameter(help="Goal of the plan: serving or training.")] = "serving"
    precision: Annotated[
        Precision, Parameter(help="Training: 16-bit with 32-bit master weights, or fp32.")
    ] = "mixed"
    checkpointing: Annotated[
        bool, Parameter(help="Training: store only each block's input and recompute the block.")
    ] = False
    utilization: Annotated[
        str, Parameter(help="Training: the share of the matrix rate reached.")
    ] = "40%"
