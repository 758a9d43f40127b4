"""Decoding steps: one call of the native library, or layer by layer.

The kernel ``auto`` uses the native call where possible, so a text does not depend on a measurement.
The fastest implementation depends on the machine, the network and the length of the cache:
``fastest`` times them whenever the length passes a power of two, and keeps the winner.
"""

import warnings
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.inference import graph_step
from qkvary.nn.cache import KVCache
from qkvary.nn.decoder import Decoder
from qkvary.nn.decoding import step as native_step
from qkvary.nn.decoding.choice import choose_once, describe_device, read_clock
from qkvary.nn.decoding.native import library

ROUNDS = 6
"""Timings per implementation; the shortest counts, because other load can only slow a step down."""
LEAST_TIMED = 64
"""The implementation is chosen once for all caches up to this length."""
MOST_ROWS = 50
"""Rows up to which ``auto`` takes the native step. Relative to the step layer by layer, it takes
0.2 to 0.7 times as long for up to 8 rows, 0.7 to 1.1 times for 50, and 0.7 to 1.9 times for 64,
where products of whole matrices pay off (width 128 to 512, one thread)."""

StepFunction = Callable[[Tensor, Tensor | None], Tensor]


class Stepper:
    """Runs one token per row through a network and its cache.

    ``native`` makes one native call, if network and cache support it; ``layer`` runs the layers as
    without a cache; any other name runs them with that kernel. ``auto`` is ``native`` for few rows,
    a graph on a GPU, and otherwise the layers; ``fastest`` picks the fastest of these by timing.
    """

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        kernel = cache.layers[0].kernel
        self._functions: dict[str, StepFunction] = {}
        self._is_timed = kernel == "fastest"
        if kernel in ("auto", "fastest", "native") and native_step.supports(model, cache):
            self._functions["step"] = native_step.NativeStep(model, cache)
        if kernel in ("auto", "fastest") and graph_step.supports(model, cache):
            self._functions["graph"] = graph_step.GraphStep(model, cache)
        if kernel in ("auto", "fastest"):
            self._functions["layer"] = self._through_layers("layer")
            self._functions["attention"] = self._through_layers(kernel)
        elif not self._functions:
            self._functions[kernel] = self._through_layers(kernel)
        self.chosen: dict[int, str] = {}
        """The chosen implementations, by the largest cache length for which each is used."""
        self._has_started = False

    def __call__(
        self,
        tokens: Int[Tensor, " rows"],
        attention_mask: Bool[Tensor, "rows tokens"] | None = None,
    ) -> Float[Tensor, "rows vocabulary"]:
        """Return the logits after one new token per row, and add the tokens to the cache."""
        most = max(LEAST_TIMED, 1 << self.cache.length.bit_length())
        if not self._is_timed or most not in self.chosen:
            self.chosen[most] = self._choose(most, tokens, attention_mask)
        return self._functions[self.chosen[most]](tokens, attention_mask)

    def _through_layers(self, kernel: str) -> StepFunction:
        def step(tokens: Tensor, mask: Tensor | None) -> Tensor:
            cache = self.cache
            return self.model(tokens[:, None], cache=cache, kernel=kernel, attention_mask=mask)[
                :, -1
            ]

        return step

    def _choose(self, most: int, tokens: Tensor, mask: Tensor | None) -> str:
        if not self._has_started and "graph" in self._functions:
            self._has_started = True
            if not self._starts("graph", tokens, mask):
                del self._functions["graph"]
        if len(self._functions) == 1:
            return next(iter(self._functions))
        if not self._is_timed:
            if "step" in self._functions and tokens.shape[0] <= MOST_ROWS:
                return "step"
            if "graph" in self._functions:
                return "graph"
            # Without a kernel of its own, attention alone is not faster than the layers.
            return "attention" if tokens.is_cuda or library() is not None else "layer"
        if not all(layer.can_undo(1) for layer in self.cache.layers):
            # The cache could not be restored after a timed step.
            return next(iter(self._functions))
        kind = f"step, {self._describe()}, rows {tokens.shape[0]}, tokens {most}"
        return choose_once(kind, tuple(self._functions), lambda: self._time(tokens, mask))

    def _starts(self, name: str, tokens: Tensor, mask: Tensor | None) -> bool:
        """Return whether an implementation completes a step; the step is undone."""
        length = self.cache.length
        try:
            self._functions[name](tokens, mask)
        except RuntimeError as error:
            warnings.warn(f"decoding goes without {name!r}: {error}", stacklevel=2)
            return False
        finally:
            self.cache.crop(length)
        return True

    def _time(self, tokens: Tensor, mask: Tensor | None) -> str:
        """Return the name of the fastest implementation; the cache is unchanged afterwards."""
        length, best = self.cache.length, dict.fromkeys(self._functions, float("inf"))
        for turn in range(ROUNDS + 1):
            for name, step in self._functions.items():
                start = read_clock(tokens.device)
                step(tokens, mask)
                taken = read_clock(tokens.device) - start
                self.cache.crop(length)
                if turn:
                    # The first call may compile, time kernels and allocate.
                    best[name] = min(best[name], taken)
        return min(best, key=lambda name: best[name])

    def _describe(self) -> str:
        config, options = self.model.config, self.cache.options
        weight = next(self.model.parameters())
        parts = {
            "device": describe_device(weight.device),
            "dtype": str(weight.dtype).removeprefix("torch."),
            "parameters": sum(part.numel() for part in self.model.parameters()),
            "layers": len(config.layers),
            "width": config.d_model,
            "layout": options.layout,
            "storage": options.storage,
            "threads": torch.get_num_threads(),
        }
        return ", ".join(f"{name} {part}" for name, part in parts.items())
