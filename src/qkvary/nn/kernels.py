"""The core of attention: what makes mixed values of scores. So far all cores are the softmax.

It has two implementations that agree, explicit products and SDPA, and kernels of its own for
decoding. All take fewer KV heads than query heads without copying keys. Which one is used follows
from the configuration and the shapes (``choose_kernel``), so that a run does not depend on a
measurement; a cache may request a kernel for decoding.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.nn.decoding.decode import decode_attention
from qkvary.nn.scores import Scores
from qkvary.nn.terms import term_classes

Chosen = Literal["explicit", "sdpa"]


LONGEST_EXPLICIT = 512
"""Keys up to which a whole map of scores costs less than what the fused kernel lacks."""

MOST_DECODED = 8
"""New tokens up to which kernels for decoding are used, where a cache requests them."""


class SoftmaxCore:
    """``softmax(scores) v``.

    Another core (linear attention, scores without a softmax) is another class with this call.
    """

    def __init__(self, config: AttentionConfig) -> None:
        """Take note of the layer."""
        self.config = config
        self.is_plain = all(term.is_plain for term in term_classes(config.variant))

    def __call__(
        self,
        scores: Scores,
        value: Float[Tensor, "batch kv_heads keys head_dim"],
        *,
        training: bool,
        decode_kernel: str = "layer",
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Mix the values.

        Args:
            scores: With all terms.
            value: The values.
            training: Whether attention weights are dropped out.
            decode_kernel: What attends to few new tokens; ``layer`` is the same as without a cache.
        """
        config, layout = self.config, scores.layout
        if decode_kernel != "layer" and not training and self._can_decode(scores):
            query, key, scale = scores.fold()
            valid = layout.attention_mask
            return decode_attention(
                query, key, value, scale=scale, valid=valid, kernel=decode_kernel
            )
        dropout = config.dropout if training else 0.0
        if choose_kernel(config, layout.num_keys, training=training) == "explicit":
            weights = self.weights(scores)
            return mix_values(F.dropout(weights, dropout) if dropout else weights, value)
        query, key, scale = scores.fold()
        plain = layout.is_plain_causal(causal=config.causal, window=config.variant.window)
        plain = plain and scores.pair_bias is None
        bias = None if plain else self._bias(scores)
        wider = key.shape[-1] - value.shape[-1]
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            # Fused kernels want one width.
            F.pad(value, (0, wider)) if wider else value,
            attn_mask=bias,
            dropout_p=dropout,
            is_causal=plain,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return mixed[..., : value.shape[-1]] if wider else mixed

    def weights(self, scores: Scores) -> Float[Tensor, "batch heads queries keys"]:
        """Return the attention probabilities."""
        return torch.softmax(self.multiply(scores), dim=-1)

    def multiply(self, scores: Scores) -> Float[Tensor, "batch heads queries keys"]:
        """Return the scores as a tensor, next to nothing for pairs that must not see each other."""
        found, bias = scores.multiply(), self._bias(scores)
        # In place: no gradient needs the products as they were, and the map is the largest tensor.
        return found if bias is None else found.add_(bias)

    def _bias(self, scores: Scores) -> Tensor | None:
        """Return the bias of the pairs and the penalty of those that must not see each other."""
        config, device = self.config, scores.query.device.type
        # Under autocast the products have its type, whatever the type of the query.
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else scores.query.dtype
        bias = scores.cooled_pair_bias()
        penalty = scores.layout.penalty(
            causal=config.causal, window=config.variant.window, dtype=dtype
        )
        return bias if penalty is None else penalty if bias is None else bias + penalty

    def _can_decode(self, scores: Scores) -> bool:
        """Return whether kernels for decoding support a call: few queries and plain scores."""
        window, layout = self.config.variant.window, scores.layout
        # What a layer stores ends where its window does, for the first of the queries.
        near = window is None or layout.num_keys <= window
        few = layout.num_queries <= MOST_DECODED
        alone = layout.document_ids is None and not torch.is_grad_enabled()
        return self.is_plain and near and few and alone


def choose_kernel(config: AttentionConfig, num_keys: int, *, training: bool) -> Chosen:
    """Pick the implementation for a call.

    On a CPU, SDPA is fused only without dropout and without a bias that is learned. There it needs
    0.5 to 0.95 times the time of explicit products, forward and backward, from 8 keys to 512, from
    8 channels a head to 64, masked or causal or with fewer KV heads. Elsewhere it needs 1.1 to 1.4
    times that time, until the map outgrows the processor's caches.

    Args:
        config: The layer; its ``kernel`` pins the choice.
        num_keys: Keys of the call.
        training: Whether the call drops attention weights out, where the layer does so at all.
    """
    terms = term_classes(config.variant)
    if any(term.needs_products for term in terms):
        return "explicit"
    if config.kernel != "auto":
        return config.kernel
    has_bias = any(term.is_learned_bias for term in terms)
    unfused = has_bias or (training and config.dropout > 0.0)
    return "explicit" if unfused and num_keys <= LONGEST_EXPLICIT else "sdpa"


def mix_values(
    weights: Float[Tensor, "batch heads queries keys"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
) -> Float[Tensor, "batch heads queries head_dim"]:
    """Return the weighted sums of the values of each query head's group."""
    batch, heads, queries, keys = weights.shape
    kv_heads = value.shape[1]
    if heads == kv_heads:
        return weights @ value
    folded = weights.reshape(batch, kv_heads, heads // kv_heads * queries, keys)
    return (folded @ value).view(batch, heads, queries, value.shape[-1])
