"""How a network takes one more token: as a whole call of the native library, or layer by layer.

What is fastest depends on the machine, the network and the length of what is stored. Where the
owner of the cache leaves it open, it is timed whenever the length passes a power of two, and kept.
"""

import time
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.nn.cache import KVCache
from qkvary.nn.decoder import Decoder
from qkvary.nn.decoding import step as native_step
from qkvary.nn.decoding.choice import choose_once
from qkvary.nn.language_model import LanguageModel

ROUNDS = 6
"""Of which the quickest counts: what else the machine does makes steps slower, never faster."""
LEAST_TIMED = 64
"""Tokens stored up to which one choice holds."""

Form = Callable[[Tensor, Tensor | None], Tensor]


class Stepper:
    """Takes one token a row through a network and its cache.

    ``native`` is one call where the network and the cache are plain enough, ``layer`` runs the
    layers as without a cache, and the others run them with a kernel for decoding. ``auto`` is the
    fastest of these.
    """

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        """Find what takes the network and its cache.

        Args:
            model: In evaluation mode.
            cache: Has seen the prompts; its options name the kernel.
        """
        self.model, self.cache = model, cache
        kernel = cache.layers[0].kernel
        self._forms: dict[str, Form] = {}
        if (
            kernel in ("auto", "native")
            and isinstance(model, LanguageModel)
            and native_step.supports(model, cache)
        ):
            self._forms["step"] = native_step.NativeStep(model, cache)
        if kernel == "auto":
            self._forms["layer"] = self._through_layers("layer")
            self._forms["attention"] = self._through_layers("auto")
        elif not self._forms:
            self._forms[kernel] = self._through_layers(kernel)
        self._chosen: dict[int, str] = {}

    @property
    def chosen(self) -> dict[int, str]:
        """What answered, by the largest number of stored tokens that it answers for."""
        return dict(self._chosen)

    def __call__(
        self,
        tokens: Int[Tensor, " rows"],
        attention_mask: Bool[Tensor, "rows tokens"] | None = None,
    ) -> Float[Tensor, "rows vocabulary"]:
        """The logits behind one new token a row, which the cache has seen then.

        Args:
            tokens: The new tokens.
            attention_mask: False for padding, over the tokens seen and the new ones.
        """
        most = max(LEAST_TIMED, 1 << self.cache.length.bit_length())
        if most not in self._chosen:
            self._chosen[most] = self._choose(most, tokens, attention_mask)
        return self._forms[self._chosen[most]](tokens, attention_mask)

    def _through_layers(self, kernel: str) -> Form:
        def step(tokens: Tensor, mask: Tensor | None) -> Tensor:
            for layer in self.cache.layers:
                layer.kernel = kernel
            return self.model(tokens[:, None], cache=self.cache, attention_mask=mask)[:, -1]

        return step

    def _choose(self, most: int, tokens: Tensor, mask: Tensor | None) -> str:
        if len(self._forms) == 1:
            return next(iter(self._forms))
        if not all(layer.can_undo(1) for layer in self.cache.layers):
            # Nothing could be timed without losing what the cache holds.
            return next(iter(self._forms))
        kind = f"step, {self._describe()}, rows {tokens.shape[0]}, tokens {most}"
        return choose_once(kind, tuple(self._forms), lambda: self._time(tokens, mask))

    def _time(self, tokens: Tensor, mask: Tensor | None) -> str:
        """The form with the shortest step; the cache is afterwards what it was."""
        length, best = self.cache.length, dict.fromkeys(self._forms, float("inf"))
        for turn in range(ROUNDS + 1):
            for name, form in self._forms.items():
                start = time.perf_counter()
                form(tokens, mask)
                taken = time.perf_counter() - start
                self.cache.crop(length)
                if turn:
                    # A first call may build, time kernels and allocate.
                    best[name] = min(best[name], taken)
        return min(best, key=lambda name: best[name])

    def _describe(self) -> str:
        config, options = self.model.config, self.cache.options
        weight = next(self.model.parameters())
        parts = {
            "device": weight.device.type,
            "dtype": str(weight.dtype).removeprefix("torch."),
            "parameters": sum(part.numel() for part in self.model.parameters()),
            "layers": len(config.layers),
            "width": config.d_model,
            "layout": options.layout,
            "storage": options.storage,
            "threads": torch.get_num_threads(),
        }
        return ", ".join(f"{name} {part}" for name, part in parts.items())
