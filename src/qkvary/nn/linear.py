"""Matmuls of activations with a weight in float32 on a CPU, by oneDNN where it is faster.

torch uses MKL. On AVX-512 processors that are not from Intel, MKL takes two to three times as long
as oneDNN (docs/decisions/0016). On Intel processors, and on processors that have only AVX2, MKL is
faster (docs/decisions/0032). Both sum float32 numbers in float32, in different orders.

torch computes all other matmuls: on other processors, types and devices, under autocast, in traced
and exported code, in ``torch.func``, with forward-mode derivatives, and small ones. If
``torch.backends.mkldnn.set_flags`` has switched oneDNN off, torch computes every matmul.

The matrices of networks are plain ``nn.Linear`` modules, so that tools for ``nn.Linear`` work:
adapters that replace modules, hooks, dynamic quantisation.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# torch has no public name for it.
from torch._C import _are_functorch_transforms_active  # pyright: ignore[reportPrivateUsage]
from torch.autograd.forward_ad import unpack_dual
from torch.nn.modules import module
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.utils.flop_counter import register_flop_formula

from qkvary.storage.environment import cpu_field

LARGE = 2**23
"""Minimum number of multiply-adds of a matmul for oneDNN; for fewer, the call costs more time than
oneDNN saves."""

# torch's compiler calls this operation for constant weights; builds without oneDNN lack it.
_PRODUCT: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_IS_ONEDNN_FASTER = (
    torch.backends.cpu.get_cpu_capability() == "AVX512" and cpu_field("vendor_id") != "GenuineIntel"
)
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and _PRODUCT is not None
_PLAIN = {Tensor, nn.Parameter}
"""The types of tensors that oneDNN can multiply. Other subclasses, such as sharded tensors, support
only torch's operations."""

_OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes in which a module keeps its own hooks."""
_GLOBAL_HOOKS = tuple(map("_global{}".format, _OWN_HOOKS))
"""Attributes in which torch keeps the hooks of all modules."""


def is_watched(layer: nn.Module) -> bool:
    """Return whether a module has hooks on its calls, or its ``forward`` was replaced."""
    # torch has no function for this.
    return (
        any(getattr(module, name) for name in _GLOBAL_HOOKS)
        or any(getattr(layer, name) for name in _OWN_HOOKS)
        or "forward" in layer.__dict__
    )


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a layer is an ``nn.Linear``, parametrized or not, without hooks."""
    own = type(layer)
    is_linear = own is nn.Linear or type_before_parametrizations(layer) is nn.Linear
    return is_linear and not is_watched(layer)


def apply(layer: nn.Module, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch width"]:
    """Return ``layer(x)``, computed by :func:`linear` for an ``nn.Linear`` without hooks."""
    return linear(x, layer.weight, layer.bias) if is_plain(layer) else layer(x)


def linear(
    x: Float[Tensor, "*batch inner"],
    weight: Float[Tensor, "width inner"],
    bias: Float[Tensor, " width"] | None = None,
) -> Float[Tensor, "*batch width"]:
    """Return ``x W^T + b`` like ``torch.nn.functional.linear``, with gradients of any order."""
    if not goes_to_onednn(x, weight, bias):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return _multiply(x, weight, bias)


def goes_to_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether :func:`linear` uses oneDNN for these tensors."""
    parts = (x, weight) if bias is None else (x, weight, bias)
    return (
        # The conditions that decide most decoding calls come first; checking all of them takes as
        # long as a small matmul.
        _IS_ONEDNN_FASTER
        and type(x) in _PLAIN
        and x.numel() * weight.shape[0] >= LARGE
        and all(type(part) in _PLAIN for part in parts)
        and weight.ndim == 2
        and x.shape[-1] == weight.shape[1]
        # oneDNN expects a contiguous bias.
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
        and all(part.dtype == torch.float32 and part.device.type == "cpu" for part in parts)
        and not torch.is_autocast_enabled("cpu")
        # An exported graph holds torch's own operations only.
        and not torch.compiler.is_exporting()
        # Documented, but not declared public.
        and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        # torch.func has no rule for the operation.
        and not _are_functorch_transforms_active()
        and all(unpack_dual(part).tangent is None for part in parts)
        and _HAS_ONEDNN
        # The compiler cannot read this setting; the operation that it calls does.
        and (torch.compiler.is_compiling() or bool(torch.backends.mkldnn.enabled))
    )


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch.compiler.is_compiling():
        return _multiply_compiled(x, weight, bias)
    return _PRODUCT(x, weight, bias, "none", [], None)


@torch.library.custom_op(
    "qkvary::linear", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor? bias) -> Tensor"
)
def _multiply_compiled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Call oneDNN, hidden from torch's compiler.

    The compiler accepts the call only for constant weights.
    """
    if not torch.backends.mkldnn.enabled:
        return F.linear(x, weight, bias)
    return _PRODUCT(x, weight, bias, "none", [], None)


@_multiply_compiled.register_fake
def _(x: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        by_x, by_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if by_weight else None, weight if by_x else None)
        return _multiply(x, weight, bias)

    # torch declares one gradient as the only argument.
    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (gradient,) = grad_outputs
        x, weight = ctx.saved_tensors
        by_x = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            by_x = linear(gradient, weight.t())
        rows = gradient.reshape(-1, gradient.shape[-1])
        if ctx.needs_input_grad[1]:
            by_weight = multiply_transposed(rows, x.reshape(-1, x.shape[-1]))
        if ctx.needs_input_grad[2]:
            by_bias = rows.sum(0)
        return by_x, by_weight, by_bias


def multiply_transposed(
    left: Float[Tensor, "rows left"], right: Float[Tensor, "rows right"]
) -> Float[Tensor, "left right"]:
    """Return ``left^T right``, as in the gradient of a weight. The result may be a view."""
    # The wider factor serves as the weight, for which oneDNN is faster.
    if left.shape[1] > right.shape[1]:
        return linear(right.t(), left.t()).t()
    return linear(left.t(), right.t())


if _PRODUCT is not None:

    @register_flop_formula(_PRODUCT)
    def _count(x: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
        return 2 * x.numel() * weight[0]
