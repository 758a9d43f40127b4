"""Devices that models run on: memory, bandwidth and arithmetic speed, each with its source.

The numbers are the vendors' own peaks, without sparsity. A GB is taken as 10^9 bytes, to be
cautious: drivers often report a few percent more.
"""

from dataclasses import dataclass, replace

from qkvary.text.names import find_name, near_names, spell
from qkvary.text.numbers import parse_bandwidth, parse_bytes, parse_flops

GB = 10**9
TERA = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that models run on: its memory, its bandwidth, and its FLOPs per second."""

    name: str
    """The name on the command line."""
    title: str
    """The name that the vendor uses."""
    memory_bytes: int
    bandwidth_bytes_per_second: float | None = None
    """Peak memory bandwidth; ``None`` if not known."""
    flops_per_second_16_bit: float | None = None
    """Peak rate of dense bf16 or fp16 matrix products with 32-bit sums; ``None`` if not known."""
    source: str = ""


def _device(
    name: str,
    title: str,
    memory: float,
    bandwidth: float,
    teraflops: float | None = None,
    remark: str = "",
) -> Device:
    model = title.partition(" SXM")[0].partition(" PCIe")[0].removesuffix(" 40GB")
    return Device(
        name=name,
        title=title,
        memory_bytes=round(memory * GB),
        bandwidth_bytes_per_second=bandwidth * GB,
        flops_per_second_16_bit=None if teraflops is None else teraflops * TERA,
        source=f"{model} datasheet{remark}",
    )


_HALF = " (half of the sparse rate)"
_SUMS = " (fp16 products with 32-bit sums, without sparsity)"
_PHONE = " (LPDDR5X at 4,800 MHz, 64 bits)"
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("t4", "NVIDIA T4", 16, 320, 65),
        _device("v100-32gb", "NVIDIA V100 SXM2 32GB", 32, 900, 125, " (tensor cores, fp16)"),
        _device("a10", "NVIDIA A10", 24, 600, 125),
        _device("a100-40gb", "NVIDIA A100 40GB", 40, 1_555, 312),
        _device("a100-80gb", "NVIDIA A100 SXM 80GB", 80, 2_039, 312),
        _device("l4", "NVIDIA L4", 24, 300, 121, _HALF),
        _device("l40s", "NVIDIA L40S", 48, 864, 362.05, " (without sparsity)"),
        _device("h100-80gb", "NVIDIA H100 SXM 80GB", 80, 3_350, 989.5, _HALF),
        _device("h100-pcie", "NVIDIA H100 PCIe 80GB", 80, 2_000, 756.5, _HALF),
        _device("h200", "NVIDIA H200 SXM 141GB", 141, 4_800, 989.5, _HALF),
        _device("mi300x", "AMD Instinct MI300X", 192, 5_300, 1_307.4),
        _device("rtx-3090", "NVIDIA GeForce RTX 3090", 24, 936, 71, _SUMS),
        _device("rtx-4090", "NVIDIA GeForce RTX 4090", 24, 1_008, 165.2, _SUMS),
        _device("rtx-5090", "NVIDIA GeForce RTX 5090", 32, 1_792, 209.5, _SUMS),
        # Devices whose speed is set by memory: transfers per second times bytes per transfer.
        _device("raspberry-pi-5", "Raspberry Pi 5 8GB", 8, 17.1, None, " (LPDDR4X-4267, 32 bits)"),
        _device("jetson-orin-nano", "NVIDIA Jetson Orin Nano 8GB", 8, 68, None, " (102 as Super)"),
        _device("jetson-agx-orin", "NVIDIA Jetson AGX Orin 64GB", 64, 204.8),
        _device("apple-m1", "Apple M1 16GB", 16, 68.25, None, " (LPDDR4X-4266, 128 bits)"),
        _device("apple-m2", "Apple M2 16GB", 16, 100),
        _device("apple-m4", "Apple M4 16GB", 16, 120),
        _device("apple-m4-pro", "Apple M4 Pro 48GB", 48, 273),
        _device("apple-m4-max", "Apple M4 Max 128GB", 128, 546),
        _device("snapdragon-8-gen-3", "Snapdragon 8 Gen 3, 12GB", 12, 76.8, None, _PHONE),
        _device(
            "laptop-ddr5", "Laptop with DDR5-5600, 16GB", 16, 89.6, None, " (two 64-bit channels)"
        ),
    )
}
"""Devices by name."""

_OWN = Device(name="custom", title="a device of your own", memory_bytes=1, source="given")


def find_device(name: str) -> Device:
    """Return the device called ``name``; the error for an unknown name lists all choices."""
    known = find_name(name, DEVICES)
    if known is not None:
        return DEVICES[known]
    # A prefix suggests the names that begin with it, before names that are spelled similarly.
    key = spell(name)
    near = [one for one in DEVICES if key and one.startswith(key)] or near_names(key, DEVICES)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"expected one of the devices {', '.join(DEVICES)}, got {name!r}; {hint}"
        "for any other device give --memory, and --bandwidth and --flops for its speed"
    )


def choose_device(
    gpu: str | None = None,
    *,
    memory: str | None = None,
    bandwidth: str | None = None,
    flops: str | None = None,
) -> Device:
    """Return the device called ``gpu``, or an unnamed device if ``gpu`` is ``None``.

    Amounts that are given replace those of the device. They are texts such as ``24GiB``,
    ``68GB/s`` and ``2TFLOPS`` (of 16-bit matrix products).
    """
    if gpu is None and memory is None:
        raise ValueError(
            "expected a gpu such as a100-40gb, or a memory size such as 24GiB, got neither"
        )
    device = _OWN if gpu is None else find_device(gpu)
    if memory is not None:
        device = replace(device, memory_bytes=parse_bytes(memory))
    if bandwidth is not None:
        device = replace(device, bandwidth_bytes_per_second=parse_bandwidth(bandwidth))
    if flops is not None:
        device = replace(device, flops_per_second_16_bit=parse_flops(flops))
    return device
