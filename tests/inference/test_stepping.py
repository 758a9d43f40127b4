"""A step is pinned or the fastest; the choice never changes the generated tokens."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkvary.arch.caches import CacheOptions, CacheStorage, DecodeKernel
from qkvary.inference import stepping
from qkvary.inference.decoding import complete, make_cache, prefill
from qkvary.inference.requests import Request
from qkvary.inference.stepping import Stepper
from qkvary.nn.cache import KVCache
from qkvary.nn.decoding import choice, native
from qkvary.nn.decoding import step as native_step
from qkvary.nn.language_model import LanguageModel
from tests.small_networks import small_config

LONGEST = 160


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Timings of this test's own, and nothing pinned; what is built once stays."""
    native.library()
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path))
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    (tmp_path / "decoding").mkdir()
    choice.forget()
    yield tmp_path / "decoding"
    choice.forget()


class PretendedStep:
    """Stands for the native step, whatever this machine can build: the layers, counted."""

    calls = 0

    def __init__(self, model: LanguageModel, cache: KVCache) -> None:
        self.model, self.cache = model, cache

    def __call__(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        type(self).calls += 1
        return self.model(tokens[:, None], cache=self.cache, attention_mask=mask)[:, -1]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> type[PretendedStep]:
    """A machine with a compiler that takes no time."""
    monkeypatch.setattr(native_step, "supports", lambda *_: True)
    monkeypatch.setattr(native_step, "NativeStep", PretendedStep)
    PretendedStep.calls = 0
    return PretendedStep


def make(label: str = "Q-K=V") -> LanguageModel:
    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 17, "vocabulary": 19, "max_tokens": LONGEST}
    config = small_config(label, bias=True, positions="learned", **sizes)
    return LanguageModel(config, seed=5).eval()


def clock(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[str], float]) -> None:
    """Let functions take given seconds by the name of the function that runs."""
    now = 0.0
    functions: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {}
    genuine = Stepper.__init__

    def wrap(name: str) -> Callable[[Tensor, Tensor | None], Tensor]:
        function = functions[name]

        def run(tokens: Tensor, mask: Tensor | None) -> Tensor:
            nonlocal now
            now += seconds(name)
            return function(tokens, mask)

        return run

    def start(self: Stepper, model: LanguageModel, cache: KVCache) -> None:
        genuine(self, model, cache)
        functions.update(self._functions)
        self._functions = {name: wrap(name) for name in self._functions}

    monkeypatch.setattr(Stepper, "__init__", start)
    monkeypatch.setattr(stepping, "read_clock", lambda _device: now)


@torch.inference_mode()
def take_steps(kernel: DecodeKernel, count: int, *, prompt: int = 11) -> tuple[Stepper, Tensor]:
    model = make()
    cache = make_cache(model, LONGEST, kernel=kernel)
    prefill(model, torch.arange(prompt)[None] % 19, cache=cache)
    take = Stepper(model, cache)
    logits = [take(torch.tensor([number % 19])) for number in range(count)]
    assert cache.length == prompt + count
    return take, torch.cat(logits)


@pytest.mark.parametrize("best", ["step", "layer", "attention"])
@pytest.mark.usefixtures("pretended")
def test_the_fastest_is_chosen_and_kept(best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, lambda name: 1.0 if name == best else 2.0)
    take, _ = take_steps("fastest", 2)
    assert take.chosen == {64: best}
    assert best in choice.chosen().values()
    # The next one reads what was found, and would find another.
    clock(monkeypatch, lambda name: 9.0 if name == best else 2.0)
    take, _ = take_steps("fastest", 2)
    assert take.chosen == {64: best}


@pytest.mark.parametrize(
    ("built", "expected", "has_step", "best"),
    [
        (object(), "attention", False, "layer"),
        (None, "layer", False, "attention"),
        (object(), "attention", True, "layer"),
        (None, "layer", True, "attention"),
    ],
)
def test_by_default_no_time_decides(
    best: str,
    has_step: bool,
    built: object,
    expected: str,
    pretended: type[PretendedStep],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does the length of a text: one function computes all of it."""
    monkeypatch.setattr(native_step, "supports", lambda *_: has_step)
    monkeypatch.setattr(stepping, "library", lambda: built)
    monkeypatch.setattr(native, "library", lambda: None)
    clock(monkeypatch, lambda name: 1.0 if name == best else 2.0)
    take, _ = take_steps("auto", 70, prompt=50)
    assert set(take.chosen.values()) == {"step" if has_step else expected}
    assert pretended.calls == 70 * has_step
    assert choice.chosen() == {}


@pytest.mark.parametrize("rows", [1, stepping.MOST_ROWS, stepping.MOST_ROWS + 1])
def test_many_rows_go_through_the_layers(
    rows: int, pretended: type[PretendedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "library", lambda: None)
    model = make()
    with torch.inference_mode():
        cache = make_cache(model, LONGEST)
        prefill(model, torch.arange(5).expand(rows, 5), cache=cache)
        Stepper(model, cache)(torch.arange(rows) % 19)
    assert pretended.calls == int(rows <= stepping.MOST_ROWS)


def test_a_pinned_kernel_is_not_timed(pretended: type[PretendedStep]) -> None:
    pinned: list[tuple[DecodeKernel, str]] = [
        ("layer", "layer"),
        ("folded", "folded"),
        ("native", "step"),
    ]
    expected = take_steps("layer", 5)[1]
    for kernel, function in pinned:
        take, found = take_steps(kernel, 5)
        assert take.chosen == {64: function}
        assert torch.allclose(found, expected, atol=1e-5)
    assert pretended.calls == 5
    assert choice.chosen() == {}


@pytest.mark.parametrize(("label", "storage"), [("QKV@w4", "preallocated"), ("QKV", "int8")])
@pytest.mark.parametrize("has_compiler", [True, False])
def test_steps_that_cannot_be_undone_are_not_timed(
    label: str,
    storage: CacheStorage,
    has_compiler: bool,
    pretended: type[PretendedStep],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of them is taken: the native one, where there is one."""
    monkeypatch.setattr(native_step, "supports", lambda *_: has_compiler)
    model = make(label)
    options = CacheOptions(storage=storage, kernel="fastest")
    cache = KVCache(model.config.layers, max_tokens=LONGEST, options=options)
    with torch.inference_mode():
        prefill(model, torch.arange(11)[None], cache=cache)
        take = Stepper(model, cache)
        take(torch.tensor([3]))
    assert take.chosen == {64: "step" if has_compiler else "layer"}
    assert pretended.calls == int(has_compiler)
    assert not any(kind.startswith("step,") for kind in choice.chosen())


def test_the_choice_does_not_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("QKV")
    requests = [
        Request(prompt=tuple(range(2 + 3 * row)), max_new_tokens=9, seed=row) for row in range(3)
    ]
    found = [answer.tokens for answer in complete(model, requests)]
    monkeypatch.setenv(choice.VARIABLE, "layer")
    assert found == [answer.tokens for answer in complete(model, requests)]
