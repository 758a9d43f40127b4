"""The configuration of the network in a GGUF file, from its header alone.

Torch-free. Only the forms that this program computes are read; everything else is refused with the
reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.families.attention_fields import Heads
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.checkpoints.gguf.headers import GELU, Described
from qkvary.checkpoints.gguf.rotation import count_rotated
from qkvary.checkpoints.stock_names import GGUF_NAMES, StockArchitecture
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import LARGEST_SIZE

_PLAIN: Mapping[str, tuple[object, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "rope.scale_linear": (0, 1),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
}
"""The values that do not change the computation, by key; a factor of 0 means none."""


def read_sizes(file: Described, where: str) -> Sizes:
    """Return the sizes of a file of a known architecture.

    Args:
        file: Its header.
        where: Its name in messages.

    Raises:
        UsageError: for a network that this program does not compute.
    """
    named = file.metadata.get("general.architecture")
    known: dict[object, StockArchitecture] = {name: one for one, name in GGUF_NAMES.items()}
    if not isinstance(named, str) or named not in known:
        raise UsageError(
            f"{where} is a network of the architecture {named!r:.40}; choices: "
            f"{', '.join(GGUF_NAMES.values())}"
        )
    sizes = Sizes(file, known[named], where)
    sizes.require_plain()
    return sizes


class Sizes:
    """The sizes in a header."""

    def __init__(self, file: Described, architecture: StockArchitecture, where: str) -> None:
        """Read sizes of an architecture."""
        self.file, self.where = file, where
        self.architecture: StockArchitecture = architecture
        self._prefix = GGUF_NAMES[architecture]

    def get(self, name: str, default: int | None = None) -> int:
        """Return a size."""
        found = self.file.metadata.get(f"{self._prefix}.{name}", default)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= LARGEST_SIZE:
            raise DamagedError(
                f"{self.where} has {name} {found!r:.40}, expected 1 to {LARGEST_SIZE:,}"
            )
        return found

    def number(self, name: str, default: float) -> float:
        """Return a number that is no size."""
        found = self.file.metadata.get(f"{self._prefix}.{name}", default)
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise DamagedError(f"{self.where} has {name} {found!r:.40}, expected a number")
        return float(found)

    def require(self, what: str, found: object, expected: object) -> None:
        """Refuse a network with another value than the one that is computed here."""
        if found != expected:
            raise UsageError(f"{self.where} has {what} {found}, expected {expected}")

    def require_plain(self) -> None:
        """Refuse a network with a value that changes the computation."""
        for key, found in self.file.metadata.items():
            name = key.removeprefix(f"{self._prefix}.")
            known = name in _PLAIN or name.startswith("rope.scaling.")
            if name != key and known and found not in _PLAIN.get(name, ()):
                raise UsageError(f"{self.where} has {name}, which this program does not compute")

    def rotary_base(self) -> float:
        """Return the base of the rotation's frequencies."""
        found = self.number("rope.freq_base", 10_000.0)
        if not (math.isfinite(found) and found > 0):
            raise DamagedError(
                f"{self.where} has rope.freq_base {found}, expected a finite number above 0"
            )
        return found

    def epsilon(self, name: str) -> float:
        """Return the epsilon of the norms as it was written, where 32 bits stand for it."""
        found = self.number(name, 1e-5)
        return next((one for one in (1e-5, 1e-6) if abs(found - one) < 1e-6 * one), found)

    @property
    def layers(self) -> int:
        """Blocks; each has a tensor."""
        layers = self.get("block_count")
        if layers > len(self.file.shapes):
            raise DamagedError(f"{self.where} has {layers:,} layers and fewer tensors")
        return layers

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        if name not in self.file.shapes:
            raise DamagedError(f"{self.where} has no {name}")
        return self.file.shapes[name]


def _make_llama(sizes: Sizes) -> LanguageModelConfig:
    d_model, heads = sizes.get("embedding_length"), sizes.get("attention.head_count")
    head_dim = sizes.get("attention.key_length", d_model // heads)
    sizes.require("value_length", sizes.get("attention.value_length", head_dim), head_dim)
    sizes.require("rope.dimension_count", sizes.get("rope.dimension_count", head_dim), head_dim)
    kv_heads = sizes.get("attention.head_count_kv", heads)
    return LanguageModelConfig(
        attention=Heads(d_model=d_model, count=heads, kv_count=kv_heads, dim=head_dim).attend(
            positions="rotary",
            rotation=_read_rotation(sizes, head_dim),
            bias="blk.0.attn_q.bias" in sizes.file.shapes,
            out_bias="blk.0.attn_output.bias" in sizes.file.shapes,
        ),
        block=BlockConfig(
            d_ff=sizes.get("feed_forward_length"),
            activation="swiglu",
            norm="rmsnorm",
            bias=False,
            norm_eps=sizes.epsilon("attention.layer_norm_rms_epsilon"),
        ),
        num_layers=sizes.layers,
        vocabulary=sizes.shape("token_embd.weight")[0],
        max_tokens=sizes.get("context_length"),
        positions="none",
        tied_head="output.weight" not in sizes.file.shapes,
    )


def _read_rotation(sizes: Sizes, head_dim: int) -> PositionConfig:
    base = sizes.rotary_base()
    rotated: int | None = head_dim
    if "rope_freqs.weight" in sizes.file.shapes:
        divisors = sizes.file.numbers_of("rope_freqs.weight")
        if len(divisors) != head_dim // 2:
            raise DamagedError(f"{sizes.where} has {len(divisors)} rope_freqs for {head_dim}")
        rotated = count_rotated(divisors, base)
    if rotated is None:
        raise UsageError(f"{sizes.where} has rope_freqs other than those of a partial rotation")
    # The first may be rounded down to one pair less.
    choices = (
        PositionConfig(rotary_base=base, rotary_fraction=channels / head_dim)
        for channels in (rotated, rotated + 1)
    )
    return next(one for one in choices if one.rotary_dim(head_dim) == rotated)


def _make_gpt2(sizes: Sizes) -> LanguageModelConfig:
    exact = sizes.file.metadata.get(GELU) == "erf"
    heads = sizes.get("attention.head_count")
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=sizes.get("embedding_length"), num_heads=heads, causal=True
        ),
        block=BlockConfig(
            d_ff=sizes.get("feed_forward_length"),
            activation="gelu" if exact else "gelu-tanh",
            norm_eps=sizes.epsilon("attention.layer_norm_epsilon"),
        ),
        num_layers=sizes.layers,
        vocabulary=sizes.shape("token_embd.weight")[0],
        max_tokens=sizes.shape("position_embd.weight")[0],
        positions="learned",
        tied_head="output.weight" not in sizes.file.shapes,
    )


_MAKERS: Mapping[StockArchitecture, Callable[[Sizes], LanguageModelConfig]] = {
    "gpt2": _make_gpt2,
    "llama": _make_llama,
}


def make_config(sizes: Sizes) -> LanguageModelConfig | None:
    """Return the configuration of the network; ``None`` for DeepSeek, whose heads need weights.

    Raises:
        UsageError: for a network that this program does not compute.
        DamagedError: for sizes that are missing or implausible.
    """
    maker = _MAKERS.get(sizes.architecture)
    try:
        return None if maker is None else maker(sizes)
    except UsageError:
        raise
    except ValueError as error:
        raise DamagedError(f"{sizes.where} does not describe a network: {error}") from None
