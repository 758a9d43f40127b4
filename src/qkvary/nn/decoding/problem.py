"""One call of attention while decoding, and what every kernel written in torch uses of it.

Knows what is asked. Does not know which kernel answers, nor where the keys were stored.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from qkvary.nn.decoding.rotation import KeyRotation, rotate_keys, shift_queries

Stored = Shaped[Tensor, "_ _ _ _"]
"""[batch, kv_heads, keys, channels]; what fits is checked, since key and value may differ."""

Scales = Float[Tensor, "_ _ _ _"]
"""[batch, kv_heads, keys, groups of channels]."""


Bias = Float[Tensor, "_ _ _ _"]
"""[batch, heads, queries, keys]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoding:
    """The queries, keys and values of one call."""

    query: Float[Tensor, "batch heads queries key_dim"]
    """The new queries, rotated already where there is a rotation."""
    key: Stored
    """All stored keys, of fewer heads than the query perhaps; codes where there are scales."""
    value: Stored
    """All stored values; the key itself where one tensor serves both roles."""
    scale: float
    """Factor of the products."""
    start: int
    """Query i sees the first ``start + i + 1`` keys."""
    valid: Bool[Tensor, "batch keys"] | None = None
    """False for hidden keys."""
    key_scales: Scales | None = None
    """Factors of the codes, for each token and each of equally wide groups of channels."""
    value_scales: Scales | None = None
    """The same for the value."""
    rotation: KeyRotation | None = None
    """The rotation of keys that were stored un-rotated; values are not rotated."""
    bias: Bias | None = None
    """Added to the scaled products: what else the scores are made of."""

    def __post_init__(self) -> None:
        key, value = self.key, self.value
        _, heads, _, dim = self.query.shape
        _, groups, _, width = key.shape
        self._check_stored("key", key, self.key_scales)
        if value is not key or self.value_scales is not self.key_scales:
            self._check_stored("value", value, self.value_scales)
        if width != dim:
            raise ValueError(f"expected keys of {dim} channels, got {width}")
        if groups == 0 or heads % groups:
            raise ValueError(f"expected KV heads that divide {heads} heads, got {groups}")
        if self.start < 0:
            raise ValueError(f"expected a start of at least 0, got {self.start}")
        if self.rotation is not None and self.rotation.dim > dim:
            raise ValueError(f"expected at most {dim} rotated channels, got {self.rotation.dim}")
        expected = (*self.query.shape[:3], key.shape[2])
        if self.bias is not None and self.bias.shape != expected:
            raise ValueError(f"expected a bias of {list(expected)}, got {list(self.bias.shape)}")
        parts = (self.query, key, value)
        if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
            raise ValueError("expected tensors without gradients, got one that requires them")

    def _check_stored(self, name: str, stored: Tensor, scales: Tensor | None) -> None:
        batch = self.query.shape[0]
        groups, keys = self.key.shape[1:3]
        if stored.shape[:3] != (batch, groups, keys):
            raise ValueError(
                f"expected a {name} of [{batch}, {groups}, {keys}, channels], "
                f"got {list(stored.shape)}"
            )
        if scales is None and stored.dtype == self.query.dtype and self.query.is_floating_point():
            return
        is_coded = not stored.dtype.is_floating_point
        if is_coded != (scales is not None) or (is_coded and stored.dtype != torch.int8):
            raise ValueError(
                f"expected a {name} of floats, or of int8 with scales, got {stored.dtype} "
                f"{'without' if scales is None else 'with'} scales"
            )
        if not is_coded and stored.dtype != self.query.dtype:
            raise ValueError(f"expected a {name} of {self.query.dtype}, got {stored.dtype}")
        if scales is not None and (
            scales.shape[:3] != stored.shape[:3] or stored.shape[3] % scales.shape[3]
        ):
            raise ValueError(
                f"expected scales of {list(stored.shape[:3])} and a number of groups that divides "
                f"{stored.shape[3]} channels, got {list(scales.shape)}"
            )

    @property
    def is_shared(self) -> bool:
        """Whether the value is the stored key: the same numbers at the same place."""
        key, value = self.key, self.value
        return value is key or (
            value.data_ptr() == key.data_ptr()
            and (value.shape, value.stride(), value.dtype) == (key.shape, key.stride(), key.dtype)
            and value.device == key.device
        )

    @property
    def rows(self) -> int:
        """Queries that read one key head."""
        return self.query.shape[1] // self.key.shape[1] * self.query.shape[2]

    def folded_query(self) -> Float[Tensor, "batch kv_heads rows key_dim"]:
        """Return the queries of all heads of a group as if they were one head's."""
        batch, _, _, dim = self.query.shape
        return self.query.reshape(batch, self.key.shape[1], self.rows, dim)

    def unfold(
        self, mixed: Float[Tensor, "batch kv_heads rows value_dim"]
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Give every head its own again."""
        batch, heads, queries, _ = self.query.shape
        return mixed.reshape(batch, heads, queries, mixed.shape[-1])

    def folded_visible(self) -> Bool[Tensor, "batch_or_1 1 rows keys"] | None:
        """Return which keys each folded query sees; ``None`` if all queries see all keys."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        seen: Tensor | None = None
        if self.start < keys - 1:
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

    def plain(self) -> "Decoding":
        """Return the same call over keys and values without codes and without rotation."""
        if self.key_scales is None and self.value_scales is None and self.rotation is None:
            return self
        dtype = self.query.dtype
        key = read_codes(self.key, self.key_scales, dtype)
        value = key if self.is_shared else read_codes(self.value, self.value_scales, dtype)
        query = self.query
        if self.rotation is not None:
            key, query = rotate_keys(key, self.rotation), shift_queries(query, self.rotation)
        return Decoding(
            query=query,
            key=key,
            value=value,
            scale=self.scale,
            start=self.start,
            valid=self.valid,
            bias=self.bias,
        )


def read_codes(stored: Stored, scales: Scales | None, dtype: torch.dtype) -> Stored:
    """Decode codes to numbers."""
    if scales is None:
        return stored
    groups = stored.unflatten(-1, (scales.shape[-1], -1)).to(torch.float32)
    return (groups * scales.to(torch.float32)[..., None]).flatten(-2).to(dtype)
