"""Reads the configuration of a network from the header of a GGUF file.

Torch-free. Only what our networks can compute is loaded; everything else is refused, with the
reason.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator, Mapping, Sequence

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.families.decoders import RECIPES
from qkvary.arch.families.fields import Fields
from qkvary.arch.families.language_models import BLOCKS, read_gpt2, read_language_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.gguf.headers import GELU, GgufFile
from qkvary.checkpoints.stock_names import GGUF_NAMES
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import explain

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
"""The number of layers for which llama.cpp scales scores by ``d_model / heads`` instead of the head
size, by architecture; None if it never does so."""
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
"""The values with which each key has no effect; a factor of 0 means no scaling."""
_SCALING = ("type", "factor", "original_context_length", "attn_factor", "finetuned")
"""The settings of scaled rotary positions that are supported."""


def read_sizes(file: GgufFile, where: str) -> Sizes:
    """Return the metadata of a file; refuse unknown architectures."""
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


class Sizes(Fields):
    """The metadata fields that belong to the architecture of a file, and the file itself."""

    def __init__(self, file: GgufFile, architecture: str, where: str) -> None:
        start = f"{architecture}."
        found = file.metadata.items()
        own = {key.removeprefix(start): value for key, value in found if key.startswith(start)}
        super().__init__(own, architecture)
        self.file, self.where, self.shapes = file, where, file.shapes

    def require(self, what: str, found: object, expected: object) -> None:
        """Refuse the network unless a value equals the only supported value."""
        if found != expected:
            raise UsageError(f"{self.where} has {what} {found}, expected {expected}")

    def require_plain(self) -> None:
        """Refuse a network whose metadata require a computation that is not supported."""
        for name, found in self.content.items():
            setting = name.removeprefix("rope.scaling.")
            is_read = setting in _SCALING and self.family in FAMILIES
            is_read |= name.endswith("window") and self.family in _WITH_WINDOWS
            known = not is_read and (name in _PLAIN or setting != name)
            if known and found not in _PLAIN.get(name, ()):
                raise UsageError(f"{self.where} sets {name}, which this program does not support")

    def rotary_base(self) -> float:
        """Return the base of the rotary frequencies."""
        found = self.number("rope.freq_base", default=10_000.0)
        if found <= 0:
            raise self.refuse("rope.freq_base", "a finite number above 0")
        return found

    def epsilon(self, name: str) -> float:
        """Return the epsilon of the norms, with 1e-5 and 1e-6 restored from their 32-bit form."""
        found = self.number(name, default=1e-5)
        return next((one for one in (1e-5, 1e-6) if abs(found - one) < 1e-6 * one), found)

    @property
    def num_layers(self) -> int:
        """The number of blocks; a file with fewer tensors than blocks is refused."""
        layers = self.size("block_count")
        if layers > len(self.shapes):
            raise DamagedError(
                f"{self.where} states {layers:,} layers, but has only {len(self.shapes)} tensors"
            )
        return layers

    def rows(self, name: str) -> int:
        """Return the number of rows of a tensor."""
        if name not in self.shapes:
            raise DamagedError(f"{self.where} has no {name}")
        return self.shapes[name][0]


def _make_network(sizes: Sizes) -> LanguageModelConfig:
    family, shapes = FAMILIES[sizes.family], sizes.shapes
    config = read_language_model(family, Fields(dict(_describe(sizes, family)), family))
    # Only the file says which biases there are.
    attention = tuple(
        dataclasses.replace(
            layer,
            bias=any(f"blk.0.attn_{name}.bias" in shapes for name in ("q", "qkv")),
            out_bias="blk.0.attn_output.bias" in shapes,
            scale=dataclasses.replace(layer.scale, norm_adds_one=False),
        )
        for layer in config.layers
    )
    block = config.block
    if sizes.family in _GEMMAS:
        # The gains in the file already include the 1 that Gemma adds.
        block = dataclasses.replace(block, norm="rmsnorm")
    one = isinstance(config.attention, AttentionConfig)
    return dataclasses.replace(config, attention=attention[0] if one else attention, block=block)


def _describe(sizes: Sizes, family: str) -> Iterator[tuple[str, object]]:
    """Yield the fields of the configuration under their names in transformers."""
    d_model, heads = sizes.size("embedding_length"), sizes.size("attention.head_count")
    head_dim = sizes.size("attention.key_length", default=d_model // heads)
    sizes.require("value_length", sizes.size("attention.value_length", default=head_dim), head_dim)
    block = BLOCKS[family]
    kind = "layer_norm" if block.norm == "layernorm" else "layer_norm_rms"
    yield "hidden_size", d_model
    yield "num_attention_heads", heads
    yield "num_key_value_heads", sizes.size("attention.head_count_kv", default=heads)
    yield "head_dim", head_dim
    yield "intermediate_size", sizes.size("feed_forward_length")
    yield "num_hidden_layers", sizes.num_layers
    yield "vocab_size", sizes.rows("token_embd.weight")
    yield "max_position_embeddings", sizes.size("context_length")
    yield "tie_word_embeddings", "output.weight" not in sizes.shapes
    yield block.eps, sizes.epsilon(f"attention.{kind}_epsilon")
    yield "rope_parameters", _describe_rotation(sizes, head_dim)
    yield "rope_local_base_freq", sizes.number("rope.freq_base_swa", default=10_000.0)
    for name, field in (
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
        ("attention.sliding_window", "sliding_window"),
    ):
        # 0 means that there is no such length.
        if sizes.content.get(name):
            yield field, sizes.size(name)
    if block.parallel or "use_parallel_residual" in block.fixed:
        yield "use_parallel_residual", sizes.content.get("use_parallel_residual", True)
    for name, field, default in (
        ("attn_logit_softcapping", RECIPES[family].score_cap, 50.0),
        ("final_logit_softcapping", block.logit_cap, 30.0),
    ):
        if field is not None:
            # Gemma 2 has both caps unless a file says otherwise.
            usual = default if sizes.family == "gemma2" else 0.0
            yield field, sizes.number(name, default=usual) or None
    if block.scale is not None:
        by_width = sizes.num_layers == _GEMMAS[sizes.family]
        yield block.scale, d_model // heads if by_width else head_dim


def _describe_rotation(sizes: Sizes, head_dim: int) -> dict[str, object]:
    base, rotated = sizes.rotary_base(), sizes.size("rope.dimension_count", default=head_dim)
    if sizes.family in PAIRED:
        sizes.require("rope.dimension_count", rotated, head_dim)
    own, factor = _describe_scaling(sizes), sizes.number("rope.scaling.attn_factor", default=1.0)
    plain, short, long = (_numbers(sizes, name, rotated) for name in _LISTS)
    if plain is not None and own:
        raise UsageError(f"{sizes.where} has both rope_freqs and rope.scaling, expected only one")
    if plain is not None and max(plain) >= STILL / 2:
        counted = count_rotated(plain, base)
        if counted is None:
            raise UsageError(
                f"{sizes.where} has rope_freqs that do not describe a partial rotation"
            )
        rotated = counted
    elif plain is not None:
        # The divisors of a scaling that was computed when the file was made.
        own = {"rope_type": "longrope", "factor": 1.0, "short_factor": plain, "long_factor": plain}
    elif short is not None and long is not None:
        own = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        own |= {"attention_factor": factor}
    if "attention_factor" not in own:
        sizes.require("rope.scaling.attn_factor", factor, 1)
    # transformers rounds the share of the head down to whole channels.
    shares = (rotated / head_dim, (rotated + 0.5) / head_dim)
    share = next((one for one in shares if int(head_dim * one) == rotated), 2.0)
    return {"rope_theta": base, "partial_rotary_factor": share, **own}


def rotary_divisors(head_dim: int, rotated: int, base: float) -> list[float]:
    """Return the divisor of each of llama.cpp's frequencies.

    Pair k rotates by ``base^(-2k/head_dim) / divisor`` in llama.cpp, and by ``base^(-2k/rotated)``
    in our networks.
    """
    divisors = [base ** (2 * k / rotated - 2 * k / head_dim) for k in range(rotated // 2)]
    return divisors + [STILL] * (head_dim // 2 - len(divisors))


def count_rotated(divisors: Sequence[float], base: float) -> int | None:
    """Return the number of rotated channels per head, ``None`` if no number fits the divisors."""
    rotated = 2 * sum(divisor < STILL / 2 for divisor in divisors)
    if rotated == 0:
        return None
    expected = rotary_divisors(2 * len(divisors), rotated, base)
    close = (abs(a - b) <= 1e-5 * b for a, b in zip(divisors, expected, strict=True))
    return rotated if all(close) else None


def _describe_scaling(sizes: Sizes) -> dict[str, object]:
    form = sizes.content.get("rope.scaling.type", "none")
    factor = sizes.number("rope.scaling.factor", default=0.0)
    if form not in ("none", "linear", "yarn", "longrope"):
        raise UsageError(
            f"{sizes.where} has rope.scaling.type {form!r:.40}, which this program does not support"
        )
    if form in ("none", "longrope") and factor in (0.0, 1.0):
        # In GGUF, lists of divisors are tensors.
        return {}
    own: dict[str, object] = {"rope_type": "linear" if form == "none" else form, "factor": factor}
    if form == "yarn":
        factors = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
        own["attention_factor"] = factors * sizes.number("rope.scaling.attn_factor", default=1.0)
    return own


STILL = 1e30
"""A frequency divisor so large that channels do not rotate: the sine is zero in 32 bits."""
_LISTS = ("rope_freqs", "rope_factors_short", "rope_factors_long")
"""Tensors that hold divisors of the rotary frequencies."""
LARGEST_LIST = 2**16


def _numbers(sizes: Sizes, stem: str, rotated: int) -> list[float] | None:
    if f"{stem}.weight" not in sizes.shapes:
        return None
    _, kind, data = sizes.file.tensors[f"{stem}.weight"]
    is_small = kind == "f32" and data.nbytes <= LARGEST_LIST
    found = [number for (number,) in struct.iter_unpack("<f", data)] if is_small else []
    if len(found) != rotated // 2:
        raise DamagedError(f"{sizes.where} has {len(found)} {stem}, expected {rotated // 2}")
    return found


def _make_gpt2(sizes: Sizes) -> LanguageModelConfig:
    exact = sizes.file.metadata.get(GELU) == "erf"
    fields = {
        "n_embd": sizes.size("embedding_length"),
        "n_head": sizes.size("attention.head_count"),
        "n_inner": sizes.size("feed_forward_length"),
        "n_layer": sizes.num_layers,
        "n_positions": sizes.rows("position_embd.weight"),
        "vocab_size": sizes.rows("token_embd.weight"),
        "activation_function": "gelu" if exact else "gelu_new",
        "layer_norm_epsilon": sizes.epsilon("attention.layer_norm_epsilon"),
        "tie_word_embeddings": "output.weight" not in sizes.shapes,
    }
    return read_gpt2(Fields(fields, "gpt2"))


def make_config(sizes: Sizes) -> LanguageModelConfig | None:
    """Return the configuration, or ``None`` for DeepSeek.

    The configuration of a DeepSeek network depends on its weights.
    """
    if sizes.family == GGUF_NAMES["deepseek"]:
        return None
    with explain(sizes.where):
        return _make_gpt2(sizes) if sizes.family == "gpt2" else _make_network(sizes)


def describe_latent(sizes: Sizes) -> dict[str, object]:
    """Return DeepSeek's configuration with the field names of transformers.

    As in transformers, the number of KV heads is the number of query heads.
    """
    with explain(sizes.where):
        layers, heads = sizes.num_layers, sizes.size("attention.head_count")
        value = sizes.size("attention.value_length_mla")
        return {
            "model_type": "deepseek_v3",
            "hidden_size": sizes.size("embedding_length"),
            "intermediate_size": sizes.size("feed_forward_length"),
            "num_hidden_layers": layers,
            "first_k_dense_replace": sizes.size("leading_dense_block_count", default=layers),
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "q_lora_rank": sizes.content.get("attention.q_lora_rank") or None,
            "kv_lora_rank": sizes.size("attention.kv_lora_rank"),
            "qk_rope_head_dim": sizes.size("rope.dimension_count"),
            "qk_nope_head_dim": value,
            "v_head_dim": value,
            "vocab_size": sizes.rows("token_embd.weight"),
            "max_position_embeddings": sizes.size("context_length"),
            "tie_word_embeddings": "output.weight" not in sizes.shapes,
            "rms_norm_eps": sizes.epsilon("attention.layer_norm_rms_epsilon"),
            "rope_theta": sizes.rotary_base(),
        }
