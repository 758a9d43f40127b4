"""The cores of attention, which mix values by scores. Each core of ``arch.terms`` has a class.

The softmax has two implementations with equal results: explicit matmuls and SDPA. For decoding, a
cache may request further kernels. The configuration and the shapes determine which one is used,
never timings. All of them accept fewer KV heads than query heads, and do not copy keys.
"""

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import LINEAR_CHUNK, AttentionConfig
from qkvary.arch.parts import returned
from qkvary.nn.cache_storage import StateStore
from qkvary.nn.decoding.decode import decode_attention
from qkvary.nn.layout import Layout
from qkvary.nn.linear_attention import (
    Mixture,
    Sums,
    attend_in_chunks,
    attend_to_all,
    step,
    weigh_pairs,
)
from qkvary.nn.shapes import Pairs
from qkvary.nn.terms import Scores, content_scores, own_class, term_classes

Chosen = Literal["explicit", "sdpa"]

LONGEST_EXPLICIT = 512
"""Maximum number of keys for which explicit matmuls are faster than SDPA that is not fused."""

MOST_DECODED = 8
"""Maximum number of new tokens for which kernels for decoding are used."""

LEAST_SUM = 1e-6
"""Smallest sum of weights to divide by, so that gradients stay bounded."""

FEATURES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda channels: 1.0 + F.elu(channels),
    "linear-relu": F.relu,
    "linear-softmax": functools.partial(torch.softmax, dim=-1),
    "linear-identity": lambda channels: channels,
}
"""The feature map of each linear core."""


