"""Ties the key and the value of a layer without retraining. Not exact, unlike a rewrite.

A tensor of ``head_dim`` channels for each KV head, t = W_T x, takes the place of both: its maps
back to key and value go into W_Q and W_O, so that the layer is one of ``Q-K=V``.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.analysis.tying import Tie
from qkvary.arch.labels import format_label
from qkvary.arch.sharing import share
from qkvary.checkpoints.models import build_model
from qkvary.conversions.attention_bases import LayerDraft
from qkvary.conversions.bases import attention_draft
from qkvary.conversions.draft import block_prefix, make_draft, replace_layers
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.role_maps import RoleMaps, make_role_maps
from qkvary.storage.errors import UsageError


def tie_layer(
    network: LanguageModel, layer: int, ties: Sequence[Tie], mean: Float[Tensor, " d_model"]
) -> LanguageModel:
    """Return a copy of a network in which key and value of one layer are one tensor.

    With t the tensor, k ~ A t and v ~ B t around the mean: q k^T = (q A) t^T up to a constant of
    the query, which cancels in the softmax, and v W_O = t (B^T W_O) plus a constant.

    Args:
        network: The network; it stays as it is.
        layer: The layer, the first being 1.
        ties: The tensor of each of its KV heads.
        mean: The mean of the layer's input, around which key and value are replaced.

    Raises:
        UsageError: if the layer has no key and value of its own, they are rotated, or the output
            has no bias to take the constant.
    """
    draft = make_draft(network)
    index = layer - 1
    _check(network, index)
    old = attention_draft(draft, index)
    maps = make_role_maps([*network.stack.blocks][index].attention)
    config = old.config
    tied = replace(
        config, variant=replace(config.variant, sharing=share("q", "k", "k"), v_rank=None)
    )
    weights = _tie(old, maps, ties, mean)
    draft.replace_part(f"{block_prefix(index)}attention.", weights)
    made = build_model(
        replace_layers(draft.config, {index: tied}), draft.weights, None, "the tied network"
    )
    return made.network.to(network.embedding.dtype).eval()


def _tie(
    old: LayerDraft, maps: RoleMaps, ties: Sequence[Tie], mean: Float[Tensor, " d_model"]
) -> dict[str, Tensor]:
    """Return the weights of the tied layer."""
    config = old.config
    size, group = config.size_per_head, config.num_heads // config.num_kv_heads
    writer = torch.stack([tie.writer for tie in ties])
    # Of a KV head: t = tensor x, k ~ to_key t and v ~ to_value t.
    joint = torch.cat((maps.key.weight, maps.value.weight), dim=1)
    tensor = torch.stack([tie.reader for tie in ties]) @ joint
    to_key, to_value = writer[:, :size], writer[:, size:]
    lost = (
        maps.value.weight @ mean + maps.value.bias - (to_value @ (tensor @ mean)[..., None])[..., 0]
    )
    to_key, to_value, lost = (
        one.repeat_interleave(group, dim=0) for one in (to_key, to_value, lost)
    )
    output = old.weights["o_proj.weight"].unflatten(1, (config.num_heads, size)).transpose(0, 1)
    weights = {
        "q_proj.weight": (to_key.mT @ maps.query.weight).flatten(0, 1),
        "k_proj.weight": tensor.flatten(0, 1),
        "o_proj.weight": (output @ to_value).transpose(0, 1).flatten(1),
        "o_proj.bias": old.weights["o_proj.bias"] + (output @ lost[..., None]).sum(dim=0)[:, 0],
    }
    if config.bias:
        weights["q_proj.bias"] = (to_key.mT @ maps.query.bias[..., None]).flatten()
        weights["k_proj.bias"] = torch.zeros(config.kv_width, dtype=torch.float64)
    replaced = {"q_proj", "k_proj", "v_proj", "o_proj"}
    kept = {name: one for name, one in old.weights.items() if name.split(".")[0] not in replaced}
    return kept | weights


def _check(network: LanguageModel, index: int) -> None:
    config = network.config.layers[index]
    variant, where = config.variant, f"layer {index + 1}"
    if variant.sharing != share("q", "k", "v") or variant.query_form != "plain" or variant.k_rank:
        raise UsageError(
            "expected full projections of its own for query, key and value in "
            f"{where}, got {format_label(variant)}"
        )
    if variant.positions == "rotary" or variant.decoupled is not None:
        raise UsageError(
            f"expected keys that are not rotated in {where}, got {format_label(variant)}: a map "
            "between key and query does not pass a rotation"
        )
    if variant.core != "softmax" or not config.out_bias or network.config.shared_blocks:
        raise UsageError(
            f"expected a softmax, an output bias and a block of its own in {where}, got "
            f"{format_label(variant)}, out_bias {config.out_bias} and shared_blocks "
            f"{network.config.shared_blocks}"
        )
