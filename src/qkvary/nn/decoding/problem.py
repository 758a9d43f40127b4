"""One attention call of decoding, and the functions shared by kernels written in torch.

Nothing here depends on which kernel runs, or on where the keys are stored.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

Stored = Shaped[Tensor, "_ _ _ _"]
"""Keys or values, [batch, kv_heads, keys, channels]; their numbers of channels may differ."""

Bias = Float[Tensor, "_ _ _ _"]
"""A bias of the scores, [batch, heads, queries, keys]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoding:
    """The queries, keys and values of one attention call.

    The queries are those of the newest tokens. The keys of these tokens come last.
    """

    query: Float[Tensor, "batch heads queries key_dim"]
    """The new queries."""
    key: Stored
    """All stored keys; they may have fewer heads than the query."""
    value: Stored
    """All stored values; the same tensor as ``key`` if it serves both roles."""
    scale: float
    """The factor that multiplies the dot products of query and key."""
    valid: Bool[Tensor, "batch keys"] | None = None
    """A mask of the keys: False for hidden keys."""
    bias: Bias | None = None
    """A bias that is added to the scaled scores, such as the scores of decoupled positions."""

    def __post_init__(self) -> None:
        query, key, value = self.query, self.key, self.value
        (batch, heads, queries, dim), (_, groups, keys, width) = query.shape, key.shape
        fits = (
            query.is_floating_point()
            and query.dtype == key.dtype == value.dtype
            and key.shape[:3] == value.shape[:3] == (batch, groups, keys)
            and width == dim
            and groups > 0
            and heads % groups == 0
            and queries <= keys
            and (self.bias is None or self.bias.shape == (batch, heads, queries, keys))
        )
        if not fits:
            parts = (query, key, value, self.bias)
            given = [f"{one.dtype} {list(one.shape)}" for one in parts if one is not None]
            raise ValueError(
                "expected tensors of one float dtype: query [batch, heads, queries, dim], key "
                "[batch, kv_heads, keys, dim], value [batch, kv_heads, keys, value_dim] and "
                "optionally bias [batch, heads, queries, keys], where kv_heads divides heads and "
                f"queries is at most keys; got {', '.join(given)}"
            )
        parts = (query, key, value)
        if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
            raise ValueError(
                "expected tensors without gradients, got a tensor that requires gradients"
            )

    @property
    def start(self) -> int:
        """Number of keys before the first query. Query i sees the first ``start + i + 1`` keys."""
        return self.key.shape[2] - self.query.shape[2]

    @property
    def is_shared(self) -> bool:
        """Whether key and value are the same numbers in the same memory."""
        key, value = self.key, self.value
        return value is key or (
            value.data_ptr() == key.data_ptr()
            and (value.shape, value.stride(), value.dtype) == (key.shape, key.stride(), key.dtype)
            and value.device == key.device
        )

    @property
    def rows(self) -> int:
        """Number of queries that attend to one KV head."""
        return self.query.shape[1] // self.key.shape[1] * self.query.shape[2]

    def folded_query(self) -> Float[Tensor, "batch kv_heads rows key_dim"]:
        """Return the queries of all heads of a group as the rows of one head."""
        batch, _, _, dim = self.query.shape
        return self.query.reshape(batch, self.key.shape[1], self.rows, dim)

    def unfold(
        self, mixed: Float[Tensor, "batch kv_heads rows value_dim"]
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Undo the folding: turn the rows of a KV head back into queries of several heads."""
        batch, heads, queries, _ = self.query.shape
        return mixed.reshape(batch, heads, queries, mixed.shape[-1])

    def folded_visible(self) -> Bool[Tensor, "batch_or_1 1 rows keys"] | None:
        """Return a mask of the keys that each folded query sees; ``None`` if all are visible."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        seen: Tensor | None = None
        if queries > 1:
            index = torch.arange(keys, device=self.key.device)
            last = torch.arange(queries, device=self.key.device)[:, None] + self.start
            seen = (index <= last)[None, None]
        if self.valid is not None:
            real = self.valid[:, None, None, :]
            seen = real.expand(-1, 1, queries, -1) if seen is None else seen & real
        if seen is None:
            return None
        group = self.query.shape[1] // self.key.shape[1]
        return seen.expand(-1, group, -1, -1).flatten(1, 2)[:, None]

    def folded_bias(self) -> Float[Tensor, "batch kv_heads rows keys"] | None:
        """Return the bias for folded queries."""
        if self.bias is None:
            return None
        batch, _, _, keys = self.bias.shape
        return self.bias.reshape(batch, self.key.shape[1], self.rows, keys)
