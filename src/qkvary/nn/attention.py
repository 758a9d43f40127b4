"""Defines the attention layer, one class that computes every variant.

The class fixes the order of the steps: projections, queries, keys and values (the roles), terms
added to the scores, the core that mixes the values, and the output. Each step has its own module.
Residuals and norms belong to the blocks.
"""

import warnings

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkvary.arch.attention import KV_NORM_EPS, AttentionConfig
from qkvary.arch.labels import as_variant, format_label
from qkvary.arch.parts import given_sizes, returned
from qkvary.arch.sharing import QUERY_ROPE, Source
from qkvary.arch.variants import Variant
from qkvary.nn.cache import LayerCache
from qkvary.nn.cache_layouts import store_and_read
from qkvary.nn.initializer import Initializer
from qkvary.nn.kernels import CORES, MOST_DECODED, Core
from qkvary.nn.layout import Layout
from qkvary.nn.linear import apply, is_plain
from qkvary.nn.projections import (
    HeadNorm,
    Heads,
    Latent,
    LowRank,
    RoleMaker,
    make_head_norm,
    make_projection,
    make_query,
)
from qkvary.nn.shapes import AttentionMask, Hidden, Pairs
from qkvary.nn.terms import Scores, ScoreTerm, own_class, term_classes


def anneal(network: nn.Module, factor: float) -> nn.Module:
    """Set the factor that multiplies the softmax temperature in every attention layer.

    The network is changed in place and returned.
    """
    for module in network.modules():
        if isinstance(module, Attention):
            module.annealing = factor
    return network


