"""The fused loss is ``cross_entropy(linear(...))``, and never holds all logits.

The loss of smoothed targets is torch's divergence from targets that are written out.
"""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkvary.nn.fused_loss import (
    IGNORE_INDEX,
    linear_cross_entropy,
    linear_token_losses,
    smoothed_loss_sum,
)
from qkvary.nn.language_model import LanguageModel
from tests.conftest import Runner
from tests.contracts.variant_cases import distance, make_language_model_config, randomize
from tests.nn.test_linear import run_compiled

TOKENS, WIDTH, VOCABULARY = 23, 7, 37
GATE = 1e-12


def draw(
    *, bias: bool = True, dtype: torch.dtype = torch.float64, scale: float = 2.0
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    source = torch.Generator().manual_seed(3)
    shapes = ((TOKENS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    parts = [
        torch.randn(shape, generator=source, dtype=torch.float64).mul(scale).to(dtype)
        for shape in shapes
    ]
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=source)
    targets[[0, 5, 6, TOKENS - 1]] = IGNORE_INDEX
    leaves = [part.requires_grad_() for part in parts]
    return leaves[0], leaves[1], leaves[2] if bias else None, targets


def plain(features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(features, weight, bias), targets, reduction="sum")


def gradients(loss: Tensor, parts: Iterable[Tensor | None], factor: float = 1.0) -> list[Tensor]:
    return list(torch.autograd.grad(loss * factor, [part for part in parts if part is not None]))


@pytest.mark.parametrize("chunk", [1, 5, TOKENS - 1, TOKENS, 99])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_cross_entropy(chunk: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkvary.nn.fused_loss.choose_chunk", lambda *_: chunk)
    *parts, targets = draw(bias=bias)
    found = linear_cross_entropy(*parts, targets)
    expected = plain(*parts, targets)
    assert found.dtype == torch.float64
    assert distance(found, expected) < GATE
    pairs = zip(gradients(found, parts, 0.3), gradients(expected, parts, 0.3), strict=True)
    assert all(distance(one, other) < GATE for one, other in pairs)


def test_losses_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkvary.nn.fused_loss.choose_chunk", lambda *_: 5)
    *parts, targets = draw()
    found = linear_token_losses(*parts, targets)
    expected = F.cross_entropy(F.linear(*parts), targets, reduction="none")
    assert not found.requires_grad
    assert distance(found, expected) < GATE
    assert found[0] == 0.0


def test_nothing_counts() -> None:
    *parts, targets = draw()
    found = linear_cross_entropy(*parts, torch.full_like(targets, IGNORE_INDEX))
    assert found.item() == 0.0
    assert all(not part.any() for part in gradients(found, parts))


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_only_what_is_required_gets_a_gradient(needed: tuple[int, ...]) -> None:
    *parts, targets = draw()
    given = [
        part if index in needed or part is None else part.detach()
        for index, part in enumerate(parts)
    ]
    linear_cross_entropy(*given, targets).backward()
    for index, part in enumerate(given):
        assert part is not None
        assert (part.grad is not None) == (index in needed)
    expected = gradients(plain(*parts, targets), parts)
    for index in needed:
        assert distance(given[index].grad, expected[index]) < GATE


@pytest.mark.parametrize("kind", ["autocast", "parameters"])
def test_bfloat16(kind: str) -> None:
    """As near to the exact loss as torch's own under the same types."""
    *parts, targets = draw(dtype=torch.float32, scale=1.0)
    wide = [None if part is None else part.detach().double().requires_grad_() for part in parts]
    exact_loss = plain(*wide, targets)
    exact = [exact_loss, *gradients(exact_loss, wide)]
    if kind == "parameters":
        parts = [
            None if part is None else part.detach().bfloat16().requires_grad_() for part in parts
        ]
    errors: list[list[float]] = []
    for function in (linear_cross_entropy, plain):
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            loss = function(*parts, targets)
        found = gradients(loss, parts)
        kinds = {part.dtype for part in found}
        assert kinds == {torch.float32 if kind == "autocast" else torch.bfloat16}
        errors.append(
            [
                distance(one.double(), other)
                for one, other in zip([loss, *found], exact, strict=True)
            ]
        )
        if function is linear_cross_entropy:
            assert loss.dtype == torch.float32
    for ours, torchs in zip(*errors, strict=True):
        assert ours < 2 * torchs + 1e-3


def test_float16_is_computed_in_float32() -> None:
    *parts, targets = draw(dtype=torch.float32)
    exact = linear_cross_entropy(*parts, targets)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(linear_cross_entropy(*parts, targets), exact)
    half = [None if part is None else part.half() for part in parts]
    back = [None if part is None else part.float() for part in half]
    assert torch.equal(linear_cross_entropy(*half, targets), linear_cross_entropy(*back, targets))


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers of any tensor that an operation returned."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_never_more_than_a_chunk_of_logits(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    *parts, targets = draw(dtype=dtype)
    chunk = 8
    monkeypatch.setattr("qkvary.nn.fused_loss.choose_chunk", lambda *_: chunk)
    assert chunk * VOCABULARY > VOCABULARY * WIDTH
    with LargestTensor() as found:
        linear_cross_entropy(*parts, targets).backward()
    assert found.largest == chunk * VOCABULARY
    with LargestTensor() as found:
        plain(*parts, targets).backward()
    assert found.largest == TOKENS * VOCABULARY


def test_a_target_is_missing() -> None:
    *parts, targets = draw()
    with pytest.raises(ValueError, match="expected a target for each of 23 tokens, got \\[22\\]"):
        linear_cross_entropy(*parts, targets[1:])


# ---- smoothed targets

SMOOTHED, PADDING = 11, 1


def smooth(targets: Tensor, smoothing: float, vocabulary: int = SMOOTHED) -> Tensor:
    """The rows of paper 2: most on the target, nothing on padding, the rest evenly."""
    share = smoothing / (vocabulary - 2)
    rows = torch.full((len(targets), vocabulary), share, dtype=torch.float64)
    for row, target in zip(rows, targets.tolist(), strict=True):
        row[target] = 1 - smoothing
        row[PADDING] = 0
    return rows


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("has_bias", [True, False])
def test_loss_and_gradients_are_those_of_the_divergence(smoothing: float, has_bias: bool) -> None:
    draw = torch.Generator().manual_seed(5)
    inputs = [
        torch.randn(*size, dtype=torch.float64, generator=draw) for size in ((7, 3), (11, 3), (11,))
    ]
    features, weight, bias = (part.requires_grad_() for part in inputs)
    used = bias if has_bias else None
    targets = torch.tensor([4, -100, 10, 0, 2, -100, 4])
    counted = targets != -100
    found = smoothed_loss_sum(
        features, weight, used, targets, smoothing=smoothing, excluded=PADDING
    )
    logits = F.linear(features, weight, used)[counted]
    expected = F.kl_div(
        logits.log_softmax(-1), smooth(targets[counted], smoothing), reduction="sum"
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    learned = [features, weight, *([bias] if has_bias else [])]
    ours, theirs = (torch.autograd.grad(loss, learned) for loss in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


# ---- the seam of the language model


def make_model(*, tied: bool, bias: bool) -> LanguageModel:
    config = make_language_model_config("Q-K=V", tied_head=tied, head_bias=bias)
    model = LanguageModel(config).double()
    randomize(model, seed=5)
    return model


def draw_batch(model: LanguageModel) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    size = model.config.vocabulary
    tokens, targets = (torch.randint(0, size, (3, 7), generator=source) for _ in range(2))
    targets[1, 4:] = IGNORE_INDEX
    return tokens, targets


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_language_model_given_targets_answers_with_its_loss(tied: bool, bias: bool) -> None:
    model = make_model(tied=tied, bias=bias)
    tokens, targets = draw_batch(model)
    found = model(tokens, targets=targets)
    expected = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")
    assert distance(found, expected) < GATE
    named = dict(model.named_parameters())
    pairs = zip(gradients(found, named.values()), gradients(expected, named.values()), strict=True)
    assert all(distance(one, other) < GATE for one, other in pairs)
    features = model.features(tokens)
    assert torch.equal(model.loss_sum(features, targets), found)


@pytest.mark.compile
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_compiled_as_one_graph(autocast: bool, again: bool, run_python: Runner) -> None:
    code = "from tests.nn.test_fused_loss import compare_compiled; compare_compiled({}, {})"
    run_compiled(run_python, code.format(autocast, again))


def compare_compiled(autocast: bool, again: bool) -> None:
    torch.set_num_threads(1)
    model = LanguageModel(make_language_model_config("Q-K=V", head_bias=True)).train()
    randomize(model, seed=5)
    model.stack.recompute_blocks = again
    tokens, targets = draw_batch(model)
    found: list[list[Tensor]] = []
    for network in (model, torch.compile(model, fullgraph=True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = network(tokens, targets=targets)
        found.append([loss.detach(), *gradients(loss, model.parameters())])
    gate = 5e-2 if autocast else 1e-5
    assert all(distance(one, other) < gate for one, other in zip(*found, strict=True))
