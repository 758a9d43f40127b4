"""The options that describe the device of a plan."""

from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import options


@options
class Hardware:
    """The device of a plan."""

    gpu: Annotated[
        str | None, Parameter(name=("--gpu", "--device"), help="A device, such as a100-40gb.")
    ] = None
    memory: Annotated[str | None, Parameter(help="Memory, if not the device's: 24GiB, 40GB.")] = (
        None
    )
    bandwidth: Annotated[str | None, Parameter(help="Bandwidth, such as 68GB/s.")] = None
    flops: Annotated[str | None, Parameter(help="16-bit matrix rate, such as 2TFLOPS.")] = None
    reserve: Annotated[str, Parameter(help="Memory for activations and the engine.")] = "10%"
    price: Annotated[float | None, Parameter(help="Price per device and month.")] = None
