"""The encoder-decoder for translation: a decoder that attends to the output of an encoder."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheOptions
from qkvary.arch.networks import BlockConfig, EncoderDecoderConfig
from qkvary.nn.attention import Attention, make_attention
from qkvary.nn.blocks import (
    Block,
    Stack,
    add_positions,
    initialize,
    make_layout,
    make_norm,
    make_position_embedding,
)
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.fused_loss import linear_token_losses, smoothed_loss_sum
from qkvary.nn.layout import Layout
from qkvary.nn.linear import linear
from qkvary.nn.shapes import AttentionMask, Hidden, LayerMaps, Logits, TokenIds


@dataclass(frozen=True, slots=True)
class Memory:
    """The encoder's output, and the layout with which one decoder call attends to it."""

    states: Float[Tensor, "batch source d_model"]
    layout: Layout


class AttentionMaps(NamedTuple):
    """The attention probabilities of every layer, without dropout."""

    encoder: Float[Tensor, "batch layers heads source source"]
    decoder: LayerMaps
    cross: Float[Tensor, "batch layers heads tokens source"]


class EncoderDecoderCache(KVCache):
    """The decoder's cache, the encoder's output, and a static cache of its keys and values."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        memory: Float[Tensor, "batch source d_model"],
        memory_mask: AttentionMask,
        *,
        max_tokens: int | None = None,
        options: CacheOptions | None = None,
    ) -> None:
        """Create an empty cache for one source text.

        ``memory`` and ``memory_mask`` are the output of ``encode`` for the source.

        Raises:
            ValueError: in the same cases as for :class:`KVCache`, or if the outputs of cross
                attention for earlier tokens depend on later tokens.
        """
        if config.cross_kind.make is not None:
            raise ValueError(
                "expected cross attention that can be decoded step by step, got "
                f"{config.cross_sharing}, whose outputs for earlier tokens depend on the length "
                "of the target"
            )
        super().__init__(config.layers, max_tokens=max_tokens, options=options)
        self.cross = KVCache(config.cross)
        self._set_memory(memory, memory_mask)

    def _set_memory(self, memory: Tensor, mask: Tensor) -> None:
        self.memory, self.memory_mask = memory, mask
        self.memory_layout = Layout(
            new_tokens=memory.shape[1], device=memory.device, attention_mask=mask
        )

    @property
    def nbytes(self) -> int:
        """Number of bytes held by all layers, including those of cross attention."""
        return super().nbytes + self.cross.nbytes

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row ``rows[i]``, including the source of the row."""
        super().reorder(rows)
        self.cross.reorder(rows)
        self._set_memory(self.memory[rows], self.memory_mask[rows])


