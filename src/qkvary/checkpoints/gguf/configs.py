"""The configuration of the network in a GGUF file, from its header alone.

Torch-free. Only the forms that this program computes are read; everything else is refused with the
reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.families.fields import Fields
from qkvary.arch.families.language_models import BLOCKS, read_language_model
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.checkpoints.gguf.headers import GELU, Described
from qkvary.checkpoints.gguf.rotation import STILL, count_rotated
from qkvary.checkpoints.stock_names import GGUF_NAMES
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import LARGEST_SIZE

FAMILIES: Mapping[str, str] = {
    **{name: name for name in ("llama", "qwen2", "qwen3", "phi3", "olmo2", "smollm3")},
    **{name: name for name in ("gemma", "gemma2", "starcoder2", "stablelm")},
    "gemma3": "gemma3_text",
    "gptneox": "gpt_neox",
}
"""The ``model_type`` of transformers, by llama.cpp's name of the architecture."""
PAIRED = ("llama", "smollm3")
"""Architectures that rotate pairs of neighbouring channels; the others pair the two halves of a
head."""
_GEMMAS = {"gemma": None, "gemma2": 46, "gemma3": 62}
"""The number of layers by which llama.cpp recognises the model that scales its scores by the width;
None if no model of the architecture does."""
_WITH_WINDOWS = ("gemma2", "gemma3", "phi3")
_PLAIN: Mapping[str, tuple[object, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "rope.scale_linear": (0, 1),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
}
"""The values of each key that do not change the computation; a factor of 0 means that there is
none."""
_SCALING = ("type", "factor", "original_context_length", "attn_factor", "finetuned")
"""The settings of scaled rotary positions that are supported."""


def read_sizes(file: Described, where: str) -> Sizes:
    """Return the sizes of a file of a known architecture.

    Args:
        file: Its header.
        where: Its name in messages.

    Raises:
        UsageError: for a network that this program does not compute.
    """
    named = file.metadata.get("general.architecture")
    known = {*FAMILIES, *GGUF_NAMES.values()}
    if not isinstance(named, str) or named not in known:
        raise UsageError(
            f"{where} is a network of the architecture {named!r:.40}; choices: "
            f"{', '.join(sorted(known))}"
        )
    sizes = Sizes(file, named, where)
    sizes.require_plain()
    return sizes


class Sizes:
    """The sizes in a header, read field by field."""

    def __init__(self, file: Described, architecture: str, where: str) -> None:
        """Read sizes of an architecture of llama.cpp."""
        self.file, self.where, self.architecture = file, where, architecture

    def get(self, name: str, default: int | None = None) -> int:
        """Return a size."""
        found = self.file.metadata.get(f"{self.architecture}.{name}", default)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= LARGEST_SIZE:
            raise DamagedError(
                f"{self.where} has {name} {found!r:.40}, expected 1 to {LARGEST_SIZE:,}"
            )
        return found

    def number(self, name: str, default: float) -> float:
        """Return a number that is not a size."""
        found = self.file.metadata.get(f"{self.architecture}.{name}", default)
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise DamagedError(f"{self.where} has {name} {found!r:.40}, expected a number")
        return float(found)

    def require(self, what: str, found: object, expected: object) -> None:
        """Refuse the network if a value differs from the only one computed here."""
        if found != expected:
            raise UsageError(f"{self.where} has {what} {found}, expected {expected}")

    def require_plain(self) -> None:
        """Refuse a network with a value that changes the computation."""
        for key, found in self.file.metadata.items():
            name = key.removeprefix(f"{self.architecture}.")
            setting = name.removeprefix("rope.scaling.")
            is_read = setting in _SCALING and self.architecture in FAMILIES
            is_read |= name.endswith("window") and self.architecture in _WITH_WINDOWS
            known = not is_read and (name in _PLAIN or setting != name)
            if name != key and known and found not in _PLAIN.get(name, ()):
                raise UsageError(f"{self.where} has {name}, which this program does not compute")

    def has(self, name: str) -> bool:
        """Return whether a value is given and nonzero; 0 means none."""
        return bool(self.file.metadata.get(f"{self.architecture}.{name}"))

    def rotary_base(self) -> float:
        """Return the base of the rotation's frequencies."""
        found = self.number("rope.freq_base", 10_000.0)
        if not (math.isfinite(found) and found > 0):
            raise DamagedError(
                f"{self.where} has rope.freq_base {found}, expected a finite number above 0"
            )
        return found

    def epsilon(self, name: str) -> float:
        """Return the epsilon of the norms as originally written; the file stores it in 32 bits."""
        found = self.number(name, 1e-5)
        return next((one for one in (1e-5, 1e-6) if abs(found - one) < 1e-6 * one), found)

    @property
    def layers(self) -> int:
        """Blocks; each has a tensor."""
        layers = self.get("block_count")
        if layers > len(self.file.shapes):
            raise DamagedError(f"{self.where} has {layers:,} layers but fewer tensors")
        return layers

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        if name not in self.file.shapes:
            raise DamagedError(f"{self.where} has no {name}")
        return self.file.shapes[name]


def _make_network(sizes: Sizes) -> LanguageModelConfig:
    """Return the network of a family, from fields named as in transformers."""
    family = FAMILIES[sizes.architecture]
    config = read_language_model(family, Fields(dict(_describe(sizes, family)), family))
    attention = tuple(_fit_layer(sizes, layer) for layer in config.layers)
    block = config.block
    if sizes.architecture in _GEMMAS:
        # The gains in the file already include the one that Gemma adds.
        block = dataclasses.replace(block, norm="rmsnorm")
    one = isinstance(config.attention, AttentionConfig)
    return dataclasses.replace(config, attention=attention[0] if one else attention, block=block)


def _fit_layer(sizes: Sizes, layer: AttentionConfig) -> AttentionConfig:
    """Return a layer with the biases that the file contains."""
    shapes = sizes.file.shapes
    return dataclasses.replace(
        layer,
        bias=any(f"blk.0.attn_{name}.bias" in shapes for name in ("q", "qkv")),
        out_bias="blk.0.attn_output.bias" in shapes,
        scale=dataclasses.replace(layer.scale, norm_adds_one=False),
    )


def _describe(sizes: Sizes, family: str) -> Iterator[tuple[str, object]]:
    """Yield the fields of the configuration under the names of transformers."""
    d_model, heads = sizes.get("embedding_length"), sizes.get("attention.head_count")
    head_dim = sizes.get("attention.key_length", d_model // heads)
    sizes.require("value_length", sizes.get("attention.value_length", head_dim), head_dim)
    block = BLOCKS[family]
    kind = "layer_norm" if block.norm == "layernorm" else "layer_norm_rms"
    yield "hidden_size", d_model
    yield "num_attention_heads", heads
    yield "num_key_value_heads", sizes.get("attention.head_count_kv", heads)
    yield "head_dim", head_dim
    yield "intermediate_size", sizes.get("feed_forward_length")
    yield "num_hidden_layers", sizes.layers
    yield "vocab_size", sizes.shape("token_embd.weight")[0]
    yield "max_position_embeddings", sizes.get("context_length")
    yield "tie_word_embeddings", "output.weight" not in sizes.file.shapes
    yield block.eps, sizes.epsilon(f"attention.{kind}_epsilon")
    yield "rope_parameters", _describe_rotation(sizes, head_dim)
    yield "rope_local_base_freq", sizes.number("rope.freq_base_swa", 10_000.0)
    if sizes.has("rope.scaling.original_context_length"):
        yield "original_max_position_embeddings", sizes.get("rope.scaling.original_context_length")
    if sizes.has("attention.sliding_window"):
        yield "sliding_window", sizes.get("attention.sliding_window")
    if block.parallel or "use_parallel_residual" in block.fixed:
        key = f"{sizes.architecture}.use_parallel_residual"
        yield "use_parallel_residual", sizes.file.metadata.get(key, True)
    for name, field, default in (
        ("attn_logit_softcapping", block.score_cap, 50.0),
        ("final_logit_softcapping", block.logit_cap, 30.0),
    ):
        if field is not None:
            # If a file omits them, Gemma 2 has both caps.
            usual = default if sizes.architecture == "gemma2" else 0.0
            yield field, sizes.number(name, usual) or None
    if block.scale is not None:
        by_width = sizes.layers == _GEMMAS[sizes.architecture]
        yield block.scale, d_model // heads if by_width else head_dim


def _describe_rotation(sizes: Sizes, head_dim: int) -> dict[str, object]:
    base, rotated = sizes.rotary_base(), sizes.get("rope.dimension_count", head_dim)
    if sizes.architecture in PAIRED:
        sizes.require("rope.dimension_count", rotated, head_dim)
    own, factor = _describe_scaling(sizes), sizes.number("rope.scaling.attn_factor", 1.0)
    plain, short, long = (_numbers(sizes, name, rotated) for name in _LISTS)
    if plain is not None and own:
        raise UsageError(f"{sizes.where} has rope_freqs and rope.scaling, expected one of them")
    if plain is not None and max(plain) >= STILL / 2:
        counted = count_rotated(plain, base)
        if counted is None:
            raise UsageError(f"{sizes.where} has rope_freqs other than those of a partial rotation")
        rotated = counted
    elif plain is not None:
        # The divisors of a scaling that was computed when the file was made.
        own = {"rope_type": "longrope", "factor": 1.0, "short_factor": plain, "long_factor": plain}
    elif short is not None and long is not None:
        own = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        own |= {"attention_factor": factor}
    if "attention_factor" not in own:
        sizes.require("rope.scaling.attn_factor", factor, 1)
    # A share may be rounded down by one channel.
    shares = (rotated / head_dim, (rotated + 0.5) / head_dim)
    share = next((one for one in shares if int(head_dim * one) == rotated), 2.0)
    return {"rope_theta": base, "partial_rotary_factor": share, **own}


def _describe_scaling(sizes: Sizes) -> dict[str, object]:
    form = sizes.file.metadata.get(f"{sizes.architecture}.rope.scaling.type", "none")
    factor = sizes.number("rope.scaling.factor", 0.0)
    if form not in ("none", "linear", "yarn", "longrope"):
        raise UsageError(
            f"{sizes.where} has rope.scaling.type {form!r:.40}, which this program does not compute"
        )
    if form in ("none", "longrope") and factor in (0.0, 1.0):
        # In GGUF, lists of divisors are tensors.
        return {}
    own: dict[str, object] = {"rope_type": "linear" if form == "none" else form, "factor": factor}
    if form == "yarn":
        factors = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
        own["attention_factor"] = factors * sizes.number("rope.scaling.attn_factor", 1.0)
    return own


_LISTS = ("rope_freqs", "rope_factors_short", "rope_factors_long")
"""Tensors that hold divisors of the rotary frequencies."""


def _numbers(sizes: Sizes, stem: str, rotated: int) -> list[float] | None:
    """Return the frequency divisors stored in a tensor, or ``None`` if there are none."""
    if f"{stem}.weight" not in sizes.file.shapes:
        return None
    found = sizes.file.numbers_of(f"{stem}.weight")
    if len(found) != rotated // 2:
        raise DamagedError(f"{sizes.where} has {len(found)} {stem} for {rotated} channels")
    return found


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


def make_config(sizes: Sizes) -> LanguageModelConfig | None:
    """Return the configuration of the network; ``None`` for DeepSeek, whose heads need weights.

    Raises:
        UsageError: for a network that this program does not compute.
        DamagedError: for sizes that are missing or implausible.
    """
    if sizes.architecture == GGUF_NAMES["deepseek"]:
        return None
    try:
        return _make_gpt2(sizes) if sizes.architecture == "gpt2" else _make_network(sizes)
    except UsageError:
        raise
    except ValueError as error:
        raise DamagedError(f"{sizes.where} does not describe a network: {error}") from None
