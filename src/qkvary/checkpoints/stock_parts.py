"""Tensors of stock architectures as the parameters of our networks: parts, and channels of heads.

A stock tensor may join several of ours, and its channels within a head may be in another order: our
heads rotate the last channels, those of transformers the first.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.checkpoints.stock_names import Row

_IN_HEADS = ("q_proj", "k_proj", "query_norm", "key_norm")
"""Modules whose rows are the channels of query heads or key heads."""


def is_turned(name: str) -> bool:
    """Return whether the rows of a parameter are query or key channels, which may be rotated."""
    return name.rpartition(".")[0].endswith(_IN_HEADS)


def split_parts(
    row: Row, tensor: Tensor, layer: AttentionConfig, *, is_transposed: bool = False
) -> dict[str, Tensor]:
    """Return the parts of a tensor under our names; wrong shapes are refused later.

    Args:
        row: Its names.
        tensor: The tensor, without the change of its row.
        layer: The attention layer.
        is_transposed: Whether the change of its row, if it is a transposition, is undone.
    """
    names = row.ours.split(",")
    if row.change == "transposed" and is_transposed and tensor.dim() == 2:
        tensor = tensor.T
    tensor = torch.atleast_1d(tensor)
    if row.change == "interleaved" and not len(tensor) % (3 * layer.size_per_head):
        tensor = tensor.unflatten(0, (-1, 3, layer.size_per_head)).transpose(0, 1).flatten(0, 2)
    widths = [layer.width(source) for source in layer.variant.sharing.projections]
    if len(names) == len(widths) == 3 and sum(widths) == len(tensor):
        parts = tensor.split(widths)
    else:
        parts = tensor.tensor_split(len(names))
    return dict(zip(names, parts, strict=True))


def join_parts(row: Row, parts: Sequence[Tensor], layer: AttentionConfig) -> Tensor:
    """Return the tensor that :func:`split_parts` splits, with the change its row names."""
    joined = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    if row.change == "interleaved":
        cut = (3, -1, layer.size_per_head)
        joined = joined.unflatten(0, cut).transpose(0, 1).flatten(0, 2)
    return joined.T if row.change == "transposed" and joined.dim() == 2 else joined


def order_channels(tensor: Tensor, size: int, order: Sequence[int]) -> Tensor:
    """Return a tensor with the channels of every head in another order.

    Args:
        tensor: The tensor; one of whole heads.
        size: Channels of a head.
        order: The channel at each place.
    """
    return tensor.unflatten(0, (-1, size))[:, list(order)].flatten(0, 1)


def rotated_last(layer: AttentionConfig) -> list[int]:
    """Return the order that moves rotated channels from the front of a head to its end."""
    size, rotated = layer.size_per_head, layer.rotated_channels
    return [*range(rotated, size), *range(rotated)]
