"""Converts tensors of other programs to parameters of our networks and back, by tables of names.

A stored tensor may join several of ours, and its channels within a head may be in another order:
our heads rotate the last channels, those of transformers rotate the first, and llama.cpp's Llama
rotates neighbouring pairs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.stock_names import Row, list_tensors
from qkvary.checkpoints.structure import make_language_model
from qkvary.storage.errors import DamagedError, UsageError

Side = Literal["theirs", "gguf"]
Weights = dict[str, Tensor]
Order = Callable[[AttentionConfig], Sequence[int]]
"""A function that returns, for each channel of a head in the other program, our channel number."""

PLUS_ONE = "rmsnorm-plus-one"
"""The norm of Gemma, which adds one to its gain."""
_IN_HEADS = ("q_proj", "k_proj", "query_norm", "key_norm")
"""Modules whose rows are the channels of query heads or key heads."""


def read_weights(
    tensors: Mapping[str, Tensor],
    family: str,
    config: LanguageModelConfig,
    side: Side,
    order: Order,
    where: str,
) -> Weights:
    """Return stored tensors as parameters; wrong shapes are refused later."""
    left, found, needed = dict(tensors), Weights(), set[str]()
    # Impossibly large sizes are refused later, when the weights are loaded.
    with suppress(RuntimeError), torch.device("meta"):
        needed = {*make_language_model(config).state_dict()}
    layer, size = config.layers[0], config.layers[0].size_per_head
    widths = [layer.width(source) for source in layer.variant.sharing.projections]
    for row in list_tensors(family, config.num_layers):
        name, names = getattr(row, side), row.ours.split(",")
        if name not in left:
            if needed & {*names}:
                raise DamagedError(f"{where} lacks the tensor {name}")
            continue
        tensor = torch.atleast_1d(left.pop(name))
        if side == "theirs":
            tensor = _change(row, tensor, size, is_stored=True)
        is_joined = len(names) == len(widths) == 3 and sum(widths) == len(tensor)
        parts = tensor.split(widths) if is_joined else tensor.tensor_split(len(names))
        for ours, part in zip(names, parts, strict=True):
            found[ours] = restore_order(ours, part, layer, order).contiguous()
    if left:
        raise UsageError(f"{where} has the tensor {min(left)[:80]}, which qkvary does not use")
    return found


def restore_order(name: str, part: Tensor, layer: AttentionConfig, order: Order) -> Tensor:
    """Return a stored parameter in our order of channels; only queries and keys are reordered."""
    size = layer.size_per_head
    if not _is_turned(name) or len(part) < size or len(part) % size:
        return part
    return _order_channels(part, size, sorted(range(size), key=order(layer).__getitem__))


def name_weights(
    find: Callable[[str], Tensor | None],
    family: str,
    config: LanguageModelConfig,
    side: Side,
    order: Order,
) -> Iterator[tuple[Row, Tensor]]:
    """Yield the tensors that another program stores, each after the row with its names."""
    layer, size = config.layers[0], config.layers[0].size_per_head
    for row in list_tensors(family, config.num_layers):
        names = row.ours.split(",")
        parts = [
            _order_channels(part, size, order(layer)) if _is_turned(name) else part
            for name in names
            if (part := find(name)) is not None
        ]
        if len(parts) == len(names):
            joined = torch.cat(parts) if len(parts) > 1 else parts[0]
            yield row, _change(row, joined, size, is_stored=False) if side == "theirs" else joined


def rotated_first(layer: AttentionConfig) -> list[int]:
    """Return the channel order of transformers: the rotated channels of a head come first."""
    still = layer.size_per_head - layer.rotated_channels
    return [*range(still, layer.size_per_head), *range(still)]


def paired_first(layer: AttentionConfig) -> list[int]:
    """Return llama.cpp's order of our channels in a head: rotated pairs first, then the others."""
    rotated = layer.position.rotary_dim(layer.size_per_head)
    still, half = layer.size_per_head - rotated, rotated // 2
    pairs = [still + k + part for k in range(half) for part in (0, half)]
    return [*pairs, *range(still)]


def _change(row: Row, tensor: Tensor, size: int, *, is_stored: bool) -> Tensor:
    """Convert our tensor to transformers' layout, or a stored tensor (``is_stored``) to ours."""
    if row.change == "interleaved" and len(tensor) % (3 * size) == 0:
        cut = (-1, 3, size) if is_stored else (3, -1, size)
        return tensor.unflatten(0, cut).transpose(0, 1).flatten(0, 2)
    return tensor.T if row.change == "transposed" and tensor.dim() == 2 else tensor


def _is_turned(name: str) -> bool:
    return name.rpartition(".")[0].endswith(_IN_HEADS)


def _order_channels(tensor: Tensor, size: int, order: Sequence[int]) -> Tensor:
    return tensor.unflatten(0, (-1, size))[:, list(order)].flatten(0, 1)
