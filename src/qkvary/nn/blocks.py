"""The blocks of a network in sequence, and the positions that networks add to embeddings.

A block is an attention layer and a feed-forward layer, each with residual, norm and dropout.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.networks import Activation, BlockConfig, Network, Positions, TokenNetwork
from qkvary.nn.attention import Attention, make_attention
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.initializer import Initializer
from qkvary.nn.layout import Layout, sinusoid
from qkvary.nn.linear import apply
from qkvary.nn.projections import RMSNormPlusOne
from qkvary.nn.shapes import Hidden, LayerMaps

_gelu_tanh = functools.partial(F.gelu, approximate="tanh")
ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": _gelu_tanh,
    "swiglu": F.silu,
    "geglu-tanh": _gelu_tanh,
}
"""The function of each activation; gated networks apply it to the gate."""


class FeedForward(nn.Module):
    """``down(activation(dropout(up(x))))``; with a gate ``down(activation(gate(x)) * up(x))``."""

    def __init__(self, d_model: int, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        bias = config.has_feed_forward_bias
        self.up = nn.Linear(d_model, config.d_ff, bias=bias)
        self.gate = nn.Linear(d_model, config.d_ff, bias=bias) if config.is_gated else None
        self.down = nn.Linear(config.d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return the feed-forward output of every token."""
        inner = F.dropout(apply(self.up, x), self.config.inner_dropout, self.training)
        activate = ACTIVATIONS[self.config.activation]
        if self.gate is not None:
            return apply(self.down, activate(apply(self.gate, x)) * inner)
        return apply(self.down, activate(inner))

    def initialize(self, initializer: Initializer, init: Initialization) -> None:
        """Draw the matrices; under ``normal``, ``down`` has a standard deviation ``output_std``."""
        initializer.linear("up", self.up, init)
        initializer.linear("gate", self.gate, init)
        output_std = init.output_std if init.scheme == "normal" else None
        initializer.linear("down", self.down, init, output_std)


def make_norm(d_model: int, config: BlockConfig) -> nn.Module:
    """Return LayerNorm, RMSNorm or no norm, as the configuration says."""
    if config.norm == "none":
        return nn.Identity()
    if config.norm == "layernorm":
        return nn.LayerNorm(d_model, eps=config.norm_eps, bias=config.bias)
    kind = nn.RMSNorm if config.norm == "rmsnorm" else RMSNormPlusOne
    return kind(d_model, eps=config.norm_eps)


