"""Converts networks with one tensor for key and value to DeepSeek V3, and back.

The key and the value of every head are products of that tensor and a matrix. If these matrices
select blocks of the tensor, the blocks are KV heads; otherwise the tensor is a latent. All heads
share one rotary key.

The DeepSeek architecture always normalises the tensor. If our network does not, the tensor c is
multiplied by a small factor s, so that the norm in effect only divides by the square root of its
epsilon. The gain of the norm undoes both: ``c s / sqrt(mean (c s)^2 + eps) * sqrt(eps) / s`` equals
c up to a relative error of ``STILL / 2``, which is 2^-27.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qkvary.arch.attention import KV_NORM_EPS, AttentionConfig, PositionConfig
from qkvary.arch.families.attention_fields import read_rotation, rotary_section
from qkvary.arch.families.fields import Fields
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.arch.sharing import Source, share
from qkvary.arch.variants import Variant
from qkvary.checkpoints.stock_names import list_tensors
from qkvary.checkpoints.stock_parts import Side, Weights
from qkvary.nn.attention import Attention
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.projections import read_matrix
from qkvary.nn.role_maps import make_role_maps
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import explain

TRAIN = (
    "train a network of the form Q-K=V@decoupled-16@kv-norm, for example with qkvary train "
    "lm-10m-portable"
)
STILL = 2.0**-26
"""The largest mean square of a tensor that is scaled down, relative to the epsilon of its norm."""
LATENT = "deepseek_v3"
_EXPECTED: dict[str, object] = {
    "q_lora_rank": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "rope_interleave": True,
}
_Form = tuple[int, bool]
"""The number of KV heads; True if they are blocks of the shared tensor, False for a latent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """The sizes of a network in which all layers are dense."""

    d_model: int
    d_ff: int
    num_layers: int
    heads: int
    head_dim: int
    """Channels of a head's key and value without the rotary ones."""
    rope: int
    width: int
    """Channels of the tensor that keys and values are made of."""
    max_tokens: int
    tied_head: bool
    rotary_base: float
    norm_eps: float
    kv_norm_eps: float = KV_NORM_EPS
    """The epsilon of the norm of the tensor that keys and values are made of."""


def read_latent_sizes(fields: Fields) -> LatentSizes:
    """Read the sizes from a DeepSeek V3 configuration; refuse settings that we do not support."""
    for name, expected in _EXPECTED.items():
        if fields.content.get(name, expected) != expected:
            raise fields.refuse(name, json.dumps(expected))
    layers, head_dim = fields.size("num_hidden_layers"), fields.size("v_head_dim")
    if fields.count("first_k_dense_replace") != layers:
        raise fields.refuse("first_k_dense_replace", f"{layers}, so that no layer has experts,")
    if fields.size("qk_nope_head_dim") != head_dim:
        raise fields.refuse("qk_nope_head_dim", f"{head_dim}, the v_head_dim,")
    section = rotary_section(fields)
    if section.text("rope_type", "type", default="default") != "default":
        name = "rope_type" if section.has("rope_type") else "type"
        raise section.refuse(name, "plain rotary positions (default)")
    return LatentSizes(
        d_model=fields.size("hidden_size"),
        d_ff=fields.size("intermediate_size"),
        num_layers=layers,
        heads=fields.size("num_attention_heads"),
        head_dim=head_dim,
        rope=fields.size("qk_rope_head_dim"),
        width=fields.size("kv_lora_rank"),
        max_tokens=fields.size("max_position_embeddings"),
        tied_head=fields.flag("tie_word_embeddings", default=False),
        rotary_base=read_rotation(fields).rotary_base,
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
    )


