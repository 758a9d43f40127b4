"""Number formats in bytes: plain ones, and quantised ones with their scales counted."""

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
"""What is computed in."""

DEFAULT_GROUP = 64
"""Numbers that share a scale, where none is given (the default of quantised caches in
transformers, ``q_group_size``)."""
SCALE_BYTES = 4
"""Of a group: a scale of 32 bits, or a scale and a zero point of 16 bits each."""

_GROUPED = re.compile(r"(int8|int4)(?:-g([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a number is stored."""

    name: str
    """As it is spelled on the command line."""
    bits: int
    """Of a number itself."""
    group: int | None = None
    """Numbers that share a scale and a zero point; ``None`` where there are none."""

    @property
    def is_lossy(self) -> bool:
        """Whether fewer than 16 bits are kept, so that values are rounded beyond the usual."""
        return self.bits < 16

    def row_bytes(self, numbers: int) -> int:
        """Bytes of a row, whose groups are not shared with another row."""
        scales = 0 if self.group is None else math.ceil(numbers / self.group) * SCALE_BYTES
        return math.ceil(numbers * self.bits / 8) + scales


_PLAIN = {
    "fp64": Format(name="fp64", bits=64),
    "fp32": Format(name="fp32", bits=32),
    "bf16": Format(name="bf16", bits=16),
    "fp16": Format(name="fp16", bits=16),
    # One scale a tensor, which is not counted.
    "fp8": Format(name="fp8", bits=8),
}
_ALIASES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}
FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4")
"""The names that a person chooses from."""


def parse_format(text: str) -> Format:
    """Read a format: ``bf16``, ``fp8``, ``int8``, ``int4-g32`` (groups of 32), or torch's names.

    Raises:
        ValueError: for anything else, with the choices.
    """
    name = text.strip().lower()
    name = _ALIASES.get(name, name)
    if name in _PLAIN:
        return _PLAIN[name]
    match = _GROUPED.fullmatch(name)
    if match is None:
        choices = ", ".join(FORMATS)
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise ValueError(f"expected a format out of {choices}, int4-g32 ..., got {shown!r}")
    group = DEFAULT_GROUP if match[2] is None else int(match[2])
    if not 1 <= group <= 2**20:
        raise ValueError(f"expected groups of 1 to 1,048,576 numbers, got {group}")
    return Format(name=name, bits=int(match[1].removeprefix("int")), group=group)


def dtype_bytes(dtype: Dtype) -> int:
    """Bytes of one number.

    Raises:
        ValueError: for an unknown dtype.
    """
    if dtype not in get_args(Dtype):
        raise ValueError(f"expected a dtype out of {', '.join(get_args(Dtype))}, got {dtype!r}")
    return parse_format(dtype).bits // 8
