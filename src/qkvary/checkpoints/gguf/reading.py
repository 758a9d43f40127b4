"""A GGUF file as one of our networks: configuration and weights.

Only the architectures and forms that this program computes are read. Everything else is refused
with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor as TorchTensor

from qkvary.arch.attention import KV_NORM_EPS, AttentionConfig, PositionConfig
from qkvary.arch.families.attention_fields import Heads
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.checkpoints.gguf.files import GELU, GgufFile
from qkvary.checkpoints.gguf.rotation import count_rotated, pair_order
from qkvary.checkpoints.latent_reading import LatentSizes, ReadNetwork, read_latent_network
from qkvary.checkpoints.models import LARGEST_SIZE
from qkvary.checkpoints.stock_names import GGUF_NAMES, StockArchitecture, list_tensors
from qkvary.storage.errors import DamagedError, UsageError

_PLAIN: Mapping[str, tuple[object, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "rope.scale_linear": (0, 1),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
}
"""The values that leave the computation as it is, by key; a factor of 0 means none."""


def read_network(file: GgufFile, where: str) -> ReadNetwork:
    """Return the configuration and the weights of a file.

    Args:
        file: Its contents.
        where: Its name in messages.

    Raises:
        UsageError: for a network that this program does not compute.
        DamagedError: for sizes that are missing, implausible, or not those of the tensors.
    """
    named = file.metadata.get("general.architecture")
    known: dict[object, StockArchitecture] = {name: one for one, name in GGUF_NAMES.items()}
    if not isinstance(named, str) or named not in known:
        raise UsageError(
            f"{where} is a network of the architecture {named!r:.40}; choices: "
            f"{', '.join(GGUF_NAMES.values())}"
        )
    architecture = known[named]
    sizes = _Sizes(file, named, where)
    sizes.require_plain()
    try:
        if architecture == "deepseek":
            return read_latent_network(_read_latent_sizes(sizes), _join_latent(sizes), where)
        config = _MAKERS[architecture](sizes)
    except UsageError:
        raise
    except ValueError as error:
        raise DamagedError(f"{where} does not describe a network: {error}") from None
    return ReadNetwork(config, _read_weights(file, architecture, config, where))


class _Sizes:
    def __init__(self, file: GgufFile, architecture: str, where: str) -> None:
        self.file, self.architecture, self.where = file, architecture, where

    def get(self, name: str, default: int | None = None) -> int:
        """Return a size."""
        found = self.file.metadata.get(f"{self.architecture}.{name}", default)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= LARGEST_SIZE:
            raise DamagedError(
                f"{self.where} has {name} {found!r:.40}, expected 1 to {LARGEST_SIZE:,}"
            )
        return found

    def number(self, name: str, default: float) -> float:
        """Return a number that is no size."""
        found = self.file.metadata.get(f"{self.architecture}.{name}", default)
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
            name = key.removeprefix(f"{self.architecture}.")
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
        """Blocks, of which each has a tensor."""
        layers = self.get("block_count")
        if layers > len(self.file.tensors):
            raise DamagedError(f"{self.where} has {layers:,} layers and fewer tensors")
        return layers

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        if name not in self.file.tensors:
            raise DamagedError(f"{self.where} has no {name}")
        return self.file.tensors[name].values.shape


def _make_llama(sizes: _Sizes) -> LanguageModelConfig:
    d_model, heads = sizes.get("embedding_length"), sizes.get("attention.head_count")
    head_dim = sizes.get("attention.key_length", d_model // heads)
    sizes.require("value_length", sizes.get("attention.value_length", head_dim), head_dim)
    sizes.require("rope.dimension_count", sizes.get("rope.dimension_count", head_dim), head_dim)
    kv_heads = sizes.get("attention.head_count_kv", heads)
    return LanguageModelConfig(
        attention=Heads(d_model=d_model, count=heads, kv_count=kv_heads, dim=head_dim).attend(
            positions="rotary",
            rotation=_read_rotation(sizes, head_dim),
            bias="blk.0.attn_q.bias" in sizes.file.tensors,
            out_bias="blk.0.attn_output.bias" in sizes.file.tensors,
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
        tied_head="output.weight" not in sizes.file.tensors,
    )


def _read_rotation(sizes: _Sizes, head_dim: int) -> PositionConfig:
    base = sizes.rotary_base()
    rotated: int | None = head_dim
    if "rope_freqs.weight" in sizes.file.tensors:
        divisors = sizes.file.tensors["rope_freqs.weight"].values.reshape(-1).tolist()
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


def _make_gpt2(sizes: _Sizes) -> LanguageModelConfig:
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
        tied_head="output.weight" not in sizes.file.tensors,
    )


def _read_latent_sizes(sizes: _Sizes) -> LatentSizes:
    layers = sizes.layers
    rank = sizes.file.metadata.get("deepseek2.attention.q_lora_rank", 0)
    if rank != 0:
        raise UsageError(f"{sizes.where} has a q_lora_rank {rank!r:.40}, expected 0")
    sizes.require("dense layers", sizes.get("leading_dense_block_count", layers), layers)
    # That of the latent's norm is fixed.
    epsilon = sizes.epsilon("attention.layer_norm_rms_epsilon")
    sizes.require("attention.layer_norm_rms_epsilon", epsilon, KV_NORM_EPS)
    rope = sizes.get("rope.dimension_count")
    return LatentSizes(
        d_model=sizes.get("embedding_length"),
        d_ff=sizes.get("feed_forward_length"),
        layers=layers,
        heads=sizes.get("attention.head_count"),
        head_dim=sizes.get("attention.value_length_mla"),
        rope=rope,
        width=sizes.get("attention.kv_lora_rank"),
        max_tokens=sizes.get("context_length"),
        rotary_base=sizes.rotary_base(),
        norm_eps=epsilon,
    )


def _join_latent(sizes: _Sizes) -> dict[str, TorchTensor]:
    """Return the weights by the names of transformers, with one tensor for key and value."""
    tensors = {name: torch.tensor(one.values) for name, one in sizes.file.tensors.items()}
    for layer in range(sizes.layers):
        key, value = (f"blk.{layer}.attn_{kind}_b.weight" for kind in "kv")
        if not len(sizes.shape(key)) == len(sizes.shape(value)) == 3:
            raise DamagedError(f"{sizes.where} has {key} that is not one matrix a head")
        if tensors[key].mT.shape != tensors[value].shape:
            raise DamagedError(f"{sizes.where} has {key} and {value} of different heads")
        both = torch.cat((tensors.pop(key).mT, tensors.pop(value)), dim=1)
        tensors[f"blk.{layer}.attn_kv_b.weight"] = both.flatten(0, 1)
    names = {row.gguf: row.theirs for row in list_tensors("deepseek", sizes.layers)}
    unknown = min(tensors.keys() - names.keys(), default=None)
    if unknown is not None:
        raise UsageError(f"{sizes.where} has {unknown[:80]}, which this program does not compute")
    return {names[name]: tensor for name, tensor in tensors.items()}


_MAKERS: Mapping[StockArchitecture, Callable[[_Sizes], LanguageModelConfig]] = {
    "gpt2": _make_gpt2,
    "llama": _make_llama,
}


def _read_weights(
    file: GgufFile, architecture: StockArchitecture, config: LanguageModelConfig, where: str
) -> dict[str, TorchTensor]:
    """Return the weights by our names, in float32, which holds every stored type exactly."""
    weights = dict[str, TorchTensor]()
    # Read by _read_rotation.
    left = set(file.tensors) - ({"rope_freqs.weight"} if architecture == "llama" else set())
    for row in list_tensors(architecture, config.num_layers):
        if row.gguf in left:
            left.remove(row.gguf)
            values = torch.tensor(file.tensors[row.gguf].values)
            values = _restore_order(config, row.change, values, where)
            names = row.ours.split(",")
            weights |= zip(names, values.chunk(len(names)), strict=True)
    if left:
        raise UsageError(f"{where} has {min(left)[:80]}, which this program does not compute")
    return weights


def _restore_order(
    config: LanguageModelConfig, change: str, values: TorchTensor, where: str
) -> TorchTensor:
    if not change.endswith("pairs"):
        return values
    layer = config.layers[0]
    size = layer.size_per_head
    if len(values) % size:
        raise DamagedError(f"{where} has {len(values)} rows in heads of {size} channels")
    order = torch.tensor(pair_order(size, layer.position.rotary_dim(size)))
    return values.unflatten(0, (-1, size))[:, order.argsort()].flatten(0, 1)
