"""The weights of a language model under the names that transformers or llama.cpp uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from qkvary.arch.families.language_models import BLOCKS
from qkvary.checkpoints.stock_names import TABLES, Row, list_tensors
from qkvary.checkpoints.stock_networks import find_parameter
from qkvary.checkpoints.stock_parts import is_turned, join_parts, order_channels
from qkvary.nn.language_model import LanguageModel

PLUS_ONE = "rmsnorm-plus-one"


def list_weights(
    network: LanguageModel, family: str, order: Sequence[int], *, is_changed: bool = True
) -> Iterator[tuple[Row, Tensor]]:
    """Yield the weights of a network that a family expresses, in the order of a file.

    Args:
        network: The network.
        family: Its ``model_type``.
        order: Our channel for each of theirs, in a head whose channels may be rotated.
        is_changed: Whether tensors are laid out as in transformers.
    """
    layer = network.config.layers[0]
    for row in list_tensors(TABLES.get(family, "llama"), network.config.num_layers):
        found = [find_parameter(network, name) for name in row.ours.split(",")]
        parts = [
            order_channels(part, layer.size_per_head, order) if is_turned(name) else part
            for name, part in zip(row.ours.split(","), found, strict=True)
            if part is not None
        ]
        if len(parts) == len(found):
            yield row, join_parts(row if is_changed else row._replace(change=""), parts, layer)


def family_weights(network: LanguageModel, family: str) -> dict[str, Tensor]:
    """Return the weights under the names that transformers uses, including a tied head."""
    layer = network.config.layers[0]
    size, rotated = layer.size_per_head, layer.rotated_channels
    # This package rotates the last channels of a head.
    order = [*range(size - rotated, size), *range(size - rotated)]
    lowered = BLOCKS[family].norm == PLUS_ONE and network.config.block.norm != PLUS_ONE
    return {
        row.theirs: (weight - 1 if lowered and "norm" in row.ours else weight)
        .detach()
        .cpu()
        .contiguous()
        for row, weight in list_weights(network, family, order)
    }
