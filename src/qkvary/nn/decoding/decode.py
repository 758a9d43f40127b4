"""The one function that an attention layer calls for new queries over stored keys."""

from jaxtyping import Bool, Float
from torch import Tensor

from qkvary.nn.decoding.choice import KERNELS, choose
from qkvary.nn.decoding.problem import Bias, Decoding, Stored


def decode_attention(
    query: Float[Tensor, "batch heads queries key_dim"],
    key: Stored,
    value: Stored,
    *,
    scale: float,
    valid: Bool[Tensor, "batch keys"] | None = None,
    kernel: str = "auto",
    bias: Bias | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Return ``softmax(scale q k^T + bias) v`` for a few queries, without gradients.

    The queries belong to the tokens of the last keys, and no query sees a key after that of its
    token. A query that sees no key gets zeros.

    Args:
        query: The new queries.
        key: All stored keys, including the new ones.
        value: All stored values. If they are the keys, at the same address in memory, that memory
            is read only once.
        scale: Factor of ``q k^T``.
        valid: False for hidden keys, such as padding.
        kernel: ``auto``, or one of the names in ``choice.KERNELS`` to use that kernel.
        bias: Added to the scaled scores, [batch, heads, queries, keys].

    Raises:
        ValueError: if shapes, types or the kernel's name do not fit.
    """
    if 0 in (key.shape[2], query.shape[2], query.shape[0]):
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    problem = Decoding(query=query, key=key, value=value, scale=scale, valid=valid, bias=bias)
    return KERNELS[choose(problem, kernel)](problem)
