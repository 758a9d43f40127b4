"""The bytes of number formats; those of quantised formats include their scales.

A quantised format has a scale for each group of numbers of a row (``int4-g32``), or for each column
over a block of rows (``int4-b32``). It may keep the newest rows unquantised (``-r16``), in 16 bits
or in a stated format (``-fp32``).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qkvary.arch.caches import QUANTIZED_BITS, CacheOptions, CacheStorage
from qkvary.text.names import short

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
"""Dtypes of computation."""

DEFAULT_GROUP = 64
"""Default number of values that share a scale, as in quantised caches of transformers."""
SCALE_BYTES = 4
"""Bytes per group: a 32-bit scale, or a 16-bit scale and a 16-bit zero point."""

MOST_SHARED = 2**20
"""Maximum number of values or rows that share a scale."""

_QUANTIZED = re.compile(
    r"(int8|int4|int3)(?:-([gb])([0-9]{1,9}))?(?:-r([0-9]{1,9}))?(?:-(fp64|fp32|bf16|fp16))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The format of a stored number."""

    name: str
    """Name on the command line."""
    bits: int
    """Bits per value, without scales."""
    group: int | None = None
    """Number of values that share a scale and a zero point; ``None`` if there are none."""
    block: int | None = None
    """Number of rows in a block. The rows of a block share one scale for each column. Blocks are
    counted from the first row. A block is quantised once it is full. ``None`` if rows share no
    scale."""
    residual: int = 0
    """Number of newest rows that are not quantised."""
    plain_bits: int = 16
    """Bits of a value that is not quantised."""

    @property
    def is_lossy(self) -> bool:
        """Whether a value is stored in fewer than 16 bits."""
        return self.bits < 16

    @property
    def is_uniform(self) -> bool:
        """Whether every row takes the same number of bytes."""
        return self.block is None and not self.residual

    @property
    def plain(self) -> "Format":
        """The format of rows that are not quantised."""
        return Format(name=f"{self.plain_bits} bits", bits=self.plain_bits)

    def _closed(self, seen: int) -> int:
        block = self.block or 1
        return max(0, seen - self.residual) // block * block

    def last_closing(self, seen: int) -> int:
        """Return the number of rows when a block was last quantised; 0 before the first time.

        ``seen`` is the present number of rows.
        """
        closed = self._closed(seen)
        return closed + self.residual if closed else 0

    def divide(self, seen: int, kept: int) -> tuple[int, int, int]:
        """Return three counts: quantised rows, rows of shared scales, and unquantised rows.

        Only the newest ``kept`` rows of the ``seen`` rows are counted.
        """
        coded = max(0, self._closed(seen) - (seen - kept))
        shared = 0 if self.block is None else math.ceil(coded / self.block)
        return coded, shared, kept - coded

    def row_bytes(self, numbers: int) -> int:
        """Return the size of a row of numbers with its scales, in bytes."""
        scales = 0 if self.group is None else math.ceil(numbers / self.group) * SCALE_BYTES
        return math.ceil(numbers * self.bits / 8) + scales


# The one scale per tensor of fp8 is not counted.
_BITS = {"fp64": 64, "fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8}
_PLAIN = {name: Format(name=name, bits=bits) for name, bits in _BITS.items()}
_ALIASES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
}
FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4")
"""The names that a user can choose from."""


SCALE = _PLAIN["fp32"]
"""The format of scales that several rows share."""


def parse_format(text: str) -> Format:
    """Parse a name such as ``bf16``, ``bfloat16``, ``int8`` or ``int4-g32`` (groups of 32)."""
    name = text.strip().lower()
    name = _ALIASES.get(name, name)
    if name in _PLAIN:
        return _PLAIN[name]
    match = _QUANTIZED.fullmatch(name)
    if match is None:
        choices = ", ".join(FORMATS)
        raise ValueError(
            f"expected one of the formats {choices}, or one such as int4-g32, got "
            f"{short(text, 60)!r}"
        )
    kind, sharing, count, residual, plain = match.groups()
    shared = DEFAULT_GROUP if count is None else int(count)
    if not 1 <= shared <= MOST_SHARED:
        raise ValueError(f"expected 1 to {MOST_SHARED:,} values or rows per scale, got {shared}")
    return Format(
        name=name,
        bits=int(kind.removeprefix("int")),
        group=None if sharing == "b" else shared,
        block=shared if sharing == "b" else None,
        residual=int(residual or 0),
        plain_bits=16 if plain is None else _PLAIN[plain].bits,
    )


def parse_formats(text: str | Sequence[str]) -> tuple[Format, ...]:
    """Parse several formats, separated by commas or given as a list."""
    parts = text.split(",") if isinstance(text, str) else text
    return tuple(dict.fromkeys(map(parse_format, parts)))


def cache_format(options: CacheOptions, dtype: Dtype) -> Format:
    """Return the number format of a cache with these options for numbers of type ``dtype``."""
    if options.bits is None:
        return parse_format(dtype)
    shared = f"b{options.block}" if options.scales == "channel" else f"g{options.group}"
    residual = f"-r{options.residual}" if options.residual else ""
    return parse_format(f"int{options.bits}-{shared}{residual}-{_ALIASES[dtype]}")


def format_options(options: CacheOptions) -> str:
    """Return the name of a cache's storage, such as ``growing`` or ``int4-b32-r16-rot``."""
    if options.bits is None:
        return options.storage
    name = cache_format(options, "float16").name.removesuffix("-fp16")
    return f"{name}-rot" if options.rotate else name


def parse_options(text: str) -> CacheOptions:
    """Parse a name from ``format_options``: ``growing``, ``int4-g32``, ``int4-b32-r16-rot``."""
    spelled = text.strip().lower()
    if spelled in ("growing", "preallocated"):
        return CacheOptions(storage="growing" if spelled == "growing" else "preallocated")
    plain = spelled.removesuffix("-rot")
    form = parse_format(plain) if _QUANTIZED.fullmatch(plain) else None
    storages: dict[int, CacheStorage] = {bits: kind for kind, bits in QUANTIZED_BITS.items()}
    if form is None or re.search("fp|bf", plain):
        raise ValueError(
            "expected a storage such as int8-g64 (scales by token and group of channels) or "
            "int4-b32-r16-rot (by channel over blocks of tokens, 16 unquantised tokens, rotated "
            f"first), got {short(text, 60)!r}; choices: {', '.join(QUANTIZED_BITS)}"
        )
    return CacheOptions(
        storage=storages[form.bits],
        scales="token" if form.block is None else "channel",
        group=form.group or DEFAULT_GROUP,
        block=form.block or CacheOptions().block,
        residual=form.residual,
        rotate=spelled != plain,
    )
