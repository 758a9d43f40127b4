"""A step follows a rule or is pinned; the decode never changes the generated tokens."""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

from qkvary.arch.caches import DecodeKernel
from qkvary.inference import graph_step, stepping
from qkvary.inference.decoding import complete, make_cache, prefill
from qkvary.inference.graph_step import FixedStep
from qkvary.inference.requests import Request
from qkvary.inference.stepping import Stepper
from qkvary.nn.cache import KVCache
from qkvary.nn.decoding import decode, native
from qkvary.nn.decoding import step as native_step
from qkvary.nn.language_model import LanguageModel
from tests.small_networks import small_config

LONGEST = 160


@pytest.fixture(autouse=True)
def nothing_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(decode.VARIABLE, raising=False)


def make(label: str = "Q-K=V") -> LanguageModel:
    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 17, "vocabulary": 19, "max_tokens": LONGEST}
    config = small_config(label, bias=True, positions="learned", **sizes)
    return LanguageModel(config, seed=5).eval()


@torch.inference_mode()
def take_steps(kernel: DecodeKernel, count: int, *, rows: int = 1) -> Tensor:
    model = make()
    cache = make_cache(model, LONGEST, kernel=kernel)
    prefill(model, torch.arange(11).expand(rows, 11), cache=cache)
    take = Stepper(model, cache)
    logits = [take(torch.full((rows,), number % 19)) for number in range(count)]
    assert cache.length == 11 + count
    return torch.cat(logits)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Return the name of what computed each step: ``step`` if native, or the kernel of the layers.

    The native step supports everything and is computed by the layers, whatever can be built here.
    """
    found: list[str | None] = []
    genuine = LanguageModel.forward

    def forward(self: LanguageModel, *args: Any, **named: Any) -> Tensor:
        found.append(named["cache"].layers[0].kernel)
        return genuine(self, *args, **named)

    class PretendedStep:
        def __init__(self, model: LanguageModel, cache: KVCache) -> None:
            self.model, self.cache = model, cache

        def __call__(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
            found.append("step")
            return genuine(self.model, tokens[:, None], cache=self.cache, attention_mask=mask)[
                :, -1
            ]

    monkeypatch.setattr(LanguageModel, "forward", forward)
    monkeypatch.setattr(native_step, "supports", lambda *_: True)
    monkeypatch.setattr(native_step, "NativeStep", PretendedStep)
    return found


@pytest.mark.parametrize(
    ("has_step", "built", "expected"),
    [
        (True, object(), "step"),
        (False, object(), "auto"),
        (False, None, None),
    ],
)
def test_the_default_depends_on_what_the_machine_has(
    has_step: bool,
    built: object,
    expected: str | None,
    steps: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not on the length of a text: one implementation computes all of it."""
    monkeypatch.setattr(native_step, "supports", lambda *_: has_step)
    monkeypatch.setattr(stepping, "library", lambda: built)
    monkeypatch.setattr(native, "library", lambda: None)
    take_steps("auto", 70)
    assert steps == [expected] * 70


def test_many_rows_go_through_the_layers(
    steps: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until enough of them have ended."""
    monkeypatch.setattr(stepping, "library", lambda: None)
    model, rows = make(), stepping.MOST_ROWS + 1
    cache = make_cache(model, LONGEST)
    with torch.inference_mode():
        prefill(model, torch.arange(5).expand(rows, 5), cache=cache)
        take = Stepper(model, cache)
        take(torch.arange(rows) % 19)
        cache.reorder(torch.arange(rows - 1))
        take(torch.arange(rows - 1) % 19)
    assert steps == [None, "step"]


@pytest.mark.parametrize(
    ("kernel", "expected"), [("layer", None), ("folded", "folded"), ("native", "step")]
)
@pytest.mark.parametrize("rows", [1, stepping.MOST_ROWS + 1])
def test_a_pinned_kernel_computes_every_step(
    kernel: DecodeKernel, expected: str | None, rows: int, steps: list[str | None]
) -> None:
    found = take_steps(kernel, 5, rows=rows)
    assert steps == [expected] * 5
    assert torch.allclose(found, take_steps("layer", 5, rows=rows), atol=1e-5)


def test_a_network_without_a_native_step_has_the_native_kernel(
    steps: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_step, "supports", lambda *_: False)
    take_steps("native", 2)
    assert steps == ["native", "native"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_graph_computes_the_steps_where_it_starts(
    fails: bool, steps: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU. A graph that cannot be captured is told once."""
    graphs: list[int] = []

    class Graph(FixedStep):
        def __call__(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
            graphs.append(self.cache.length)
            if fails:
                super().__call__(tokens, mask)
                raise RuntimeError("no room")
            return super().__call__(tokens, mask)

    monkeypatch.setattr(native_step, "supports", lambda *_: False)
    monkeypatch.setattr(graph_step, "supports", lambda *_: True)
    monkeypatch.setattr(graph_step, "GraphStep", Graph)
    expected = take_steps("layer", 3)
    steps.clear()
    told = pytest.warns(UserWarning, match="decoding runs without 'graph': no room")
    with told if fails else contextlib.nullcontext():
        found = take_steps("auto", 3)
    # The first step is tried.
    assert graphs == ([11] if fails else [11, 11, 12, 13])
    assert steps[-1] == "auto"
    assert torch.allclose(found, expected, atol=1e-5)


def test_the_choice_does_not_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("QKV")
    requests = [
        Request(prompt=tuple(range(2 + 3 * row)), max_new_tokens=9, seed=row) for row in range(3)
    ]
    found = [answer.tokens for answer in complete(model, requests)]
    monkeypatch.setenv(decode.VARIABLE, "layer")
    assert found == [answer.tokens for answer in complete(model, requests)]