class Attention(nn.Module):
    """Multi-head attention in which query, key and value can share projections.

    The layer computes ``softmax(s q k^T + terms) v W_o``, where the variant says which projections
    make q, k and v. It is a drop-in layer: ``Attention(d_model=64, num_heads=4)(x)`` maps
    [batch, tokens, d_model] to the same shape.

    Source: Kayyam et al. 2026 (projection sharing, the bias ``+``); Karbevski and Mijoski 2025
    (identity query). Differs from their code in that ``+`` is computed in its reduced form and KV
    heads are never copied.
    """

    def __init__(
        self,
        config: AttentionConfig | None = None,
        *,
        d_model: int | None = None,
        num_heads: int | None = None,
        variant: Variant | str | None = None,
        causal: bool | None = None,
        head_dim: int | None = None,
        bias: bool | None = None,
        dropout: float | None = None,
        seed: int | None = None,
        draw: bool = True,
    ) -> None:
        """Create and initialise the parameters.

        Args:
            config: The layer's configuration. Give either a configuration or the sizes below.
            d_model: Width of input and output.
            num_heads: Query heads.
            variant: The sharing, heads and score terms, or their label; ``QKV`` by default.
            causal: Whether a token sees only itself and earlier tokens; False by default.
            head_dim: Channels of a head; by default ``d_model / num_heads``.
            bias: Whether all projections have biases, as they do by default.
            dropout: Dropout on attention probabilities; none by default.
            seed: Determines the initial values; by default, torch's generator draws the seed.
            draw: False skips this initialisation, for a network that initialises its layers.

        Raises:
            ValueError: if the sizes do not fit together or do not fit the variant, if a size is
                missing, or if both a configuration and sizes are given.
        """
        super().__init__()
        sizes = given_sizes(
            config,
            {
                "d_model": d_model,
                "num_heads": num_heads,
                "variant": None if variant is None else as_variant(variant),
                "causal": causal,
                "head_dim": head_dim,
                "bias": bias,
                "dropout": dropout,
            },
            kind=AttentionConfig,
            required=("d_model", "num_heads"),
        )
        if config is None:
            config = AttentionConfig(out_bias=sizes.get("bias", True), **sizes)
        self.config = config
        self.q_proj = self._projection("q")
        self.k_proj = self._projection("k")
        self.v_proj = self._projection("v")
        self.q_rope_proj = self._projection("q_rope")
        self.k_rope_proj = self._projection("k_rope")
        size, key = config.size_per_head, config.width(config.variant.sharing.key)
        self.o_proj = nn.Linear(config.num_heads * size, config.d_model, bias=config.out_bias)
        maps = (config.num_heads, size, size) if config.variant.query_form == "map" else None
        self.query_map = None if maps is None else nn.Parameter(torch.empty(maps))
        self.kv_norm = HeadNorm(key, eps=KV_NORM_EPS) if config.variant.kv_norm else None
        self.query_norm = make_head_norm(config, config.num_heads * size)
        self.key_norm = make_head_norm(config, key)
        self.latent = None if config.variant.latent is None else Latent(config)
        kinds = term_classes(config.variant)
        self._term_names = tuple(kinds)
        for name, kind in kinds.items():
            self.add_module(name, kind(config))
        self.core = (own_class(config.variant, Core) or CORES[config.variant.core])(config)
        self.score_scale = config.score_scale
        if config.value_rope == "rotated":
            warnings.warn(
                "value_rope 'rotated' gives outputs that change when all positions are shifted; "
                "use 'counter' or 'none' unless you want this effect",
                stacklevel=2,
            )
        self.annealing = 1.0
        """The factor that multiplies the temperature at the current step (:func:`anneal`)."""
        if draw:
            seed = int(torch.randint(2**63 - 1, (), device="cpu")) if seed is None else seed
            self.initialize(Initializer(seed, "attention"))

    def initialize(self, initializer: Initializer) -> None:
        """Draw every parameter as the configuration says. Query maps start as the identity."""
        config, init = self.config, self.config.init
        for name, projection in self.projections.items():
            if isinstance(projection, LowRank):
                projection.initialize(initializer, f"{name}_proj", init, config.projection_std)
            else:
                initializer.linear(f"{name}_proj", projection, init, config.projection_std)
        output_std = init.output_std if init.scheme == "normal" else None
        initializer.linear("o_proj", self.o_proj, init, output_std)
        if self.query_map is not None:
            with torch.no_grad():
                self.query_map.copy_(torch.eye(config.size_per_head).expand_as(self.query_map))
        norms = (self.kv_norm, self.query_norm, self.key_norm)
        for part in (*norms, self.latent, *self.terms):
            if part is not None:
                part.initialize(initializer, init)

    def extra_repr(self) -> str:
        """Return the variant and the sizes, for ``repr``."""
        config = self.config
        return (
            f"{format_label(config.variant)}, d_model={config.d_model}, "
            f"num_heads={config.num_heads}, causal={config.causal}"
        )

    def _projection(self, source: Source) -> nn.Linear | LowRank | None:
        config = self.config
        if source not in config.variant.projections:
            return None
        rank = config.rank(source)
        return make_projection(config.d_model, config.width(source), bias=config.bias, rank=rank)

    @property
    def projections(self) -> dict[Source, nn.Linear | LowRank]:
        """The learned projections in the order q, k, v, then any for decoupled positions.

        Each is an ``nn.Linear`` or a ``LowRank``, and may be replaced by any module with the same
        input and output channels.
        """
        named: dict[Source, nn.Linear | LowRank | None] = {
            "q": self.q_proj,
            "k": self.k_proj,
            "v": self.v_proj,
            "q_rope": self.q_rope_proj,
            "k_rope": self.k_rope_proj,
        }
        return {source: part for source, part in named.items() if part is not None}

    @property
    def terms(self) -> list[ScoreTerm]:
        """The score terms, in the order of application."""
        return [getattr(self, name) for name in self._term_names]

    def forward(
        self,
        x: Hidden,
        *,
        memory: Float[Tensor, "batch memory d_model"] | None = None,
        cache: LayerCache | None = None,
        layout: Layout | None = None,
        attention_mask: AttentionMask | None = None,
        positions: Int[Tensor, "rows keys"] | None = None,
        document_ids: Int[Tensor, "batch keys"] | None = None,
    ) -> Hidden:
        """Return the layer's output.

        Args:
            x: The layer's input, for the tokens after those in the cache.
            memory: The input from which keys and values are made in place of ``x`` (cross
                attention). It must be the same in all calls with one cache.
            cache: The layer's cache, to which the new tokens are appended. In cross attention, it
                stores the tokens of the memory.
            layout: Positions and masks of the call, if a network has computed them already.
            attention_mask: Can be given in place of a layout. It is True for real tokens, and
                covers all seen and new tokens, or all tokens of the memory. The inputs of padding
                tokens are replaced by zeros.
            positions: Can be given in place of a layout: the positions of all seen and new tokens.
            document_ids: Can be given in place of a layout: the document of each token.

        Raises:
            ValueError: if a bidirectional layer is given a cache for its tokens, a layer that
                depends on token order is given a memory, or a tensor does not cover all tokens.
        """
        self._check_call(x, cache)
        if memory is not None:
            self._check_memory(positions, document_ids)
            layout = layout or Layout(
                new_tokens=memory.shape[1],
                device=memory.device,
                attention_mask=attention_mask,
                query_positions=torch.arange(x.shape[1], device=x.device)[None],
            )
        elif cache is not None and not self.config.causal:
            raise ValueError("expected a causal layer with a cache, got a bidirectional layer")
        if layout is None:
            layout = Layout(
                new_tokens=x.shape[1],
                cached_tokens=0 if cache is None else cache.length,
                device=x.device,
                attention_mask=attention_mask,
                positions=positions,
                document_ids=document_ids,
            )
        decode_kernel = state = None
        if cache is not None and memory is None:
            decode_kernel, state = cache.kernel, cache.state
            if state is not None:
                self.check_state(layout)
            layout = layout.end(cache.num_stored + x.shape[1])
        heads = self.read(x, layout, memory=memory, cache=cache)
        mixed = self.core(
            self.score(heads, layout),
            heads.value,
            training=self.training,
            decode_kernel=decode_kernel,
            state=state,
        )
        return returned(self, "output", self.output(self.restore(mixed, heads), x), Tensor)

    def check_state(self, layout: Layout) -> None:
        """Raise an error if a layer that keeps a state cannot process a call.

        The check comes before the call changes the layer's cache.
        """
        if self.training and self.config.dropout:
            raise ValueError(
                "expected evaluation mode or no dropout for a layer that keeps a state, since it "
                "has no attention probabilities to drop, got training with dropout "
                f"{self.config.dropout}"
            )
        layout.check_documents_in_a_row()

    def _check_call(self, x: object, cache: object) -> None:
        """Check the input, and check that the cache is that of one layer, not of a network."""
        width = self.config.d_model
        if not (isinstance(x, Tensor) and x.is_floating_point() and x.shape[2:] == (width,)):
            given = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"expected x of floats [batch, tokens, {width}], got {given}")
        if cache is not None and not isinstance(cache, LayerCache):
            raise ValueError(
                "expected the layer's part of a cache, such as cache.layers[0] of a KVCache, got "
                f"{type(cache).__name__}"
            )

    def read(
        self,
        x: Hidden,
        layout: Layout,
        *,
        memory: Float[Tensor, "batch memory d_model"] | None = None,
        cache: LayerCache | None = None,
    ) -> Heads:
        """Return the query, key and value of a call, made from projections of its inputs."""
        config, sharing = self.config, self.config.variant.sharing
        maker = RoleMaker(config, self.projections, self.kv_norm or self.key_norm, self.latent)
        # A text may become as long as its cache.
        tokens = None if cache is None else cache.max_tokens
        rotation = layout.rotation(config, x.dtype, tokens=tokens)
        # Key and value are made from x, or in cross attention from a memory that is not stored yet.
        if memory is None:
            x = kv_input = layout.blank(x)
            sources = maker.project(x, (sharing.query, QUERY_ROPE, *config.variant.cached))
            kv_sources, kv_rotation = maker.normalise(sources), rotation
        else:
            kv_input = layout.blank(memory)
            sources = maker.project(x, (sharing.query, QUERY_ROPE))
            kv_sources, kv_rotation = dict[str, Tensor](), None
            if not _holds(cache, memory):
                kv_rotation = layout.rotation(config, memory.dtype, of_keys=True)
                kv_sources = maker.normalise(maker.project(kv_input, config.variant.cached))
        query, rope = make_query(x, sources[sharing.query], self.query_map, config), None
        if self.query_norm is not None:
            query = self.query_norm.normalise(query)
        if cache is None:
            roles = maker.rotate(kv_sources, kv_rotation)
        else:
            roles = store_and_read(maker, cache, layout, kv_input, kv_sources, kv_rotation)
        is_latent = cache is not None and memory is None and self._absorbs(cache, x.shape[1])
        is_made = is_latent or (cache is not None and cache.options.layout == "split")
        if self.latent is not None and not is_made:
            roles = maker.expand(roles)
        # The query comes last: gradients of a shared source are added up in this order.
        if rotation is not None:
            if roles.rope is None:
                query = rotation.rotate(query)
            else:
                rope = rotation.rotate(sources[QUERY_ROPE])
            if rotation.growth is not None:
                query = query * rotation.growth
                rope = None if rope is None else rope * rotation.growth
        if self.latent is not None and is_latent:
            query = self.latent.absorb(query)
        return Heads(query, roles.key, roles.value, rope, roles.rope, rotation, is_latent)

    def score(self, heads: Heads, layout: Layout) -> Scores:
        """Return the scores of a call, with all terms."""
        scores = Scores(
            query=heads.query,
            key=heads.key,
            scale=self.score_scale,
            layout=layout,
            query_rope=heads.query_rope,
            key_rope=heads.key_rope,
            temperature=self.annealing,
        )
        for term in self.terms:
            scores = returned(term, "forward", term(scores), Scores)
        return scores

    def restore(
        self, mixed: Float[Tensor, "batch heads queries mixed_dim"], heads: Heads
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Return the mixed values, expanded from a latent or rotated back if the layer needs it."""
        if self.latent is not None and heads.is_latent:
            return self.latent.restore(mixed)
        rotation = heads.rotation
        if rotation is None or rotation.value_rope != "counter":
            return mixed
        return rotation.turn_back(mixed)

    def output(self, mixed: Float[Tensor, "batch heads queries head_dim"], x: Hidden) -> Hidden:
        """Return the layer's output from its mixed values and its input."""
        del x
        return apply(self.o_proj, mixed.transpose(1, 2).flatten(2))

    def weights(
        self,
        x: Hidden,
        layout: Layout,
        *,
        memory: Float[Tensor, "batch memory d_model"] | None = None,
    ) -> Pairs:
        """Return the attention probabilities that the layer computes without a cache."""
        return self.core.weights(self.score(self.read(x, layout, memory=memory), layout))

    def _absorbs(self, cache: LayerCache, queries: int) -> bool:
        """Return whether to attend to the latent itself, without expanding key and value.

        This is cheaper for few queries and many keys, but rounds differently. It is possible only
        if scores are dot products of query and key.
        """
        return (
            self.latent is not None
            and is_plain(self.latent.key)
            and is_plain(self.latent.value)
            and self.config.variant.core_name == "softmax"
            and cache.kernel is not None
            and cache.options.layout != "split"
            and queries <= MOST_DECODED
            and not torch.is_grad_enabled()
        )

    def _check_memory(self, positions: Tensor | None, document_ids: Tensor | None) -> None:
        """Check that the layer supports cross attention, without positions or documents of keys."""
        variant = self.config.variant
        if positions is not None or document_ids is not None:
            raise ValueError("expected neither positions nor document_ids with a memory")
        ordered = variant.window is not None or variant.stride is not None
        if self.config.causal or ordered or variant.diagonal != "none":
            raise ValueError(
                "expected no memory input (cross attention) for a layer that is causal or has a "
                "window, a stride or a diagonal normalisation: the tokens of the memory input have "
                "no order relative to the tokens of x"
            )
        if not self.core.has_memory:
            raise ValueError(
                'expected the core "softmax" or "soft" for a memory input (cross attention), got '
                f'"{variant.core}", which does not attend to single tokens'
            )


def make_attention(config: AttentionConfig) -> Attention:
    """Return an attention layer whose weights are not initialised yet.

    The network that contains the layer initialises them. If the variant names a user's class, the
    layer is of that class.
    """
    return (own_class(config.variant, Attention) or Attention)(config, draw=False)


def _holds(cache: LayerCache | None, memory: Tensor) -> bool:
    cached = 0 if cache is None else cache.length
    if cached not in (0, memory.shape[1]):
        raise ValueError(
            f"expected the memory that the cache stores, which has {cached} tokens, got a memory "
            f"of {memory.shape[1]} tokens"
        )
    return cached > 0