class Core:
    """Mixes values by scores, if possible without computing all weights; one subclass per core."""

    has_memory: ClassVar[bool] = False
    """Whether the core supports keys and values made from an encoder's output."""

    def __init__(self, config: AttentionConfig) -> None:
        self.config = config
        self.is_plain = False
        """Whether kernels for decoding can compute the core and all terms of the layer."""

    def __call__(
        self,
        scores: Scores,
        value: Float[Tensor, "batch kv_heads keys head_dim"],
        *,
        training: bool,
        decode_kernel: str | None = None,
        state: StateStore | None = None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Return the mixed values.

        ``decode_kernel`` is the kernel for a few new tokens. If it is None or does not support the
        call, the values are computed as without a cache. ``state`` has the sums over the earlier
        tokens, if the core keeps a state.
        """
        config, layout = self.config, scores.layout
        if state is not None and layout.num_queries:
            return self._mix_with_state(scores, value, state)
        if decode_kernel is not None and self._is_decoded(layout, training=training):
            content, bias = scores.take_rope()
            query, key, scale = content.fold()
            valid = layout.attention_mask
            return decode_attention(
                query, key, value, scale=scale, valid=valid, kernel=decode_kernel, bias=bias
            )
        dropout = config.dropout if training else 0.0
        if self._needs_map(scores, dropout):
            weights = returned(self, "weights", self.weights(scores), Tensor)
            weights = F.dropout(weights, dropout) if dropout else weights
            return content_scores(weights, value.mT)
        return self._mix(scores, value, dropout)

    def weights(self, scores: Scores, /) -> Pairs:
        """Return the attention weight of each pair; 0 if the query must not see the key."""
        raise NotImplementedError

    def _is_decoded(self, layout: Layout, *, training: bool) -> bool:
        """Return whether decoding kernels support a call: each query must see all earlier keys."""
        variant = self.config.variant
        # A layer with a window stores the tokens that the first new query sees.
        return (
            self.is_plain
            and not training
            and variant.stride is None
            and (variant.window is None or layout.num_keys <= variant.window)
            and layout.num_queries <= MOST_DECODED
            and layout.document_ids is None
            and not torch.is_grad_enabled()
        )

    def _needs_map(self, scores: Scores, dropout: float, /) -> bool:
        """Return whether the full matrix of weights is needed, or is faster to compute."""
        del scores, dropout
        return True

    def _mix(self, scores: Scores, value: Tensor, dropout: float, /) -> Tensor:
        """Mix the values without computing the full matrix of attention weights."""
        raise NotImplementedError

    def _mix_with_state(self, scores: Scores, value: Tensor, state: StateStore, /) -> Tensor:
        """Mix the values of new tokens and of earlier tokens, and update the state."""
        raise NotImplementedError


class SoftmaxCore(Core):
    """``softmax(scores) v``."""

    has_memory = True

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        terms = term_classes(config.variant).values()
        self.is_plain = type(self) is SoftmaxCore and all(term.is_plain for term in terms)
        self._needs_products = any(term.needs_products for term in terms)
        self._has_learned_bias = any(term.is_learned_bias for term in terms)

    def weights(self, scores: Scores, /) -> Pairs:
        """Return the attention probabilities."""
        return torch.softmax(self.multiply(scores), dim=-1)

    def multiply(self, scores: Scores) -> Pairs:
        """Return the scores as a tensor. The scores of hidden pairs are very low."""
        found, bias = scores.multiply(), self._bias(scores)
        # In place: no gradient needs the original products, and the map is the largest tensor.
        return found if bias is None else found.add_(bias)

    def _needs_map(self, scores: Scores, dropout: float, /) -> bool:
        if type(self).weights is not SoftmaxCore.weights:
            return True
        return self.choose_kernel(scores.layout.num_keys, dropout) == "explicit"

    def choose_kernel(self, num_keys: int, dropout: float) -> Chosen:
        """Return the implementation of the softmax for a call.

        On a CPU, SDPA is fused only without dropout and without a learned bias. Fused SDPA takes
        0.5 to 0.95 times as long as explicit matmuls. Other SDPA takes 1.1 to 1.4 times as long,
        until the matrix of scores exceeds the processor's caches.
        """
        if self._needs_products:
            return "explicit"
        if self.config.kernel != "auto":
            return self.config.kernel
        is_unfused = self._has_learned_bias or dropout > 0.0
        return "explicit" if is_unfused and num_keys <= LONGEST_EXPLICIT else "sdpa"

    def _mix(self, scores: Scores, value: Tensor, dropout: float, /) -> Tensor:
        config = self.config
        query, key, scale = scores.fold()
        plain = scores.layout.is_plain_causal(config) and scores.pair_bias is None
        bias = None if plain else self._bias(scores)
        wider = key.shape[-1] - value.shape[-1]
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            # Fused kernels need equal widths.
            F.pad(value, (0, wider)) if wider else value,
            attn_mask=bias,
            dropout_p=dropout,
            is_causal=plain,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return mixed[..., : value.shape[-1]] if wider else mixed

    def _bias(self, scores: Scores) -> Tensor | None:
        """Return the bias of the pairs of a query and a key, plus the penalty that masks pairs."""
        config, device = self.config, scores.query.device.type
        # Under autocast the products have autocast's dtype, not the query's.
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else scores.query.dtype
        bias = scores.cooled_pair_bias()
        penalty = scores.layout.penalty(config, dtype)
        return bias if penalty is None else penalty if bias is None else bias + penalty


class GaussianCore(SoftmaxCore):
    """``exp(-s |q - k|^2 / 2 + terms) v`` with the score scale s: SOFT without its approximation.

    With s = 1/sqrt(head_dim) the exponent is the paper's |q - k|^2 / (2 sqrt d). Weights are not
    divided by their sum. SOFT ties query and key (``Q=K-V@soft``), so that its kernel is symmetric;
    here they may differ.

    Source: Lu et al. 2021, "SOFT: Softmax-free Transformer with Linear Complexity", section 3.
    """

    def weights(self, scores: Scores, /) -> Pairs:
        """Return the value of the kernel function for each pair of a query and a key."""
        half = 0.5 * scores.scale / scores.temperature
        query = scores.query.square().sum(dim=-1, keepdim=True)
        key = scores.key.square().sum(dim=-1)
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)[..., None, :]
        # If query and key are equal, the computed distance is a rounding error.
        return torch.exp(self.multiply(scores) - half * (query + key))


class SimaCore(Core):
    """``q' k'^T v``, each channel of q' and k' divided by its l1 norm over the tokens.

    There is no softmax. There is no score scale either, because the norms would undo it. The
    matmuls run in the order that needs less compute. Tokens of other documents and padding are left
    out of the norms.

    Source: Koohpayegani and Pirsiavash 2024, "SimA: Simple Softmax-free Attention for Vision
    Transformers", section 3.
    """

    def weights(self, scores: Scores, /) -> Pairs:
        """Return the products of normalised queries and keys. A product may be negative."""
        documents, weights = scores.layout.document_ids, content_scores(*self._normalise(scores))
        if documents is None:
            return weights
        return weights * (documents[:, None, :, None] == documents[:, None, None, :])

    def _needs_map(self, scores: Scores, dropout: float, /) -> bool:
        layout, heads, size = scores.layout, scores.query.shape[1], scores.query.shape[-1]
        by_channel = size * (scores.key.shape[1] * layout.num_keys + heads * layout.num_queries)
        fewer = 2 * heads * layout.num_queries * layout.num_keys <= by_channel
        return dropout > 0.0 or fewer or layout.document_ids is not None

    def _mix(self, scores: Scores, value: Tensor, _: float, /) -> Tensor:
        query, key = self._normalise(scores)
        return content_scores(query, (key.mT @ value).mT)

    def _normalise(self, scores: Scores) -> list[Tensor]:
        return [_divide_by_norm(one, scores.layout) for one in (scores.query, scores.key)]


class LinearCore(Core):
    """``phi(q) phi(k)^T v``, divided by the sums of the weights if the core is normalised.

    Tokens are summed up in chunks. Decoding uses a recurrence whose state does not grow. Dropout
    and ``kernel="explicit"`` need the map of all pairs. Sums are in float32 or wider. The output of
    a query that sees no key, such as padding, is zero.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive Transformers
    with Linear Attention"; with one projection for all roles Kayyam et al. 2026, appendix A.1.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.features = FEATURES[config.variant.core]

    def weights(self, scores: Scores, /) -> Pairs:
        """Return the weight of each pair; 0 if the query must not see the key."""
        query, key = self._map(scores)
        penalty = scores.layout.penalty(self.config, query.dtype)
        seen = None if penalty is None else penalty == 0
        weights, total = weigh_pairs(query, key, self._sums(scores), seen)
        if total is not None:
            weights = weights / total.clamp(min=LEAST_SUM)[..., None]
        return weights.to(scores.query.dtype)

    def _needs_map(self, scores: Scores, dropout: float, /) -> bool:
        config, layout = self.config, scores.layout
        if dropout > 0.0 or config.kernel == "explicit" or layout.num_queries == 0:
            return True
        if config.causal:
            return False
        size, heads, queries = config.size_per_head, config.num_heads, layout.num_queries
        by_sums = size * (config.num_kv_heads * layout.num_keys + heads * queries)
        by_sums += heads * queries * config.variant.is_normalised
        fewer = 2 * heads * queries * layout.num_keys <= by_sums
        return fewer or layout.document_ids is not None

    def _mix(self, scores: Scores, value: Tensor, _: float, /) -> Tensor:
        return self._mix_with_state(scores, value, None)

    def _mix_with_state(self, scores: Scores, value: Tensor, state: StateStore | None, /) -> Tensor:
        device = value.device.type
        # Entering a context takes time, which matters in decoding.
        is_on = torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if is_on else nullcontext():
            found = self._sum(scores, value.to(_wide(value)), state)
            mixed = found.values
            if found.weights is not None:
                mixed = mixed / found.weights.clamp(min=LEAST_SUM)[..., None]
            return mixed.to(value.dtype)

    def _sum(self, scores: Scores, value: Tensor, store: StateStore | None) -> Mixture:
        """Return the sums of weighted values and of weights, and update the state."""
        (query, key), layout = self._map(scores), scores.layout
        documents, sums = layout.document_ids, self._sums(scores)
        if not self.config.causal:
            return attend_to_all(query, key, value, sums)
        before = None if store is None else store.sums
        if store is not None and layout.num_queries == 1 and documents is None:
            mixture, after = step(query, key, value, sums, before)
        else:
            if store is None:
                layout.check_documents_in_a_row()
            mixture, after = attend_in_chunks(
                query,
                key,
                value,
                sums,
                chunk=LINEAR_CHUNK,
                before=before,
                documents=documents,
                document_before=layout.document_before,
                keep=store is not None,
            )
        if store is not None and after is not None:
            store.sums = after
        return mixture

    def _sums(self, scores: Scores) -> Sums:
        variant = self.config.variant
        return Sums(
            log_decay=scores.log_decay,
            has_weights=variant.is_normalised,
            decays_weights=variant.normaliser != "undecayed-sum",
        )

    def _map(self, scores: Scores) -> tuple[Tensor, Tensor]:
        query, key = (self.features(one.to(_wide(one))) for one in (scores.query, scores.key))
        if not self.config.variant.is_normalised:
            query = query * scores.scale
        mask = scores.layout.attention_mask
        return query, key if mask is None else key.masked_fill(~mask[:, None, :, None], 0.0)


CORES: Mapping[str, type[Core]] = {
    "softmax": SoftmaxCore,
    "sima": SimaCore,
    "soft": GaussianCore,
    **dict.fromkeys(FEATURES, LinearCore),
}
"""The class of each attention core, by the core's name."""


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _divide_by_norm(
    heads: Float[Tensor, "batch heads tokens head_dim"], layout: Layout
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Divide each channel by its l1 norm over the real tokens of the same document."""
    if layout.attention_mask is not None:
        heads = heads * layout.attention_mask[:, None, :, None]
    sizes, documents = heads.abs(), layout.document_ids
    if documents is None:
        norms = sizes.sum(dim=-2, keepdim=True)
    else:
        same = documents[:, None, :, None] == documents[:, None, None, :]
        norms = same.to(sizes.dtype) @ sizes
    return heads / norms.clamp(min=torch.finfo(heads.dtype).tiny)


def name_kernel(config: AttentionConfig, num_keys: int, *, training: bool) -> str:
    """Return the name of the core. For the softmax, return the implementation that a call uses."""
    variant = config.variant
    if variant.core != "softmax" or own_class(variant, Core):
        return variant.core_name
    return SoftmaxCore(config).choose_kernel(num_keys, config.dropout if training else 0.0)
