"""A device that is not the CPU, on any machine, and which tells what makes the host wait for it.

Its tensors wrap tensors of the CPU, which compute: results are real and can be compared with the
CPU's. An operation that mixes the two raises as it would on a GPU, and no kernel can read the
memory. Autocast follows the lists of CUDA.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

import qkvary

NAME = "fakegpu"
DEVICE = f"{NAME}:0"
SOURCE = str(Path(qkvary.__path__[0]))

WAITING = {
    "_linalg_check_errors",
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
}
"""The operations whose result, or its shape, the host must know."""
INDEXING = {"index", "index_put", "index_put_", "_unsafe_index"}
"""The same, where an index is a mask."""
MOVING = {"_to_copy", "copy_"}
"""The operations that may have tensors of two devices."""

# https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
NARROW = (
    "_convolution addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d einsum linear "
    "linalg_multi_dot linalg_vecdot matmul mm mv prelu scaled_dot_product_attention"
)
WIDE = (
    "acos asin cdist cosh cosine_embedding_loss cosine_similarity cross_entropy_loss cumprod "
    "cumsum dist erfinv exp expm1 group_norm kl_div l1_loss layer_norm log log10 log1p log2 "
    "log_softmax logsumexp mse_loss native_layer_norm nll_loss norm pow prod reciprocal renorm "
    "rsqrt sinh softmax softplus sum tan"
)


class DeviceTensor(Tensor):
    """A tensor of the device."""

    inner: Tensor

    @staticmethod
    def __new__(cls: type[Self], inner: Tensor) -> "DeviceTensor":
        with torch.inference_mode(inner.is_inference()):
            made = Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=torch.device(DEVICE),
            )
        made.inner = inner
        return made

    def __repr__(self, **_: object) -> str:
        return f"DeviceTensor({self.inner!r})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(operation, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


class FakeDevice(TorchDispatchMode):
    """While it is entered, ``fakegpu:0`` exists."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        """How often the host waited for the device, by the file and function that did it."""
        self.uploads: Counter[str] = Counter()
        """The same of copies to the device, which wait for it too."""
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> "FakeDevice":
        before = torch._C._only_lift_cpu_tensors()
        self._before.append((before, torch.__future__.get_swap_module_params_on_conversion()))
        # ``torch.tensor`` makes its result on the CPU and then copies it, visibly.
        torch._C._set_only_lift_cpu_tensors(True)
        # ``Module.to`` else changes what a parameter says of itself, but not what it wraps.
        torch.__future__.set_swap_module_params_on_conversion(True)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        lifted, swapped = self._before.pop()
        torch._C._set_only_lift_cpu_tensors(lifted)
        torch.__future__.set_swap_module_params_on_conversion(swapped)

    def __torch_dispatch__(self, operation: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and operation._can_decompose():
            # Autograd, which takes operations apart, is left out then.
            with self:
                found = operation.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        name = operation._schema.name.removeprefix("aten::")
        is_there = any(isinstance(one, DeviceTensor) for one in _leaves((args, *kwargs.values())))
        if is_there and kwargs.get("output_size") is None and _waits(name, args):
            self.waits[_find_place()] += 1
        if name in MOVING:
            source = args[1] if name == "copy_" else args[0]
            target = args[0].device if name == "copy_" else kwargs.get("device")
            kind = source.device.type, torch.device(target or source.device).type
            if kind == (NAME, "cpu"):
                self.waits[_find_place()] += 1
            elif kind == ("cpu", NAME) and not _is_asynchronous(name, args, kwargs):
                self.uploads[_find_place()] += 1
        return _compute(operation, args, kwargs)


def _waits(name: str, args: Sequence[Any]) -> bool:
    by_mask = name in INDEXING and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    return by_mask or name in WAITING


def _is_asynchronous(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return bool(kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,)))


def _find_place() -> str:
    """Return the innermost function of the package that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE):
            return f"{code.co_filename[len(SOURCE) + 1 :]} {code.co_qualname}"
        frame = frame.f_back
    return "elsewhere"


def _compute(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    leaves = [*_leaves(args), *_leaves(kwargs.values())]
    tensors = [one for one in leaves if isinstance(one, Tensor)]
    is_there = any(isinstance(one, DeviceTensor) for one in tensors)
    name = operation._schema.name.removeprefix("aten::")
    if is_there and name not in MOVING:
        # As on a GPU: a single number of the CPU may be an operand.
        if any(one.dim() and not isinstance(one, DeviceTensor) for one in tensors):
            found = [(str(one.device), tuple(one.shape)) for one in tensors]
            raise RuntimeError(f"{operation} expects tensors of one device, got {found}")
        if any(isinstance(one, torch.Generator) for one in leaves):
            raise RuntimeError(f"{operation} expects a generator of the device")
    device = kwargs.get("device")
    on_device = is_there if device is None else torch.device(device).type == NAME
    if name == "copy_":
        on_device = isinstance(args[0], DeviceTensor)
    found = operation(*_map(_unwrap, args), **_map(_unwrap, kwargs))
    if not on_device:
        return found
    made = _map(_wrap, found)
    return return_and_correct_aliasing(operation, args, kwargs, made) if is_there else made


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        if type(one) in (list, tuple):
            yield from _leaves(one)
        else:
            yield one


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_map(function, one) for one in value])
    if kind is dict:
        return {name: _map(function, one) for name, one in value.items()}
    return function(value)


def _wrap(leaf: Any) -> Any:
    return DeviceTensor(leaf) if isinstance(leaf, Tensor) else leaf


def _unwrap(leaf: Any) -> Any:
    if isinstance(leaf, DeviceTensor):
        return leaf.inner
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


class _Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _cast_and(operation: Any, *, wide: bool) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.float32 if wide else torch.get_autocast_dtype(NAME)

        def cast(one: Any) -> Any:
            floats = isinstance(one, DeviceTensor) and one.is_floating_point()
            return one.to(dtype) if floats and one.dtype != torch.float64 else one

        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operation(*_map(cast, args), **_map(cast, kwargs))

    return run


def _register() -> list[torch.library.Library]:
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for names, wide in ((NARROW, False), (WIDE, True)):
        for name in names.split():
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                if not overload.endswith("out"):
                    operation = getattr(packet, overload)
                    own = operation.name().removeprefix("aten::")
                    library.impl(own, _cast_and(operation, wide=wide))
    return [others, library]


_LIBRARIES = _register()
"""Kept, because what they register goes with them."""
