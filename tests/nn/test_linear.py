"""Products through oneDNN: the values, the gradients, and what is left to torch."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkvary.nn import linear as linear_module
from qkvary.nn.fused_loss import linear_cross_entropy
from qkvary.nn.linear import LARGE, apply, is_plain, linear
from tests.conftest import ROOT, Runner

ROWS, INNER, WIDTH = 512, 96, 192

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@pytest.fixture(autouse=True)
def avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors on which products go to oneDNN."""
    monkeypatch.setattr(linear_module, "_IS_ONEDNN_FASTER", True)


class Watch(TorchDispatchMode):
    """Counts the products that went to oneDNN."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += "_linear_pointwise" in str(func)
        return func(*args, **(kwargs or {}))


def make(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double())


def is_close(found: Tensor, wanted: Tensor) -> bool:
    """Within what float32 sums of a few hundred products of this size may be off."""
    return bool((found.double() - wanted).abs().max() <= 2e-6 * wanted.abs().max())


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("batch", [(ROWS,), (4, ROWS // 4), (2, 2, ROWS // 4)])
def test_values_and_gradients_are_those_of_the_formula(
    batch: tuple[int, ...], has_bias: bool
) -> None:
    x = make(*batch, INNER).requires_grad_()
    weight = make(WIDTH, INNER, seed=1).requires_grad_()
    bias = make(WIDTH, seed=2).requires_grad_() if has_bias else None
    inputs = [part for part in (x, weight, bias) if part is not None]
    direction = make(*batch, WIDTH, seed=3)
    with Watch() as watch:
        out = linear(x, weight, bias)
        found = torch.autograd.grad(out, inputs, direction)
    assert watch.count == 3
    wanted_out = exact(x, weight, bias)
    wanted = torch.autograd.grad(wanted_out, inputs, direction.double())
    assert is_close(out, wanted_out)
    assert [part.shape for part in found] == [part.shape for part in inputs]
    assert all(is_close(a, b) for a, b in zip(found, wanted, strict=True))


def test_processors_without_avx512_leave_products_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "_IS_ONEDNN_FASTER", False)
    x, weight = make(ROWS, INNER).requires_grad_(), make(WIDTH, INNER, seed=1)
    with Watch() as watch:
        found = linear(x, weight)
        found.sum().backward()
    assert watch.count == 0
    assert torch.equal(found, F.linear(x, weight))


def test_what_else_is_left_to_torch() -> None:
    x, weight = make(ROWS, INNER), make(WIDTH, INNER, seed=1)
    few = LARGE // (INNER * WIDTH)
    assert few < ROWS

    class Spread(Tensor):
        """As torch's tensors that are spread over processes."""

    with Watch() as watch:
        linear(x[:few], weight)
        linear(x.as_subclass(Spread), weight)
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(x, weight).dtype == torch.bfloat16
        torch.backends.mkldnn.set_flags(False)
        try:
            linear(x, weight)
        finally:
            torch.backends.mkldnn.set_flags(True)
        assert linear(x.to("meta"), weight.to("meta")).is_meta
        for dtype in (torch.float64, torch.bfloat16):
            given = x.to(dtype), weight.to(dtype)
            assert torch.equal(linear(*given), F.linear(*given))
    assert watch.count == 0
    with Watch() as watch:
        linear(x[: few + 1], weight)
    assert watch.count == 1


@pytest.mark.parametrize("bias", [make(2 * WIDTH)[::2], make(1).expand(WIDTH)])
def test_a_bias_that_onednn_would_misread_is_left_to_torch(bias: Tensor) -> None:
    x, weight = make(ROWS, INNER), make(WIDTH, INNER, seed=1)
    with Watch() as watch:
        found = linear(x, weight, bias)
    assert watch.count == 0
    assert is_close(found, exact(x, weight, bias))
    loss = linear_cross_entropy(x, weight, bias, torch.arange(ROWS) % WIDTH)
    logits = exact(x, weight, bias)
    wanted = F.cross_entropy(logits, torch.arange(ROWS) % WIDTH, reduction="sum")
    assert abs(loss.item() / wanted.item() - 1) < 1e-6


def test_transformed_functions_are_left_to_torch() -> None:
    x, weight = make(3, ROWS, INNER), make(WIDTH, INNER, seed=1)

    def loss(function: Product) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda weight, x: function(x, weight, None).square().sum()

    with Watch() as watch:
        found = torch.func.vmap(torch.func.grad(loss(linear)), in_dims=(None, 0))(weight, x)
    assert watch.count == 0
    wanted = torch.func.vmap(torch.func.grad(loss(exact)), in_dims=(None, 0))(weight, x)
    assert is_close(found, wanted.double())


def test_what_waits_for_a_layer_is_not_passed_over() -> None:
    layer, x, called = torch.nn.Linear(5, 3), make(2, 5), list[str]()
    everywhere = torch.nn.modules.module

    def note(*_: object) -> None:
        called.append("hook")

    for register in (
        layer.register_forward_hook,
        layer.register_forward_pre_hook,
        layer.register_full_backward_hook,
        layer.register_full_backward_pre_hook,
        everywhere.register_module_forward_hook,
        everywhere.register_module_forward_pre_hook,
        everywhere.register_module_full_backward_hook,
        everywhere.register_module_full_backward_pre_hook,
    ):
        assert is_plain(layer)
        hook = register(note)
        assert not is_plain(layer)
        apply(layer, x.requires_grad_()).sum().backward()
        assert called.pop() == "hook"
        called.clear()
        hook.remove()
    layer.forward = lambda _: x
    assert apply(layer, x) is x


@pytest.mark.compile
def test_compiled_code_takes_products_by_onednn_too(run_python: Runner) -> None:
    run_compiled(run_python, "from tests.nn.test_linear import check_compiled; check_compiled()")


def run_compiled(run_python: Runner, code: str) -> None:
    """In a process of its own: the compiler does not read annotations that are executed."""
    # It makes an autograd function where torch says that one should not.
    env = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONWARNINGS": "default"}
    result = run_python(["-c", code], env=env)
    assert result.returncode == 0, result.stderr


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return apply(self.inner, x)


def check_compiled() -> None:
    linear_module._IS_ONEDNN_FASTER = True  # pyright: ignore[reportPrivateUsage]
    product = linear_module._PRODUCT  # pyright: ignore[reportPrivateUsage]
    calls = list[torch.Size]()

    def count(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        calls.append(weight.shape)
        return product(x, weight, *rest)

    linear_module._PRODUCT = count  # pyright: ignore[reportPrivateUsage]
    x, weight, bias = make(2, ROWS, INNER), make(WIDTH, INNER, seed=1), make(WIDTH, seed=2)
    inputs = [part.requires_grad_() for part in (x, weight, bias)]
    out = torch.compile(linear, fullgraph=True)(*inputs)
    found = torch.autograd.grad(out.square().sum(), inputs)
    assert len(calls) == 3
    wanted_out = exact(*inputs)
    wanted = torch.autograd.grad(wanted_out.square().sum(), inputs)
    assert is_close(out, wanted_out)
    assert all(is_close(one, other) for one, other in zip(found, wanted, strict=True))
    # An exported graph runs elsewhere, where this operation is not known.
    exported = torch.export.export(_Layer(), (make(ROWS, INNER),))
    assert not any("qkvary" in str(node.target) for node in exported.graph.nodes)
    assert len(calls) == 3
