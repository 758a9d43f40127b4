"""Attention of new queries over stored keys, and the choice of the kernel that computes it.

``auto`` chooses by the device, types and shapes of a call, never by a timing. So the same call on
the same machine gives the same result.
"""

import os
import warnings
from collections.abc import Callable, Mapping

from jaxtyping import Bool, Float
from torch import Tensor

from qkvary.nn.decoding import folded, native, triton_attention
from qkvary.nn.decoding.problem import Bias, Decoding, Stored

VARIABLE = "QKVARY_DECODE_KERNEL"
"""The environment variable that names the kernel for ``auto``."""

KERNELS: Mapping[str, Callable[[Decoding], Tensor]] = {
    **folded.FORMS,
    "native": native.attend_native,
    "triton": triton_attention.attend_triton,
}
"""The kernels by name."""

SUPPORTS: Mapping[str, Callable[[Decoding], bool]] = {
    "native": native.supports,
    "triton": triton_attention.supports,
}
"""The function that tells whether a kernel supports a call. Other kernels support every call."""

LAYER = "layer"
"""The kernel name for the layer's own computation. This name is not in ``KERNELS``."""

_started: dict[object, bool] = {}
"""Whether the Triton kernel completes a call, by the kind of call."""


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

    The queries belong to the tokens of the last keys. No query sees the keys of later tokens. The
    output of a query that sees no key is zero.

    Args:
        query: The new queries.
        key: All stored keys, including the new ones.
        value: All stored values; memory that they share with the keys is read only once.
        scale: The factor that multiplies ``q k^T``.
        valid: False for hidden keys, such as padding.
        kernel: The name of a kernel in ``KERNELS``, or ``auto`` to let a rule choose.
        bias: Added to the scaled scores, [batch, heads, queries, keys].

    Raises:
        ValueError: if shapes, types or the kernel's name do not fit.
    """
    if 0 in (key.shape[2], query.shape[2], query.shape[0]):
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    problem = Decoding(query=query, key=key, value=value, scale=scale, valid=valid, bias=bias)
    return KERNELS[choose(problem, kernel)](problem)


def choose(problem: Decoding, kernel: str = "auto") -> str:
    """Return the name of the kernel for a call.

    ``auto`` means the kernel that the environment names, or else the choice of a rule. ``layer``
    means the rule too. If the named kernel does not support the call, ``folded`` is used.
    """
    name = pinned(kernel)
    if name in ("auto", LAYER):
        return _prefer(problem)
    supports = SUPPORTS.get(name)
    return name if supports is None or supports(problem) else "folded"


def pinned(kernel: str) -> str:
    """Return the name of the kernel. The environment can replace ``auto`` by another name."""
    name = kernel if kernel != "auto" else os.environ.get(VARIABLE) or "auto"
    if name not in KERNELS and name not in ("auto", LAYER):
        choices = ", ".join(("auto", LAYER, *KERNELS))
        place = f" in {VARIABLE}" if kernel == "auto" else ""
        raise ValueError(f"expected a kernel for decoding{place}, got {name!r}; choices: {choices}")
    return name


def _prefer(problem: Decoding) -> str:
    """Return the kernel that ``auto`` uses: the kernel made for the device, or ``folded``."""
    if native.supports(problem):
        return "native"
    # Interpreting GPU code on the CPU is for tests.
    if triton_attention.is_interpreted() or not triton_attention.supports(problem):
        return "folded"
    kind = triton_attention.kind_of(problem)
    if kind not in _started:
        _started[kind] = _starts(problem)
    return "triton" if _started[kind] else "folded"


def _starts(problem: Decoding) -> bool:
    """Return whether the Triton kernel completes a call; a failure is reported once."""
    try:
        triton_attention.attend_triton(problem)
    except RuntimeError as error:
        warnings.warn(f"decoding runs without its kernel 'triton': {error}", stacklevel=2)
        return False
    return True
