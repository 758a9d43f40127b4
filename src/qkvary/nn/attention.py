"""The attention layer: every variant, in one class that interprets the sharing.

Knows heads and scores. Does not know residuals, norms or what the tokens mean.
"""

import warnings
from collections.abc import Collection
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.sharing import IDENTITY, Source
from qkvary.nn.cache import LayerCache, blank_padding
from qkvary.nn.cache_layouts import NewTokens, make_form, rotate_roles
from qkvary.nn.decoding.decode import decode_attention
from qkvary.nn.draws import Draws
from qkvary.nn.kernels import (
    append_key_bias,
    attend_sdpa,
    choose_kernel,
    content_scores,
    mix_values,
    normalise_diagonal,
)
from qkvary.nn.layout import AttentionMask, Layout
from qkvary.nn.positions import PlusBias, RelativeBias, Rotation, alibi_bias
from qkvary.nn.products import Linear
from qkvary.nn.projections import Projection, project_together, split_heads

MOST_DECODED = 8
"""New tokens up to which kernels for decoding are asked, where the owner of a cache wants them."""


class Attention(nn.Module):
    """Multi-head attention whose roles read shared projections.

    ``softmax(s q k^T + terms) v W_o`` with q, k, v read from the sources that the variant names.
    A drop-in layer: ``Attention(config)(x)`` maps [batch, tokens, d_model] to the same shape.

    Source: Kayyam et al. 2026 (projection sharing, ``+``); Karbevski and Mijoski 2025 (identity
    query). Differs from their code in that ``+`` is computed in its reduced form and KV heads are
    never copied.
    """

    def __init__(self, config: AttentionConfig, *, seed: int | None = 0) -> None:
        """Create the parameters and give them their first values.

        Args:
            config: The layer.
            seed: Of the first values; ``None`` leaves the parameters unset, for a network that
                initialises all of its layers itself.
        """
        super().__init__()
        self.config = config
        sharing = config.variant.sharing
        self.q_proj = self._projection("q")
        self.k_proj = self._projection("k")
        self.v_proj = self._projection("v")
        width = config.num_heads * config.size_per_head
        self.o_proj = Linear(width, config.d_model, bias=config.out_bias)
        size = config.size_per_head
        maps = (config.num_heads, size, size) if config.variant.query_form == "map" else None
        self.query_map = None if maps is None else nn.Parameter(torch.empty(maps))
        self.plus = PlusBias(config) if config.variant.plus else None
        relative = config.variant.positions == "relative"
        self.relative = RelativeBias(config) if relative else None
        self.value_reads_key = sharing.value == sharing.key
        self.content_scale = config.score_scale / config.variant.temperature
        if self.value_reads_key and config.variant.positions == "rotary":
            _warn_of_rotated_value(config)
        if seed is not None:
            self.initialize(Draws(seed, "attention"))

    def initialize(self, draws: Draws) -> None:
        """Draw every parameter as the configuration says; maps start as the identity."""
        config, init = self.config, self.config.init
        named = (("q_proj", self.q_proj), ("k_proj", self.k_proj), ("v_proj", self.v_proj))
        for name, projection in named:
            if projection is not None:
                projection.initialize(draws, name, init, config.projection_std)
        draws.linear(
            "o_proj", self.o_proj, init, init.output_std if init.scheme == "normal" else None
        )
        with torch.no_grad():
            if self.query_map is not None:
                self.query_map.copy_(torch.eye(config.size_per_head).expand_as(self.query_map))
            if self.relative is not None:
                self.relative.weight.zero_()
        if self.plus is not None:
            self.plus.initialize(draws, init)

    def _projection(self, source: Source) -> Projection | None:
        config = self.config
        if source not in config.variant.projections:
            return None
        rank = config.rank(source)
        return Projection(config.d_model, config.width(source), bias=config.bias, rank=rank)

    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        *,
        memory: Float[Tensor, "batch memory d_model"] | None = None,
        cache: LayerCache | None = None,
        layout: Layout | None = None,
        attention_mask: AttentionMask | None = None,
        positions: Int[Tensor, "rows keys"] | None = None,
        document_ids: Int[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Attend.

        Args:
            x: The layer's input, for the tokens after those in the cache.
            memory: What keys and values are made of in place of ``x`` (cross attention), the same
                in all calls of a cache.
            cache: What earlier calls stored; the new tokens, or those of the memory, are appended.
            layout: Positions and masks of the call, where a network computed them already; with a
                memory, that of ``Layout.over``.
            attention_mask: Instead of a layout: True for real tokens, of all seen and new ones, or
                of the memory.
            positions: Instead of a layout: positions of all seen and new tokens.
            document_ids: Instead of a layout: the document of each of them.

        Raises:
            ValueError: if a bidirectional layer is given a cache of its own tokens, a layer that
                goes by the order of tokens a memory, or a tensor does not cover all seen and new
                tokens.
        """
        if memory is not None:
            if positions is not None or document_ids is not None:
                raise ValueError("expected no positions and document_ids with a memory")
            layout = self._lay_over(memory, layout, x.shape[1], attention_mask)
        elif cache is not None and not self.config.causal:
            raise ValueError("expected a causal layer with a cache, got a bidirectional one")
        if layout is None:
            layout = Layout(
                new_tokens=x.shape[1],
                cached_tokens=0 if cache is None else cache.length,
                device=x.device,
                attention_mask=attention_mask,
                positions=positions,
                document_ids=document_ids,
            )
        if cache is not None and memory is None:
            layout = layout.end(cache.kept + x.shape[1])
        query, key, value, rotation = self.roles(x, memory=memory, cache=cache, layout=layout)
        kernel = "layer" if cache is None or memory is not None else cache.kernel
        if kernel != "layer" and self._decodes(layout):
            mixed = decode_attention(
                query,
                key,
                value,
                scale=self.content_scale,
                valid=layout.attention_mask,
                kernel=kernel,
            )
        else:
            mixed = self.mix(query, key, value, layout)
        if rotation is not None and self._counter_rotates:
            mixed = rotation.turn(mixed, back=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def weights(
        self, x: Float[Tensor, "batch queries d_model"], layout: Layout
    ) -> Float[Tensor, "batch heads queries keys"]:
        """The attention probabilities of a call without cache, for looking at."""
        query, key, _, _ = self.roles(x, cache=None, layout=layout)
        return torch.softmax(self._scores(query, key, layout), dim=-1)

    def roles(
        self,
        x: Float[Tensor, "batch queries d_model"],
        *,
        memory: Float[Tensor, "batch memory d_model"] | None = None,
        cache: LayerCache | None,
        layout: Layout,
    ) -> tuple[Tensor, Tensor, Tensor, Rotation | None]:
        """Query, key and value as the softmax core reads them, and the queries' rotation."""
        sharing = self.config.variant.sharing
        rotation = self._rotation(layout.query_positions, x.dtype)
        if memory is None:
            sources = self.sources(x)
            query = self._query(x, sources[sharing.query])
            tokens = NewTokens(x=x, sources=sources, rotation=rotation)
        else:
            query = self._query(x, self.sources(x, {sharing.query})[sharing.query])
            tokens = self._memory_tokens(memory, 0 if cache is None else cache.length, layout)
            sources = tokens.sources
        if cache is None:
            own, mixed = sources[sharing.key], sources[sharing.value]
            key, value = rotate_roles(self.config, own, mixed, tokens.rotation)
        else:
            form = make_form(cache.options.layout, self.config, self.projections)
            new, count = form.write(tokens), tokens.x.shape[1]
            if cache.options.scales == "channel" and layout.attention_mask is not None:
                new = blank_padding(new, layout.attention_mask[:, layout.num_keys - count :])
            stored = cache.append(new)
            key, value = form.read(stored, lambda: self._rotation(layout.key_positions, x.dtype))
        return query if rotation is None else rotation.turn(query), key, value, rotation

    def _memory_tokens(self, memory: Tensor, cached: int, layout: Layout) -> NewTokens:
        """The tokens of a memory that are not in the cache: all of them in the first call."""
        if cached not in (0, memory.shape[1]):
            raise ValueError(
                f"expected the memory of {cached} tokens that the cache holds, got one of "
                f"{memory.shape[1]}"
            )
        x, sharing = memory[:, cached:], self.config.variant.sharing
        rotation = self._rotation(layout.key_positions[:, cached:], x.dtype)
        sources = self.sources(x, {sharing.key, sharing.value})
        return NewTokens(x=x, sources=sources, rotation=rotation)

    def _lay_over(
        self, memory: Tensor, layout: Layout | None, queries: int, mask: AttentionMask | None
    ) -> Layout:
        """The layout of queries over a memory, checked."""
        variant = self.config.variant
        if self.config.causal or variant.window is not None or variant.diagonal != "none":
            raise ValueError(
                "expected a layer that is not causal, has no window and no diagonal normalisation "
                "with a memory, whose tokens have no order with those of x"
            )
        if layout is None:
            own = Layout(new_tokens=queries, device=memory.device)
            return own.over(memory, mask)
        if (layout.num_queries, layout.num_keys) != (queries, memory.shape[1]):
            raise ValueError(
                f"expected a layout of {queries} queries over the {memory.shape[1]} tokens of the "
                f"memory, got {layout.num_queries} over {layout.num_keys}"
            )
        return layout

    def _decodes(self, layout: Layout) -> bool:
        """Whether a call is what kernels for decoding take: few queries, and plain scores."""
        variant = self.config.variant
        plain = not variant.plus and variant.diagonal == "none"
        plain = plain and variant.positions in ("none", "rotary")
        # What a layer stores ends where its window does, for the first of the queries.
        window = variant.window
        near = window is None or layout.num_keys <= window
        few = layout.num_queries <= MOST_DECODED
        alone = layout.document_ids is None and not torch.is_grad_enabled()
        return plain and near and few and alone and not self.training

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation | None:
        if self.config.variant.positions != "rotary":
            return None
        return Rotation(positions, self.config, dtype)

    @property
    def projections(self) -> dict[Source, Projection]:
        """The learned projections, in the order q, k, v."""
        named: dict[Source, Projection | None] = {
            "q": self.q_proj,
            "k": self.k_proj,
            "v": self.v_proj,
        }
        return {source: part for source, part in named.items() if part is not None}

    def sources(
        self, x: Float[Tensor, "batch queries d_model"], wanted: Collection[Source] | None = None
    ) -> dict[Source, Float[Tensor, "batch heads queries head_dim"]]:
        """The sources that are wanted, by default all that some role reads, cut into heads."""
        names = self.config.variant.sharing.roles.values() if wanted is None else wanted
        learned: list[Source] = [source for source in self.projections if source in names]
        outputs = project_together(x, [self.projections[source] for source in learned])
        found: dict[Source, Tensor] = dict(zip(learned, outputs, strict=True))
        if IDENTITY in names:
            found[IDENTITY] = x
        return {source: self._split(source, flat) for source, flat in found.items()}

    def _split(self, source: Source, flat: Tensor) -> Tensor:
        return split_heads(flat, self.config.heads(source))

    def _query(self, x: Tensor, source: Tensor) -> Tensor:
        form = self.config.variant.query_form
        if form == "plain":
            return source
        if self.query_map is not None:
            groups = source.shape[1]
            maps = self.query_map.unflatten(0, (groups, -1))
            return (source[:, :, None] @ maps).flatten(1, 2)
        change = F.gelu(source) if form == "residual-gelu" else source
        return self._split(IDENTITY, x) + change

    @property
    def _counter_rotates(self) -> bool:
        return self.value_reads_key and self.config.position.value_rope == "counter"

    def mix(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
        value: Float[Tensor, "batch kv_heads keys head_dim"],
        layout: Layout,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """The core: the values, weighted by the softmax of the scores."""
        config = self.config
        dropout = config.dropout if self.training else 0.0
        kernel = choose_kernel(config, layout.num_keys, training=self.training)
        if kernel == "explicit":
            weights = torch.softmax(self._scores(query, key, layout), dim=-1)
            return mix_values(F.dropout(weights, dropout) if dropout else weights, value)
        scale = self.content_scale
        if self.plus is not None:
            query, key = self._add_plus(query, key, layout)
            scale = 1.0
        plain = layout.is_plain_causal(causal=config.causal, window=config.variant.window)
        pairs = self._pair_bias(query, layout)
        plain = plain and pairs is None
        bias = pairs if plain else self._with_penalty(pairs, query, layout)
        return attend_sdpa(
            query, key, value, bias=bias, plain_causal=plain, dropout=dropout, scale=scale
        )

    def _scores(self, query: Tensor, key: Tensor, layout: Layout) -> Tensor:
        """What the softmax reads."""
        if self.config.variant.diagonal != "none":
            scores = self._normalised_scores(query, key, layout)
        elif self.plus is not None:
            scores = content_scores(*self._add_plus(query, key, layout))
        else:
            scores = content_scores(query * self.content_scale, key)
        bias = self._with_penalty(self._pair_bias(query, layout), query, layout)
        # In place: no gradient needs the products as they were, and the map is the largest tensor.
        return scores if bias is None else scores.add_(bias)

    def _add_plus(self, query: Tensor, key: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Scaled query and key with ``+`` inside: their products are s tau a_ij + g(j)."""
        plus = cast("PlusBias", self.plus)
        scaled = query * (plus.temperature() * self.content_scale)
        bias = plus.key_bias(layout.key_positions)
        return append_key_bias(scaled, key, bias, 1.0 / self.config.variant.temperature)

    def _normalised_scores(self, query: Tensor, key: Tensor, layout: Layout) -> Tensor:
        """Scores whose diagonal is divided by its mean or norm, before ``+`` and temperature."""
        config = self.config
        content = normalise_diagonal(
            content_scores(query * config.score_scale, key),
            key.square().sum(dim=-1) * config.score_scale,
            config,
            valid=layout.attention_mask,
            documents=layout.document_ids,
        )
        if self.plus is not None:
            bias = self.plus.key_bias(layout.key_positions).mT.unsqueeze(-2)
            content = content * self.plus.temperature() + bias
        return content / config.variant.temperature

    def _pair_bias(self, query: Tensor, layout: Layout) -> Tensor | None:
        """The position term that goes by pair of query and key, ``None`` if there is none."""
        pair = (layout.query_positions, layout.key_positions)
        if self.relative is not None:
            bias = self.relative(*pair)
        elif self.config.variant.positions == "alibi":
            bias = alibi_bias(*pair, self.config.num_heads, query.dtype)
        else:
            return None
        return bias / self.config.variant.temperature

    def _with_penalty(self, bias: Tensor | None, query: Tensor, layout: Layout) -> Tensor | None:
        """The bias of the pairs, and next to nothing for those that must not see each other."""
        config = self.config
        device = query.device.type
        # Under autocast the products have its type, whatever the type of the query.
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else query.dtype
        penalty = layout.penalty(causal=config.causal, window=config.variant.window, dtype=dtype)
        return bias if penalty is None else penalty if bias is None else bias + penalty


def _warn_of_rotated_value(config: AttentionConfig) -> None:
    if config.position.value_rope == "rotated":
        warnings.warn(
            "value_rope 'rotated' gives outputs that change when the text is moved; "
            "use 'counter' or 'none' unless this is the ablation you want",
            stacklevel=3,
        )