class Block(nn.Module):
    """Pre-norm ``x + f(norm(x))`` or post-norm ``norm(x + f(x))``, for f = attention, then FFN.

    With the placement ``stream``, ``norm(x) + f(norm(x))``; with ``output``, ``x + norm(f(x))``;
    with ``sandwich``, ``x + norm(f(norm(x)))``. A sublayer without a skip omits the first summand.
    Parallel sublayers are ``x + f(norm(x)) + g(norm(x))``.
    """

    def __init__(self, attention: AttentionConfig, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = make_attention(attention)
        self.attention_norm = make_norm(attention.d_model, config)
        self.feed_forward = FeedForward(attention.d_model, config)
        self.feed_forward_norm = make_norm(attention.d_model, config)
        has_both = config.norm_placement == "sandwich"
        self.attention_output_norm = make_norm(attention.d_model, config) if has_both else None
        self.feed_forward_output_norm = make_norm(attention.d_model, config) if has_both else None

    def forward(self, x: Hidden, *, layout: Layout, cache: LayerCache | None = None) -> Hidden:
        """Apply both sublayers."""
        placement, before = self.config.norm_placement, x
        read = self.attention_input(x)
        mixed = self.attention(read, layout=layout, cache=cache)
        x = self.add_attention(read if placement == "stream" else x, mixed)
        if placement.startswith("post"):
            x = self.attention_norm(x)
            return self.feed_forward_norm(self.add_feed_forward(x, x))
        if placement == "stream":
            x = self.feed_forward_norm(x)
            return self.add_feed_forward(x, x)
        read = before if self.config.parallel else x
        return self.add_feed_forward(
            x, read if placement == "output" else self.feed_forward_norm(read)
        )

    def attention_input(self, x: Hidden) -> Hidden:
        """Return the input of the attention layer for a block input ``x``."""
        has_no_norm = self.config.norm_placement.startswith(("post", "output"))
        return x if has_no_norm else self.attention_norm(x)

    def add_attention(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return ``mixed`` after norm and dropout, plus ``x`` if attention has a skip."""
        if self.attention_output_norm is not None:
            mixed = self.attention_output_norm(mixed)
        elif self.config.norm_placement == "output":
            mixed = self.attention_norm(mixed)
        mixed = F.dropout(mixed, self.config.dropout, self.training)
        return x + mixed if self.config.has_attention_skip else mixed

    def add_feed_forward(self, x: Tensor, read: Tensor) -> Tensor:
        """Return the feed-forward output for ``read``, plus ``x`` if the sublayer has a skip."""
        change = self.feed_forward(read)
        if self.feed_forward_output_norm is not None:
            change = self.feed_forward_output_norm(change)
        elif self.config.norm_placement == "output":
            change = self.feed_forward_norm(change)
        own = self.config.feed_forward_dropout
        change = F.dropout(change, self.config.dropout if own is None else own, self.training)
        return x + change if self.config.has_feed_forward_skip else change


def initialize(network: nn.Module, init: Initialization, seed: int) -> Initializer:
    """Initialise the blocks of a network, and return the initialiser for its other parameters.

    Attention layers use the initialisation in their own configuration.
    """
    for name, module in network.named_modules():
        match module:
            case Attention():
                module.initialize(Initializer(seed, name))
            case FeedForward():
                module.initialize(Initializer(seed, name), init)
            case nn.LayerNorm() | nn.RMSNorm():
                module.reset_parameters()
            case _:
                pass
    return Initializer(seed, "")


class Stack(nn.Module):
    """``norm(block_L(... block_1(x)))``; the final norm is optional.

    With ``recompute_blocks``, only the input of each block is kept, and the backward pass computes
    the block again. This saves memory, costs time and gives the same gradients.
    """

    def __init__(self, config: Network, blocks: Iterable[Block] | None = None) -> None:
        """Create the blocks; ``blocks`` can replace the default ones."""
        super().__init__()
        own = config.layers[:1] if config.shared_blocks else config.layers
        layers = blocks or (Block(layer, config.block) for layer in own)
        self.blocks = cast("Iterable[Block]", nn.ModuleList(layers))
        self._repeats = config.num_layers if config.shared_blocks else 1
        final = config.block.has_final_norm
        self.final_norm = make_norm(config.d_model, config.block) if final else None
        self.recompute_blocks = False

    def forward(self, x: Hidden, *, layout: Layout, cache: KVCache | None = None) -> Hidden:
        """Apply all blocks and the final norm, after checking the call for layers with a state."""
        caches = [None] * len(self.layers) if cache is None else cache.layers
        for block, layer_cache in zip(self.layers, caches, strict=True):
            if layer_cache is not None and layer_cache.state is not None:
                block.attention.check_state(layout)
        for block, layer_cache in zip(self.layers, caches, strict=True):
            x = self._apply_block(block, x, layout=layout, cache=layer_cache)
        return x if self.final_norm is None else self.final_norm(x)

    @property
    def layers(self) -> list[Block]:
        """The block of every layer. If all layers share one block, it is repeated."""
        return [*self.blocks] * self._repeats

    def _apply_block(
        self, block: Block, x: Tensor, *, cache: LayerCache | None, **others: Any
    ) -> Tensor:
        # Recomputing a block would append its tokens to the cache twice.
        if self.recompute_blocks and torch.is_grad_enabled() and cache is None:
            return cast("Tensor", checkpoint(block, x, use_reentrant=False, **others))
        return block(x, cache=cache, **others)

    def attention_maps(self, x: Hidden, *, layout: Layout) -> LayerMaps:
        """Return the attention probabilities of every layer."""
        maps: list[Tensor] = []
        for block in self.layers:
            maps.append(block.attention.weights(block.attention_input(x), layout))
            x = block(x, layout=layout)
        return torch.stack(maps, dim=1)


def compile_blocks(network: nn.Module) -> None:
    """Compile each block in place with torch; equal blocks share the compiled code."""
    for module in network.modules():
        if isinstance(module, Stack):
            for block in module.blocks:
                block.compile()


def make_position_embedding(config: TokenNetwork, positions: Positions) -> nn.Parameter | None:
    """Return the table of learned positions, if the network has one."""
    shape = (config.max_tokens, config.d_model)
    return nn.Parameter(torch.empty(shape)) if positions == "learned" else None


def add_positions(
    x: Hidden,
    tokens_at: Int[Tensor, "rows tokens"],
    *,
    kind: Positions,
    table: Float[Tensor, "max_tokens d_model"] | None,
) -> Hidden:
    """Add absolute positions: learned ones from the table, sinusoids, or none."""
    if table is not None:
        return x + F.embedding(tokens_at, table)
    return x if kind == "none" else x + sinusoid(tokens_at, x.shape[-1], x.dtype, kind)


def make_layout(
    config: TokenNetwork, tokens: Tensor, cached: int = 0, **others: Tensor | None
) -> Layout:
    """Return the layout of new tokens.

    Cached and new tokens together must fit ``max_tokens``.
    """
    check_length(config, cached=cached, new=tokens.shape[1])
    return Layout(new_tokens=tokens.shape[1], cached_tokens=cached, device=tokens.device, **others)


def check_length(config: TokenNetwork, *, cached: int, new: int) -> None:
    """Check that a sequence has at most ``max_tokens``."""
    if cached + new > config.max_tokens:
        raise ValueError(
            f"expected at most {config.max_tokens} tokens, got {cached} cached and {new} new"
        )
