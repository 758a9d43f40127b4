"""The blocks of a network, one after the other, and what all networks add to their tokens."""

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkvary.arch.networks import Network, Positions, TokenNetwork
from qkvary.nn.blocks import Block, make_norm
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.layout import Layout
from qkvary.nn.positions import sinusoid


class Stack(nn.Module):
    """``norm(block_L(... block_1(x)))``; the last norm exists where the configuration says so.

    ``recompute_blocks`` is how a run trades time for memory, and no part of the network: the input
    of each block is all that is kept of it for the backward pass, which computes the block again,
    with the same dropout, and so finds the same gradients.
    """

    def __init__(self, config: Network, blocks: Iterable[Block] | None = None) -> None:
        """Create the blocks.

        Args:
            config: The network.
            blocks: Its blocks, where they are of another kind.
        """
        super().__init__()
        own = config.layers[:1] if config.shared_blocks else config.layers
        layers = blocks or (Block(layer, config.block) for layer in own)
        self.blocks = cast("Iterable[Block]", nn.ModuleList(layers))
        self._repeats = config.num_layers if config.shared_blocks else 1
        final = config.block.has_final_norm
        self.final_norm = make_norm(config.d_model, config.block) if final else None
        self.recompute_blocks = False

    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        *,
        layout: Layout,
        cache: KVCache | None = None,
        kernel: str | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Apply all blocks.

        Raises:
            ValueError: for a call that a layer with a state cannot make; no cache is changed.
        """
        for block, layer in zip(self.layers, () if cache is None else cache.layers, strict=False):
            if layer.state is not None:
                block.attention.check_state(layout)
        for index, block in enumerate(self.layers):
            layer = None if cache is None else cache.layers[index]
            x = self._apply_block(block, x, layout=layout, cache=layer, kernel=kernel)
        return x if self.final_norm is None else self.final_norm(x)

    @property
    def layers(self) -> list[Block]:
        """The block of every layer; one block for all where they share it."""
        return [*self.blocks] * self._repeats

    def _apply_block(
        self, block: Block, x: Tensor, *, cache: LayerCache | None, **others: Any
    ) -> Tensor:
        # What a block appended to a cache would be appended twice.
        if self.recompute_blocks and torch.is_grad_enabled() and cache is None:
            return cast("Tensor", checkpoint(block, x, use_reentrant=False, **others))
        return block(x, cache=cache, **others)

    def attention_maps(
        self, x: Float[Tensor, "batch tokens d_model"], *, layout: Layout
    ) -> Float[Tensor, "batch layers heads tokens tokens"]:
        """Return the attention probabilities of every layer."""
        maps: list[Tensor] = []
        for block in self.layers:
            maps.append(block.attention.weights(block.attention_input(x), layout))
            x = block(x, layout=layout)
        return torch.stack(maps, dim=1)


def compile_blocks(network: nn.Module) -> None:
    """Compile each block in place with torch.

    Equal blocks share what was compiled, so that the time does not grow with the layers; wrappers
    of several processes gather the weights of one block at a time.
    """
    for module in network.modules():
        if isinstance(module, Stack):
            for block in module.blocks:
                block.compile()


def make_position_embedding(config: TokenNetwork, positions: Positions) -> nn.Parameter | None:
    """Return the table of learned positions, where there is one."""
    if positions != "learned":
        return None
    return nn.Parameter(torch.empty(config.max_tokens, config.d_model))


def add_positions(
    x: Float[Tensor, "batch tokens d_model"],
    tokens_at: Int[Tensor, "rows tokens"],
    *,
    kind: Positions,
    table: Float[Tensor, "max_tokens d_model"] | None,
) -> Float[Tensor, "batch tokens d_model"]:
    """Add absolute positions: from the table, sinusoidal, or none."""
    if table is not None:
        return x + F.embedding(tokens_at, table)
    return x if kind == "none" else x + sinusoid(tokens_at, x.shape[-1], x.dtype, kind)


def check_length(config: TokenNetwork, *, cached: int, new: int) -> None:
    """Check that the network has positions for a sequence.

    Raises:
        ValueError: if there are more than ``max_tokens``.
    """
    if cached + new > config.max_tokens:
        raise ValueError(
            f"expected at most {config.max_tokens} tokens, got {cached} cached and {new} new"
        )
