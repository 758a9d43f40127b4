"""What rounding the cache costs: a text decoded token by token, beside the same without rounding.

Knows networks, caches and tokens. Does not know studies, files or what is printed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.arch.caches import CacheOptions
from qkvary.nn.cache import KVCache
from qkvary.nn.decoder import Decoder, device_of

ROWS_AT_ONCE = 32
"""Windows that are decoded together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityGate:
    """What a storage has to reach on held-out text."""

    median_kl: float
    """Nats, at most."""
    p99_kl: float
    """Nats, at most."""
    perplexity_change: float
    """At most, as a share."""
    top1: float
    """At least."""


INT8_GATE = QualityGate(median_kl=1e-3, p99_kl=1e-2, perplexity_change=0.002, top1=0.99)
"""Of codes of 8 bits, for a trained network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheQuality:
    """What one storage costs on one text."""

    windows: int
    """Pieces of the text, each decoded from an empty cache."""
    context: int
    """Tokens of each."""
    median_kl: float
    """Of the divergences ``sum p log(p / p')`` of all positions, in nats; p without rounding."""
    p99_kl: float
    """Their 99th percentile."""
    mean_kl: float
    """Their mean."""
    loss: float
    """Nats per token."""
    plain_loss: float
    """The same without rounding."""
    top1: float
    """Share of positions at which the most probable token is the same."""
    kl_slope: float
    """Change of the divergence over 1,000 positions, by least squares in the later half of each
    window, where first blocks are closed and keys are many; the mean."""
    kl_slope_error: float
    """Its standard error over windows; nothing is known of a single window."""
    bits_per_token: tuple[float, ...]
    """Bits that each layer holds of a token at the end of a window, scales included."""
    bits_per_number: float
    """The same of one number, all layers together."""

    @property
    def perplexity_change(self) -> float:
        """How much higher the perplexity is than without rounding, as a share."""
        return math.expm1(self.loss - self.plain_loss)

    @property
    def drifts(self) -> bool:
        """Whether the divergence rises with the position by more than twice its standard error."""
        return self.kl_slope > 2 * self.kl_slope_error

    @property
    def meets_int8_gate(self) -> bool:
        """Whether codes of 8 bits would do what they promise."""
        return self.meets(INT8_GATE)

    def meets(self, gate: QualityGate) -> bool:
        """Whether all that a gate asks is reached."""
        return (
            self.median_kl <= gate.median_kl
            and self.p99_kl <= gate.p99_kl
            and self.perplexity_change <= gate.perplexity_change
            and self.top1 >= gate.top1
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A storage and what it costs."""

    options: CacheOptions
    """The storage."""
    quality: CacheQuality
    """What it costs."""


def measure_text(
    model: Decoder,
    tokens: Sequence[int],
    ways: Sequence[CacheOptions],
    *,
    contexts: Sequence[int],
    most_tokens: int,
) -> Iterator[Measured]:
    """Measure storages on the first tokens of a text, for each length of window.

    Args:
        model: In evaluation mode.
        tokens: Of the text.
        ways: The storages.
        contexts: Tokens of a window.
        most_tokens: Tokens that are decoded at most with each, at least one window.

    Raises:
        ValueError: if a window is longer than the text or the network, or a block does not fit a
            window of the network; before anything is measured.
    """
    cut = [
        cut_windows(tokens, context=context, most=max(1, most_tokens // max(1, context)))
        for context in contexts
    ]
    for context, options in product(contexts, ways):
        KVCache(model.config.layers, max_tokens=context, options=options)
    for windows in cut:
        _check_length(model, windows)
    for windows in cut:
        meter = QualityMeter(model, windows)
        for options in ways:
            yield Measured(options=options, quality=meter.measure(options))


def cut_windows(tokens: Sequence[int], *, context: int, most: int) -> Int[Tensor, "windows _"]:
    """The first windows of ``context`` tokens that do not overlap, each with the token behind it.

    Raises:
        ValueError: if the text is shorter than one, or they have no tokens.
    """
    if context < 1:
        raise ValueError(f"expected windows of at least 1 token, got {context}")
    count = min(most, (len(tokens) - 1) // context)
    if count < 1:
        raise ValueError(
            f"expected a text of more than {context} tokens for one window, got {len(tokens)}"
        )
    flat = torch.tensor(tokens[: count * context + 1], dtype=torch.long)
    return flat.unfold(0, context + 1, context)


def _check_length(model: Decoder, windows: Tensor) -> None:
    limit = model.config.max_tokens
    if windows.shape[1] - 1 > limit:
        raise ValueError(f"expected windows of at most {limit} tokens, got {windows.shape[1] - 1}")


class QualityMeter:
    """Measures storages of one network on one text; what is without rounding is computed once."""

    def __init__(self, model: Decoder, windows: Int[Tensor, "windows _"]) -> None:
        """Decode without rounding.

        Args:
            model: In evaluation mode.
            windows: Tokens, the last of each a target only.

        Raises:
            ValueError: if the network is training or shorter than a window.
        """
        if model.training:
            raise ValueError("expected a model in evaluation mode, got one that is training")
        _check_length(model, windows)
        self._model = model
        self._parts = windows.to(device_of(model)).split(ROWS_AT_ONCE)
        with torch.inference_mode():
            self._plain = [_log_probabilities(model(part[:, :-1])) for part in self._parts]

    def measure(self, options: CacheOptions) -> CacheQuality:
        """Decode the text with a cache and compare.

        Raises:
            ValueError: if the network cannot have such a cache.
        """
        compared = [
            self._compare(tokens, plain, options)
            for tokens, plain in zip(self._parts, self._plain, strict=True)
        ]
        kl = torch.cat([part.divergence for part in compared]).clamp_min(0.0)
        slope, error = _fit_slope(kl)
        bits = [
            8 * sum(layer) / kl.numel()
            for layer in zip(*(part.held for part in compared), strict=True)
        ]
        return CacheQuality(
            windows=len(kl),
            context=kl.shape[1],
            median_kl=_quantile(kl, 0.5),
            p99_kl=_quantile(kl, 0.99),
            mean_kl=kl.mean().item(),
            loss=torch.cat([part.loss for part in compared]).mean().item(),
            plain_loss=self.plain_loss,
            top1=torch.cat([part.agrees for part in compared]).double().mean().item(),
            kl_slope=1_000 * slope,
            kl_slope_error=1_000 * error,
            bits_per_token=tuple(bits),
            bits_per_number=sum(bits) / self._numbers_per_token(options),
        )

    @property
    def plain_loss(self) -> float:
        """Nats per token without rounding."""
        targets = torch.cat([part[:, 1:].flatten() for part in self._parts])
        return F.nll_loss(torch.cat([part.flatten(0, 1) for part in self._plain]), targets).item()

    @torch.inference_mode()
    def _compare(self, tokens: Tensor, plain: Tensor, options: CacheOptions) -> "_Compared":
        context = tokens.shape[1] - 1
        cache = KVCache(self._model.config.layers, max_tokens=context, options=options)
        steps: list[tuple[Tensor, Tensor, Tensor]] = []
        for position in range(context):
            logits = self._model(tokens[:, position : position + 1], cache=cache)
            found, expected = _log_probabilities(logits[:, 0]), plain[:, position]
            divergence = (expected.exp() * (expected - found)).sum(dim=-1)
            loss = F.nll_loss(found, tokens[:, position + 1], reduction="none")
            steps.append((divergence, loss, expected.argmax(dim=-1) == found.argmax(dim=-1)))
        divergence, loss, agrees = (torch.stack(part, dim=1) for part in zip(*steps, strict=True))
        held = [layer.nbytes for layer in cache.layers]
        return _Compared(divergence=divergence, loss=loss, agrees=agrees, held=held)

    @torch.inference_mode()
    def _numbers_per_token(self, options: CacheOptions) -> float:
        """Numbers that all layers keep of a token."""
        plain = CacheOptions(layout=options.layout)
        cache = KVCache(self._model.config.layers, options=plain)
        self._model(self._parts[0][:1, :1], cache=cache)
        return cache.nbytes / next(self._model.parameters()).element_size()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Some windows, decoded with a cache."""

    divergence: Float[Tensor, "windows context"]
    loss: Float[Tensor, "windows context"]
    agrees: Bool[Tensor, "windows context"]
    held: list[int]
    """Bytes of each layer in the end."""


def _log_probabilities(logits: Tensor) -> Float[Tensor, "..."]:
    # In 64 bits: divergences of a millionth are differences of numbers near ten.
    return torch.log_softmax(logits.double(), dim=-1)


def _quantile(values: Tensor, share: float) -> float:
    """The smallest value that so many are not above."""
    rank = max(1, math.ceil(share * values.numel()))
    return values.flatten().kthvalue(rank).values.item()


def _fit_slope(kl: Float[Tensor, "windows context"]) -> tuple[float, float]:
    """The mean slope of the windows' least-squares lines over late positions, and its error."""
    late = kl[:, kl.shape[1] // 2 :]
    windows, positions = late.shape
    if positions < 2:
        return 0.0, math.inf
    position = torch.arange(positions, dtype=torch.float64, device=kl.device)
    centred = position - position.mean()
    slopes = (late * centred).sum(dim=1) / centred.square().sum()
    error = slopes.std().item() / math.sqrt(windows) if windows > 1 else math.inf
    return slopes.mean().item(), error
