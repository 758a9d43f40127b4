"""Any sequence of appending, cropping, reordering and clearing leaves what is computed anew.

The oracle has no cache: it runs the whole text again and looks at the newest tokens. What a window
has dropped is counted by hand, and so are the bytes.
"""

import dataclasses
import functools

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

from qkvary.arch.attention import ValueRope
from qkvary.arch.caches import CacheOptions
from qkvary.arch.networks import Positions
from qkvary.costs.cache import token_bytes
from qkvary.inference.stepping import Stepper
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from tests.contracts.test_cache_decodes import with_window
from tests.contracts.test_cache_options import as_stored
from tests.contracts.variant_cases import GATE, make_config, make_language_model_config, randomize

VOCABULARY, MAX_TOKENS, MOST_ROWS = 13, 17, 4
LABELS = (
    "QKV",
    "GQA-2@rotary",
    "Q-K=V@rotary",
    "Q-MQA@rotary",
    "Q=K=V@relative",
    "Q=K-V@diag-mean",
    "(Q-MQA)+",
    "I-K=V@alibi",
    "Q-I-V",
    "Q-K[r3]-V[d/4]/2@rotary",
    "Q[r3]=K=V",
)
"""Every kind of term in the scores, of projection and of source."""
PLAIN = {"QKV", "GQA-2@rotary", "Q-K=V@rotary", "Q-MQA@rotary", "Q-I-V", "Q[r3]=K=V"}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of a network that is drawn."""

    label: str
    window: int | None
    value_rope: ValueRope


LAYERS = st.lists(
    st.builds(
        Layer,
        st.sampled_from(LABELS),
        st.none() | st.integers(1, 6),
        st.sampled_from(["none", "counter"]),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
OPTIONS = st.builds(
    CacheOptions,
    layout=st.sampled_from(["sources", "rotated", "split", "input", "latent"]),
    storage=st.sampled_from(["growing", "preallocated"]),
    kernel=st.sampled_from(["layer", "folded"]),
)
PADDING = st.lists(st.integers(0, 4), min_size=MOST_ROWS, max_size=MOST_ROWS)
HOLES = st.none() | st.integers(1, 99)


@functools.cache
def make_model(
    layers: tuple[Layer, ...], positions: Positions, dtype: torch.dtype
) -> LanguageModel:
    bounded = tuple(
        with_window(make_config(one.label, causal=True, value_rope=one.value_rope), one.window)
        for one in layers
    )
    config = make_language_model_config("QKV", positions=positions)
    config = dataclasses.replace(config, attention=bounded, num_layers=len(bounded))
    model = LanguageModel(config).double()
    randomize(model, seed=73)
    return model.to(dtype).eval()


class Texts(RuleBasedStateMachine):
    """A cache, and the texts that it has seen."""

    dtype, form, gate = torch.float64, "fp64", GATE

    @initialize(
        layers=LAYERS,
        positions=st.sampled_from(["none", "learned", "sinusoidal"]),
        options=OPTIONS,
        rows=st.integers(1, MOST_ROWS),
    )
    def begin(
        self, layers: tuple[Layer, ...], positions: Positions, options: CacheOptions, rows: int
    ) -> None:
        layers, self.options = self.choose(layers, options)
        self.model = make_model(layers, positions, self.dtype)
        self.cache = KVCache(self.model.config.layers, max_tokens=MAX_TOKENS, options=self.options)
        self.draws = torch.Generator().manual_seed(5)
        self.forget(rows)

    def choose(
        self, layers: tuple[Layer, ...], options: CacheOptions
    ) -> tuple[tuple[Layer, ...], CacheOptions]:
        return layers, options

    def forget(self, rows: int) -> None:
        self.tokens = torch.empty(rows, 0, dtype=torch.long)
        self.real = torch.empty(rows, 0, dtype=torch.bool)
        self.kept = [0] * len(self.model.config.layers)

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    def random(self, most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=self.draws)

    @rule(count=st.sampled_from([1, 1, 1, 2, 3, 5]), padding=PADDING, holes=HOLES)
    @precondition(lambda self: self.length < MAX_TOKENS)
    def append(self, count: int, padding: list[int], holes: int | None) -> None:
        """Tokens of all rows; texts begin with padding, and any row may pause."""
        count = min(count, MAX_TOKENS - self.length)
        rows = len(self.tokens)
        new, real = self.random(VOCABULARY, rows, count), torch.ones(rows, count).bool()
        if self.length == 0:
            real = torch.arange(count) >= torch.tensor(padding[:rows])[:, None]
        elif holes is not None:
            real = self.random(4, rows, count) > 0
        self.tokens = torch.cat((self.tokens, new), dim=1)
        self.real = torch.cat((self.real, real), dim=1)
        masked = None if bool(self.real.all()) else self.real
        with torch.no_grad():
            found = self.feed(new, masked)
            expected = self.model(self.tokens, attention_mask=masked)[:, -count:]
        if real.any():
            apart = (found - expected)[real].abs().max()
            assert apart <= self.gate * expected[real].square().mean().sqrt()
        for index, layer in enumerate(self.model.config.layers):
            window = layer.variant.window
            kept = self.kept[index] + count
            self.kept[index] = kept if window is None else min(kept, window - 1)
        self.check()

    def feed(self, new: Tensor, masked: Tensor | None) -> Tensor:
        return self.model(new, cache=self.cache, attention_mask=masked)

    @rule(dropped=st.sampled_from([1, 1, 2, 3, 5, 0, MAX_TOKENS]))
    @precondition(lambda self: self.length > 0)
    def crop(self, dropped: int) -> None:
        """By any number; refused by all layers where one of them has dropped what it would need."""
        longer = self.length + 1
        with pytest.raises(ValueError, match=rf"keep 0 to {self.length} tokens, got {longer}"):
            self.cache.crop(longer)
        dropped = min(dropped, self.length)
        length = self.length - dropped
        left = [kept - dropped for kept in self.kept]
        windows = [layer.variant.window for layer in self.model.config.layers]
        needed = [length if window is None else min(length, window - 1) for window in windows]
        if any(have < need for have, need in zip(left, needed, strict=True)):
            with pytest.raises(ValueError, match="the window has dropped earlier tokens"):
                self.cache.crop(length)
        else:
            self.cache.crop(length)
            self.tokens, self.real = self.tokens[:, :length], self.real[:, :length]
            self.kept = left
        self.check()

    @rule(data=st.data())
    @precondition(lambda self: self.length > 0)
    def reorder(self, data: st.DataObject) -> None:
        """Any rows, some of them twice, as many as one likes."""
        row = st.integers(0, len(self.tokens) - 1)
        rows = torch.tensor(data.draw(st.lists(row, min_size=1, max_size=MOST_ROWS), label="rows"))
        self.cache.reorder(rows)
        self.tokens, self.real = self.tokens[rows], self.real[rows]
        self.check()

    @rule(rows=st.integers(1, MOST_ROWS))
    @precondition(lambda self: self.length > 0)
    def clear(self, rows: int) -> None:
        """And go on with other texts."""
        held = self.cache.nbytes
        self.cache.clear()
        assert self.cache.nbytes == (held if self.options.storage == "preallocated" else 0)
        self.forget(rows)
        assert self.cache.length == 0

    def check(self) -> None:
        assert self.cache.length == self.length
        assert [layer.num_stored for layer in self.cache.layers] == self.kept
        # What has no token yet has no rows: a buffer stays as it was allocated.
        if self.length:
            assert self.cache.nbytes == len(self.tokens) * self.count_bytes()

    def count_bytes(self) -> int:
        """Of one row."""
        total = 0
        for config, kept in zip(self.model.config.layers, self.kept, strict=True):
            entry = token_bytes(as_stored(config, self.options.layout), self.form)
            window = config.variant.window
            room = MAX_TOKENS if window is None else window - 1
            total += entry * (room if self.options.storage == "preallocated" else kept)
        return total


class Steps(Texts):
    """The same in float32, where single tokens may be one call of the native library."""

    dtype, form, gate = torch.float32, "fp32", 1e-5

    def choose(
        self, layers: tuple[Layer, ...], options: CacheOptions
    ) -> tuple[tuple[Layer, ...], CacheOptions]:
        """Most of what the library takes."""
        plain = [
            dataclasses.replace(layer, window=None)
            if layer.label in PLAIN
            else Layer("Q-K=V", None, "none")
            for layer in layers
        ]
        layout = "rotated" if options.layout in ("input", "latent") else options.layout
        return tuple(plain), CacheOptions(layout=layout, storage="preallocated", kernel="native")

    def feed(self, new: Tensor, masked: Tensor | None) -> Tensor:
        if new.shape[1] > 1 or self.length == 1:
            return super().feed(new, masked)
        if self.stepper is None:
            self.stepper = Stepper(self.model, self.cache)
        return self.stepper(new[:, 0], masked)[:, None]

    def forget(self, rows: int) -> None:
        """One that takes steps takes those of one batch, however it is cropped and ordered."""
        super().forget(rows)
        self.stepper: Stepper | None = None


def run_sequences(machine: type[Texts], count: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("machine", [Texts, Steps])
def test_sequences_of_operations(machine: type[Texts]) -> None:
    run_sequences(machine, 25, 12)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("machine", [Texts, Steps])
def test_two_thousand_sequences_of_operations(machine: type[Texts]) -> None:
    run_sequences(machine, 2_000, 25)