def find_latent_obstacles(config: LanguageModelConfig) -> Iterator[str]:
    """Yield the features of a network that latent attention does not support."""
    for layer in config.layers:
        variant = layer.variant
        if variant.decoupled is None:
            yield f"positions that are not decoupled; {TRAIN}"
        if variant.sharing.key != variant.sharing.value:
            yield f"keys and values in two different tensors; {TRAIN}"
        if layer.bias or layer.out_bias:
            yield "biases in attention; set both bias and out_bias to false"
        if layer.position.scaling is not None:
            yield "scaled rotary positions"
    if len({layer.position.rotary_base for layer in config.layers}) > 1:
        yield "layers with different rotary bases"
    if len({(latent_width(one), one.variant.decoupled or 0) for one in config.layers}) > 1:
        yield "layers whose tensors for keys and values differ in width"
    yield from find_block_obstacles(config, "decoupled")


def find_block_obstacles(config: LanguageModelConfig, positions: str) -> Iterator[str]:
    """Yield the features outside attention that Llama and DeepSeek do not support."""
    block = config.block
    if config.positions != "none":
        yield (
            f"{config.positions} positions in addition to {positions} positions; set positions to "
            "none"
        )
    if block.norm != "rmsnorm":
        yield f"{block.norm}; choices: rmsnorm"
    if block.activation != "swiglu":
        yield f"{block.activation}; choices: swiglu"


def latent_width(layer: AttentionConfig) -> int:
    """Return the number of channels of the tensor from which key and value are made."""
    return layer.width(layer.variant.sharing.key)


def make_latent_weights(network: LanguageModel) -> Weights:
    """Return the matrices of query, key and value under the names in ``stock_names``."""
    weights: Weights = {}
    for index, part in enumerate(network.stack.blocks):
        at, attention = f"stack.blocks.{index}.attention", part.attention
        shared = make_role_maps(attention).key.weight.flatten(0, 1)
        rope = _interleave(_rope(attention, "k_rope")).flatten(0, 1)
        up = torch.cat(_up_projections(attention), dim=1)
        if attention.kv_norm is None:
            scale = still_scale(shared, part.attention_norm.get_parameter("weight"))
            shared = shared * scale
            gain = torch.full((len(shared),), KV_NORM_EPS**0.5 / scale, dtype=torch.float64)
            weights[f"{at}.kv_norm.weight"] = gain
        config = attention.config
        content = make_role_maps(attention).query.copy_heads(config.num_heads).weight
        # In each head, content rows come before rotary rows. The architecture divides scores by
        # the root of the number of both; the rest of the scale is folded into the rows.
        query = torch.cat((content, _interleave(_rope(attention, "q_rope"))), dim=1)
        rest = config.content_scale * config.compared_channels**0.5
        weights[f"{at}.latent_query.weight"] = (query * rest).flatten(0, 1)
        weights[f"{at}.latent_down.weight"] = torch.cat((shared, rope))
        weights[f"{at}.latent_up.weight"] = up.flatten(0, 1)
    return weights


def still_scale(shared: Tensor, norm: Tensor, epsilon: float = KV_NORM_EPS) -> float:
    """Return a factor for ``shared`` that makes the norm after it divide by a constant.

    The factor is the largest suitable power of two. With it, the mean square of the norm's input is
    so far below ``epsilon`` that only ``epsilon`` matters. ``norm`` is the gain of the other
    norm, from which the input of ``shared`` comes.
    """
    gained = shared.double() * norm.detach().cpu().double()
    largest = float(torch.linalg.matrix_norm(gained, 2)) ** 2 * shared.shape[1] / len(shared)
    # Limited to exponents of single precision.
    return 2.0 ** max(-60, math.floor(math.log2((STILL * epsilon / max(largest, 1e-30)) ** 0.5)))


def _rope(attention: Attention, source: Source) -> Tensor:
    weight, _ = read_matrix(attention.projections[source])
    return weight.unflatten(0, (attention.config.heads(source), -1))


