"""The one function that an attention layer calls for new queries over stored keys."""

from jaxtyping import Bool, Float
from torch import Tensor

from qkvary.nn.decoding.choice import KERNELS, choose
from qkvary.nn.decoding.problem import Bias, Decoding, Scales, Stored
from qkvary.nn.decoding.rotation import KeyRotation


def decode_attention(  # noqa: PLR0913  the parts of one call, by name
    query: Float[Tensor, "batch heads queries key_dim"],
    key: Stored,
    value: Stored,
    *,
    scale: float,
    valid: Bool[Tensor, "batch keys"] | None = None,
    start: int | None = None,
    kernel: str = "auto",
    key_scales: Scales | None = None,
    value_scales: Scales | None = None,
    rotation: KeyRotation | None = None,
    bias: Bias | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """``softmax(scale q k^T + bias) v`` for few queries, without gradients.

    Queries that see no key at all get zeros.

    Args:
        query: The new queries; rotated where there is a rotation.
        key: All keys stored, the new ones included: floats, or int8 codes with scales.
        value: All values stored; the key itself, or a view of the same place, is read once.
        scale: Factor of the products.
        valid: False for hidden keys, such as padding.
        start: Query i sees the first ``start + i + 1`` keys; by default the queries are the last.
        kernel: ``auto``, or a name of ``choice.KERNELS`` to pin it.
        key_scales: Factors of the codes of the key, [batch, kv_heads, keys, groups of channels].
        value_scales: The same for the value.
        rotation: For keys that were stored un-rotated; values are mixed as they are stored.
        bias: What is added to the scaled products, [batch, heads, queries, keys].

    Raises:
        ValueError: if shapes, types or the kernel's name do not fit.
    """
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    if 0 in (keys, queries, batch):
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    problem = Decoding(
        query=query,
        key=key,
        value=value,
        scale=scale,
        start=keys - queries if start is None else start,
        valid=valid,
        key_scales=key_scales,
        value_scales=value_scales,
        rotation=rotation,
        bias=bias,
    )
    return KERNELS[choose(problem, kernel)](problem)
