"""The options that several commands share, with one name, one meaning and one help text each."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

DEFAULT_OUT = Path("runs")

Json = Annotated[
    bool, Parameter(name="--json", negative=(), help="Print one JSON document and nothing else.")
]
Out = Annotated[Path, Parameter(name="--out", help="Folder of the runs and of what is written.")]
Device = Annotated[
    str, Parameter(name="--device", help="Where to compute: cpu, cuda, cuda:1, mps.")
]
DataType = Annotated[
    Literal["float32", "float64", "bfloat16"],
    Parameter(name="--dtype", help="Number format of weights and arithmetic."),
]