def _interleave(heads: Tensor) -> Tensor:
    """Reorder the rows of each head from two halves to neighbouring pairs."""
    return heads.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def _up_projections(attention: Attention) -> tuple[Tensor, Tensor]:
    """Return the matrices of key and value: [heads, head_dim, width of the shared tensor]."""
    config = attention.config
    latent = attention.latent
    if latent is None:
        both = _make_selectors(config.num_heads, config.num_kv_heads, config.size_per_head)
        return both, both
    copies = config.num_heads // config.num_kv_heads
    key, value = (
        read_matrix(part)[0].unflatten(0, (config.num_kv_heads, -1))
        for part in (latent.key, latent.value)
    )
    return key.repeat_interleave(copies, dim=0), value.repeat_interleave(copies, dim=0)


def _make_selectors(heads: int, kv_heads: int, head_dim: int) -> Tensor:
    """Return a matrix for each head that selects its KV block: [heads, head_dim, width]."""
    blocks = torch.eye(kv_heads * head_dim, dtype=torch.float64).unflatten(0, (kv_heads, head_dim))
    return blocks.repeat_interleave(heads // kv_heads, dim=0)


def read_latent_network(
    sizes: LatentSizes, tensors: Mapping[str, Tensor], side: Side, where: str
) -> tuple[LanguageModelConfig, Weights]:
    """Return the configuration and the weights of a network.

    ``tensors`` contains no output head if the head is tied to the embedding.
    """
    names = {getattr(row, side): row.ours for row in list_tensors("deepseek", sizes.num_layers)}
    unknown = min(tensors.keys() - names.keys(), default=None)
    if unknown is not None:
        raise UsageError(f"{where} has the tensor {unknown[:80]}, which qkvary does not use")
    found = {names[name]: tensor for name, tensor in tensors.items()}
    _check_shapes(sizes, found, {ours: name for name, ours in names.items()}, where)
    layers = range(sizes.num_layers)
    form = _read_form(sizes, [found[f"{_at(layer)}.latent_up.weight"] for layer in layers])
    still = [_find_still_scale(sizes, layer, found) for layer in layers]
    if None in still and sizes.kv_norm_eps != KV_NORM_EPS:
        raise UsageError(
            f"{where} has a norm of keys and values with the epsilon {sizes.kv_norm_eps}, expected "
            f"{KV_NORM_EPS}"
        )
    is_still = None not in still
    for layer, scale in enumerate(still):
        found |= _restore_attention(sizes, form, layer, found)
        if is_still and scale is not None:
            key = f"{_at(layer)}.k_proj.weight"
            found[key] = found[key] / scale
            del found[f"{_at(layer)}.kv_norm.weight"]
    with explain(where):
        return _make_config(sizes, form, len(found["embedding"]), kv_norm=not is_still), found


def _find_still_scale(
    sizes: LatentSizes, layer: int, weights: Mapping[str, Tensor]
) -> float | None:
    """Return the factor by which an export scaled the shared tensor down, or ``None``."""
    gain = weights.get(f"{_at(layer)}.kv_norm.weight")
    norm = weights.get(f"{_at(layer)}_norm.weight")
    shared = weights[f"{_at(layer)}.latent_down.weight"][: sizes.width]
    if gain is None or norm is None or norm.shape != shared.shape[1:]:
        return None
    first = float(gain.flatten()[0])
    if (
        first <= 0
        or not torch.isfinite(shared).all()
        or not torch.equal(gain, gain[:1].expand_as(gain))
    ):
        return None
    if still_scale(shared, norm, sizes.kv_norm_eps) < 1:
        return None
    exponent = math.log2(sizes.kv_norm_eps**0.5 / first)
    return 2.0 ** round(exponent) if abs(exponent - round(exponent)) < STILL**0.5 else None


def _at(layer: int) -> str:
    return f"stack.blocks.{layer}.attention"


def _check_shapes(
    sizes: LatentSizes, weights: Weights, stored: Mapping[str, str], where: str
) -> None:
    """Check the matrices that are split here; the others are checked against the built network."""
    size, heads = sizes.head_dim, sizes.heads
    expected = {
        "latent_query": (heads * (size + sizes.rope), sizes.d_model),
        "latent_down": (sizes.width + sizes.rope, sizes.d_model),
        "latent_up": (2 * heads * size, sizes.width),
    }
    if sizes.rope % 2:
        raise DamagedError(f"{where} has {sizes.rope} rotary channels, expected an even number")
    split = {
        f"{_at(layer)}.{part}.weight": list(shape)
        for layer in range(sizes.num_layers)
        for part, shape in expected.items()
    }
    for name in ("embedding", *split):
        if name not in weights:
            raise DamagedError(f"{where} lacks the tensor {stored[name]}")
        found = list(weights[name].shape)
        if found != split.get(name, found):
            raise DamagedError(f"{where} has {stored[name]} of {found}, expected {split[name]}")


def _read_form(sizes: LatentSizes, up: list[Tensor]) -> _Form:
    heads, size = sizes.heads, sizes.head_dim
    kv_heads = sizes.width // size
    if kv_heads and sizes.width % size == 0 and heads % kv_heads == 0:
        wanted = _make_selectors(heads, kv_heads, size).to(up[0].dtype)
        wanted = torch.cat((wanted, wanted), dim=1).flatten(0, 1)
        if all(torch.equal(one, wanted) for one in up):
            return kv_heads, True
    for count in (count for count in range(1, heads + 1) if heads % count == 0):
        # [groups, heads of a group, rows of a head, width]
        parts = [one.unflatten(0, (count, heads // count, -1)) for one in up]
        if all(torch.equal(one, one[:, :1].expand_as(one)) for one in parts):
            return count, False
    return heads, False


def _restore_attention(sizes: LatentSizes, form: _Form, layer: int, weights: Weights) -> Weights:
    kv_heads, picks_blocks = form
    query, down, up = (
        weights.pop(f"{_at(layer)}.latent_{part}.weight") for part in ("query", "down", "up")
    )
    content, query_rope = query.unflatten(0, (sizes.heads, -1)).split(
        (sizes.head_dim, sizes.rope), dim=1
    )
    shared, rope = down.split((sizes.width, sizes.rope))
    found = {
        "q_proj": content.flatten(0, 1),
        "q_rope_proj": _split_halves(query_rope).flatten(0, 1),
        "k_proj": shared,
        "k_rope_proj": _split_halves(rope[None])[0],
    }
    if not picks_blocks:
        own = up.unflatten(0, (sizes.heads, 2, sizes.head_dim))[:: sizes.heads // kv_heads]
        found |= {"latent.key": own[:, 0].flatten(0, 1), "latent.value": own[:, 1].flatten(0, 1)}
    return {f"{_at(layer)}.{name}.weight": value.contiguous() for name, value in found.items()}


def _split_halves(heads: Tensor) -> Tensor:
    """Reorder the rows of each head from neighbouring pairs to two halves."""
    return heads.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)


def _make_config(
    sizes: LatentSizes, form: _Form, vocabulary: int, *, kv_norm: bool
) -> LanguageModelConfig:
    kv_heads, picks_blocks = form
    variant = Variant(
        sharing=share("q", "k", "k"),
        num_kv_heads=None if kv_heads == sizes.heads else kv_heads,
        decoupled=sizes.rope,
        latent=None if picks_blocks else sizes.width,
        kv_norm=kv_norm,
    )
    attention = AttentionConfig(
        d_model=sizes.d_model,
        num_heads=sizes.heads,
        head_dim=None if sizes.heads * sizes.head_dim == sizes.d_model else sizes.head_dim,
        variant=variant,
        causal=True,
        bias=False,
        out_bias=False,
        position=PositionConfig(rotary_base=sizes.rotary_base),
    )
    return LanguageModelConfig(
        attention=attention,
        block=BlockConfig(
            d_ff=sizes.d_ff,
            activation="swiglu",
            norm="rmsnorm",
            bias=False,
            norm_eps=sizes.norm_eps,
        ),
        num_layers=sizes.num_layers,
        vocabulary=vocabulary,
        max_tokens=sizes.max_tokens,
        positions="none",
        tied_head=sizes.tied_head,
    )