class DecoderBlock(Block):
    """``x + f(norm(x))`` for f = self-attention, cross attention, then FFN."""

    def __init__(self, attention: AttentionConfig, cross: Attention, config: BlockConfig) -> None:
        super().__init__(attention, config)
        self.cross = cross
        self.cross_norm = make_norm(attention.d_model, config)

    def forward(
        self,
        x: Hidden,
        *,
        layout: Layout,
        cache: LayerCache | None = None,
        memory: Memory | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Hidden:
        """Apply the sublayers. Cross attention is skipped if ``memory`` is None."""
        read = self.attention_norm(x)
        mixed = self.attention(read, layout=layout, cache=cache)
        x = self.add_attention(x, mixed)
        if memory is not None:
            read, states = self.cross_norm(x), memory.states
            mixed = self.cross(read, memory=states, layout=memory.layout, cache=cross_cache)
            x = self.add_attention(x, mixed)
        return self.add_feed_forward(x, self.feed_forward_norm(x))


class DecoderStack(Stack):
    """Decoder blocks and the final norm."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        make = config.cross_kind.make
        super().__init__(
            config,
            (
                DecoderBlock(own, make(own, cross) if make else make_attention(cross), config.block)
                for own, cross in zip(config.layers, config.cross, strict=True)
            ),
        )

    def decode(
        self, x: Hidden, *, layout: Layout, memory: Memory, cache: EncoderDecoderCache | None = None
    ) -> Hidden:
        """Apply all blocks."""
        for index, block in enumerate(self.blocks):
            x = self._apply_block(
                block,
                x,
                layout=layout,
                memory=memory,
                cache=None if cache is None else cache.layers[index],
                cross_cache=None if cache is None else cache.cross.layers[index],
            )
        return x if self.final_norm is None else self.final_norm(x)

    def maps(
        self, x: Hidden, *, layout: Layout, memory: Memory
    ) -> tuple[
        Float[Tensor, "batch layers heads queries queries"],
        Float[Tensor, "batch layers heads queries source"],
    ]:
        """Return the probabilities of self-attention and of cross attention of every layer."""
        own: list[Tensor] = []
        crossing: list[Tensor] = []
        for block in self.blocks:
            if isinstance(block, DecoderBlock):
                normed = block.attention_norm(x)
                own.append(block.attention.weights(normed, layout))
                query = block.cross_norm(x + block.attention(normed, layout=layout))
                crossing.append(block.cross.weights(query, memory.layout, memory=memory.states))
            x = self._apply_block(block, x, layout=layout, memory=memory, cache=None)
        return torch.stack(own, dim=1), torch.stack(crossing, dim=1)


class EncoderDecoder(nn.Module):
    """A pre-norm encoder and decoder with final norms, separate embeddings and an untied head.

    Source: Vaswani et al. 2017, with norms before sublayers as in the public code of paper 2
    (Borji 2023).
    """

    def __init__(self, config: EncoderDecoderConfig, *, seed: int = 0) -> None:
        """Build the network and draw its initial values from a seed."""
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.source_embedding = nn.Parameter(torch.empty(config.source_vocabulary, d_model))
        self.embedding = nn.Parameter(torch.empty(config.vocabulary, d_model))
        self.source_positions = make_position_embedding(config, config.positions)
        self.target_positions = make_position_embedding(config, config.positions)
        self.encoder = Stack(config.encoder)
        self.decoder = DecoderStack(config)
        self.head_weight = nn.Parameter(torch.empty(config.vocabulary, d_model))
        self.head_bias = nn.Parameter(torch.empty(config.vocabulary)) if config.head_bias else None
        self._initialize(seed)

    def forward(
        self,
        tokens: TokenIds,
        *,
        source: Int[Tensor, "batch source"] | None = None,
        targets: TokenIds | None = None,
        smoothing: float = 0.0,
        cache: KVCache | None = None,
        attention_mask: AttentionMask | None = None,
    ) -> Logits | Float[Tensor, ""]:
        """Return the logits of the next token at every position; with targets, the loss.

        ``targets`` are the next tokens; -100 marks positions without a target. The loss is a sum in
        nats, with label smoothing (:func:`smoothed_loss_sum`). All other arguments are those of
        ``features``.
        """
        features = self.features(tokens, source=source, cache=cache, attention_mask=attention_mask)
        if targets is None:
            return self.head(features)
        return smoothed_loss_sum(
            features.flatten(0, 1),
            self.head_weight,
            self.head_bias,
            targets.flatten(),
            smoothing=smoothing,
            excluded=self.config.padding,
        )

    def encode(
        self, source: Int[Tensor, "batch source"]
    ) -> tuple[Float[Tensor, "batch source d_model"], Bool[Tensor, "batch source"]]:
        """Return the encoder's output for a source, and the mask of its real tokens."""
        x, layout = self._read_source(source)
        return self.encoder(x, layout=layout), source != self.config.padding

    def features(
        self,
        tokens: TokenIds,
        *,
        source: Int[Tensor, "batch source"] | None = None,
        cache: KVCache | None = None,
        attention_mask: AttentionMask | None = None,
    ) -> Hidden:
        """Return the hidden states after the last layer of the decoder.

        Args:
            tokens: Ids of the target's tokens after those in the cache.
            source: Ids of the source, padding included. None if a cache is given, because the cache
                has the encoded source.
            cache: An :class:`EncoderDecoderCache`; the new tokens are appended.
            attention_mask: True for the target's real tokens, both cached and new.

        Raises:
            ValueError: if the cache has another class, if both or neither of source and cache are
                given, or if the sequence is longer than ``max_tokens``.
        """
        if source is not None and cache is None:
            x, own = self._read_source(source)
            states, cached = self.encoder(x, layout=own), 0
        elif source is None and isinstance(cache, EncoderDecoderCache):
            states, own, cached = cache.memory, cache.memory_layout, cache.length
        else:
            raise ValueError(
                "expected either a source or an EncoderDecoderCache, got "
                f"{'a source' if source is not None else 'no source'} and {type(cache).__name__}"
            )
        layout = make_layout(self.config, tokens, cached, attention_mask=attention_mask)
        memory = Memory(states, own.with_queries(layout.query_positions))
        x = self._embed(tokens, layout, self.embedding, self.target_positions)
        return self.decoder.decode(x, layout=layout, memory=memory, cache=cache)

    def head(self, features: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocabulary"]:
        """Compute logits from hidden states."""
        return linear(features, self.head_weight, self.head_bias)

    def token_losses(
        self, features: Float[Tensor, "tokens d_model"], targets: Int[Tensor, " tokens"]
    ) -> Float[Tensor, " tokens"]:
        """Return the cross entropy of each target given its hidden state, in nats."""
        return linear_token_losses(features, self.head_weight, self.head_bias, targets)

    def attention_maps(
        self, tokens: TokenIds, source: Int[Tensor, "batch source"]
    ) -> AttentionMaps:
        """Return the attention probabilities of every layer, without dropout."""
        x, own = self._read_source(source)
        read = self.encoder.attention_maps(x, layout=own)
        states = self.encoder(x, layout=own)
        layout = make_layout(self.config, tokens)
        x = self._embed(tokens, layout, self.embedding, self.target_positions)
        memory = Memory(states, own.with_queries(layout.query_positions))
        return AttentionMaps(read, *self.decoder.maps(x, layout=layout, memory=memory))

    def _read_source(self, source: Tensor) -> tuple[Tensor, Layout]:
        """Return the embedded source, and a layout that masks its padding."""
        layout = make_layout(self.config, source, attention_mask=source != self.config.padding)
        return self._embed(source, layout, self.source_embedding, self.source_positions), layout

    def _embed(
        self, tokens: Tensor, layout: Layout, embedding: Tensor, positions: Tensor | None
    ) -> Tensor:
        x = F.embedding(tokens, embedding)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.d_model)
        kind = self.config.positions
        x = add_positions(x, layout.query_positions, kind=kind, table=positions)
        return F.dropout(x, self.config.embedding_dropout, self.training)

    def _initialize(self, seed: int) -> None:
        init = self.config.init
        initializer = initialize(self, init, seed)
        for name in ("source_embedding", "embedding", "source_positions", "target_positions"):
            initializer.table(name, getattr(self, name), init)
        vocabulary, d_model = self.head_weight.shape
        std = init.weight_std(d_model, vocabulary)
        initializer.weight("head_weight", self.head_weight, init, std)
        initializer.bias("head_bias", self.head_bias, init, d_model)
