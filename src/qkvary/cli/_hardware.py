"""The options that describe the device of a plan."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from qkvary.costs.devices import Device, find_device
from qkvary.storage.errors import UsageError
from qkvary.text.units import parse_bandwidth, parse_bytes, parse_flops


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The device of a plan."""

    gpu: Annotated[
        str | None, Parameter(name=("--gpu", "--device"), help="A device, such as a100-40gb.")
    ] = None
    memory: Annotated[
        str | None, Parameter(name="--memory", help="Memory, if not the device's: 24GiB, 40GB.")
    ] = None
    bandwidth: Annotated[
        str | None, Parameter(name="--bandwidth", help="Bandwidth, such as 68GB/s.")
    ] = None
    flops: Annotated[
        str | None, Parameter(name="--flops", help="16-bit matrix rate, such as 2TFLOPS.")
    ] = None
    reserve: Annotated[
        str, Parameter(name="--reserve", help="Memory for activations and the engine.")
    ] = "10%"
    price: Annotated[
        float | None, Parameter(name="--price", help="Price per device and month.")
    ] = None


def choose_device(hardware: Hardware) -> Device:
    """Return the named device with the given changes, or a device of one's own."""
    if hardware.gpu is None and hardware.memory is None:
        raise UsageError(
            "expected --gpu with a device such as a100-40gb, or --memory with an amount such as "
            "24GiB, got neither"
        )
    known = None if hardware.gpu is None else find_device(hardware.gpu)
    memory = None if hardware.memory is None else parse_bytes(hardware.memory)
    bandwidth = None if hardware.bandwidth is None else parse_bandwidth(hardware.bandwidth)
    flops = None if hardware.flops is None else parse_flops(hardware.flops)
    if known is None:
        return Device(
            name="custom",
            title="a device of your own",
            memory_bytes=memory or 0,
            bandwidth_bytes_per_second=bandwidth,
            flops_per_second_16_bit=flops,
            source="the command line",
        )
    return dataclasses.replace(
        known,
        memory_bytes=known.memory_bytes if memory is None else memory,
        bandwidth_bytes_per_second=(
            known.bandwidth_bytes_per_second if bandwidth is None else bandwidth
        ),
        flops_per_second_16_bit=known.flops_per_second_16_bit if flops is None else flops,
    )
