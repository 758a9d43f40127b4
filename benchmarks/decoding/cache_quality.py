"""The cost of quantizing the cache: a text decoded with a quantized and with an exact cache."""

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
"""Windows per batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheQuality:
    """The cost of one cache on one text."""

    windows: int
    """The number of windows, each decoded from an empty cache."""
    context: int
    """Tokens per window."""
    median_kl: float
    """The median over positions of ``sum p log(p / p')``, in nats; p is exact."""
    p99_kl: float
    """The 99th percentile."""
    mean_kl: float
    """The mean."""
    loss: float
    """Nats per token."""
    plain_loss: float
    """Nats per token with the exact cache."""
    top1: float
    """The share of positions with the same most probable token."""
    kl_slope: float
    """The mean change of the divergence per 1,000 positions, by least squares over the later half
    of each window, where the first blocks are quantized and keys are many."""
    kl_slope_error: float
    """The standard error over windows; infinite for a single window."""
    bits_per_token: tuple[float, ...]
    """Bits per token and layer at the end of a window, including scales."""
    bits_per_number: float
    """Bits per stored number over all layers."""

    @property
    def perplexity_change(self) -> float:
        """The relative increase of the perplexity over the exact cache."""
        return math.expm1(self.loss - self.plain_loss)

    @property
    def drifts(self) -> bool:
        """Whether the divergence grows with the position by more than twice the standard error."""
        return self.kl_slope > 2 * self.kl_slope_error

    @property
    def meets_int8_gate(self) -> bool:
        """Whether the limits for 8-bit codes and a trained network are met."""
        return (
            self.median_kl <= 1e-3
            and self.p99_kl <= 1e-2
            and self.perplexity_change <= 0.002
            and self.top1 >= 0.99
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMeasurement:
    """A cache and its cost."""

    options: CacheOptions
    """The cache."""
    quality: CacheQuality
    """The cost."""


def measure_text(
    model: Decoder,
    tokens: Sequence[int],
    caches: Sequence[CacheOptions],
    *,
    contexts: Sequence[int],
    most_tokens: int,
) -> Iterator[CacheMeasurement]:
    """Measure caches on the beginning of a text, for each window length.

    Args:
        model: The network, in evaluation mode.
        tokens: The text.
        caches: The caches to compare.
        contexts: Tokens per window.
        most_tokens: The maximum number of tokens to decode per cache; at least one window.

    Raises:
        ValueError: before any measurement, if a window is longer than the text or the network, or
            a block does not fit a window of the network.
    """
    cut = [
        cut_windows(tokens, context=context, most=max(1, most_tokens // max(1, context)))
        for context in contexts
    ]
    for context, options in product(contexts, caches):
        KVCache(model.config.layers, max_tokens=context, options=options)
    for windows in cut:
        _check_length(model, windows)
    for windows in cut:
        meter = QualityMeter(model, windows)
        for options in caches:
            yield CacheMeasurement(options=options, quality=meter.measure(options))


def cut_windows(tokens: Sequence[int], *, context: int, most: int) -> Int[Tensor, "windows _"]:
    """Return up to ``most`` adjacent windows of ``context`` tokens, each with the next token.

    Raises:
        ValueError: if the text is shorter than one window, or a window has no tokens.
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
    """Measures caches of one network on one text; the exact predictions are computed once."""

    def __init__(self, model: Decoder, windows: Int[Tensor, "windows _"]) -> None:
        """Compute the exact predictions.

        Args:
            model: The network, in evaluation mode.
            windows: Tokens; the last of each window is only a target.

        Raises:
            ValueError: if the network is in training mode or shorter than a window.
        """
        if model.training:
            raise ValueError("expected a model in evaluation mode, got one that is training")
        _check_length(model, windows)
        self._model = model
        self._parts = windows.to(device_of(model)).split(ROWS_AT_ONCE)
        with torch.inference_mode():
            self._plain = [_log_probabilities(model(part[:, :-1])) for part in self._parts]

    def measure(self, options: CacheOptions) -> CacheQuality:
        """Decode the text with a cache and compare the predictions.

        Raises:
            ValueError: if the network does not support the cache.
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
        """Nats per token with the exact cache."""
        targets = torch.cat([part[:, 1:].flatten() for part in self._parts])
        return F.nll_loss(torch.cat([part.flatten(0, 1) for part in self._plain]), targets).item()

    @torch.inference_mode()
    def _compare(self, tokens: Tensor, plain: Tensor, options: CacheOptions) -> "_Comparison":
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
        return _Comparison(divergence=divergence, loss=loss, agrees=agrees, held=held)

    @torch.inference_mode()
    def _numbers_per_token(self, options: CacheOptions) -> float:
        plain = CacheOptions(layout=options.layout)
        cache = KVCache(self._model.config.layers, options=plain)
        self._model(self._parts[0][:1, :1], cache=cache)
        return cache.nbytes / next(self._model.parameters()).element_size()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """Windows decoded with a cache."""

    divergence: Float[Tensor, "windows context"]
    loss: Float[Tensor, "windows context"]
    agrees: Bool[Tensor, "windows context"]
    held: list[int]
    """Bytes per layer at the end."""


def _log_probabilities(logits: Tensor) -> Float[Tensor, "..."]:
    # In 64 bits: divergences of a millionth are differences of numbers near ten.
    return torch.log_softmax(logits.double(), dim=-1)


def _quantile(values: Tensor, share: float) -> float:
    """Return the smallest value that is at least as large as this share of the values."""
    rank = max(1, math.ceil(share * values.numel()))
    return values.flatten().kthvalue(rank).values.item()


def _fit_slope(kl: Float[Tensor, "windows context"]) -> tuple[float, float]:
    """Return the mean least-squares slope over late positions, and its standard error."""
    late = kl[:, kl.shape[1] // 2 :]
    windows, positions = late.shape
    if positions < 2:
        return 0.0, math.inf
    position = torch.arange(positions, dtype=torch.float64, device=kl.device)
    centred = position - position.mean()
    slopes = (late * centred).sum(dim=1) / centred.square().sum()
    error = slopes.std().item() / math.sqrt(windows) if windows > 1 else math.inf
    return slopes.mean().item(), error
