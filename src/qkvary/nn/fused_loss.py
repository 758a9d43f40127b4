"""The head and its cross entropy, chunk by chunk, so that the full logits never exist at once.

Logits of 2,048 tokens over GPT-2's vocabulary take 412 MB, and a backward pass needs twice as much
again. Here the loss and its gradients are computed chunk by chunk; the tensors kept for the
backward pass have the sizes of the inputs. Independent of networks.

Source: the idea of computing gradients in the forward pass is from Hsu et al. 2024 (Liger Kernel).
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkvary.nn.linear import goes_to_onednn, linear, multiply_transposed

Features = Float[Tensor, "tokens d_model"]
Weight = Float[Tensor, "vocabulary d_model"]
Bias = Float[Tensor, " vocabulary"]
Targets = Int[Tensor, " tokens"]
_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]

IGNORE_INDEX = -100
"""The target of tokens that the loss ignores, as in ``torch.nn.functional.cross_entropy``."""

CHUNK_LOGITS = {"cpu": 3 * 2**22}
"""Maximum number of logits per chunk, by kind of device, as measured (docs/decisions/0011)."""
CHUNK_LOGITS_ELSEWHERE = 2**27
"""Maximum number of logits per chunk on other devices: 0.5 GiB in float32 keeps a GPU busy."""
CHUNK_MULTIPLE = 64
"""The number of tokens in a chunk is a multiple of this, which suits matmuls."""
ROWS_TOGETHER = 8192
"""Number of rows of the weight's gradient that are converted to another dtype at once."""


def linear_cross_entropy(
    features: Features, weight: Weight, bias: Bias | None, targets: Targets
) -> Float[Tensor, ""]:
    """Return the sum over counted tokens of ``cross_entropy(features W^T + b, targets)``.

    Gradients are computed together with the loss, and the backward pass only scales them. Gradients
    of gradients are refused. Under autocast, matmuls use autocast's dtype, and all else float32.
    Matmuls use float32 in place of float16, because the range of float16 is too small. The
    sum is in nats, in float64 for float64 inputs and otherwise in float32. A target of -100 does
    not count.
    """
    if not torch.is_grad_enabled():
        return _run(features, weight, bias, targets)[0].sum()
    return _Loss.apply(features, weight, bias, targets)


def linear_token_losses(
    features: Features, weight: Weight, bias: Bias | None, targets: Targets
) -> Float[Tensor, " tokens"]:
    """Return the loss of every token, without gradients. An ignored target has a loss of zero."""
    with torch.no_grad():
        return _run(features, weight, bias, targets)[0]


def smoothed_loss_sum(
    features: Features,
    weight: Weight,
    bias: Bias | None,
    targets: Targets,
    *,
    smoothing: float,
    excluded: int,
) -> Float[Tensor, ""]:
    """Return the sum over counted tokens of KL(smoothed target || softmax(features W^T + b)).

    With s the ``smoothing``, the smoothed target of a token t is 1 - s on t, 0 on the excluded
    token (padding), and c = s / (V - 2) on every other token. With logits z and their sum S,

        KL = (1-s) log(1-s) + s log c + logsumexp(z) - z_t + (s + c) z_t - c (S - z_excluded).

    Only ``logsumexp(z)`` needs all logits. The sum is in nats; a target of -100 does not count.
    """
    # Indices instead of masks: the host waits for a GPU only once.
    (counted,) = (targets != IGNORE_INDEX).nonzero(as_tuple=True)
    features, targets = features[counted], targets[counted]
    loss = linear_cross_entropy(features, weight, bias, targets)
    if not smoothing:
        return loss
    share = smoothing / (len(weight) - 2)
    constant = (1 - smoothing) * math.log1p(-smoothing) + smoothing * math.log(share)
    right = (features * weight[targets]).sum()
    others = features.sum(0) @ (weight.sum(0) - weight[excluded])
    if bias is not None:
        right = right + bias[targets].sum()
        others = others + len(targets) * (bias.sum() - bias[excluded])
    return loss + len(targets) * constant + (smoothing + share) * right - share * others


def choose_chunk(tokens: int, vocabulary: int, device_type: str) -> int:
    """Return a number of tokens per chunk that suits the device and makes chunks about equal."""
    logits = CHUNK_LOGITS.get(device_type, CHUNK_LOGITS_ELSEWHERE)
    most = max(logits // vocabulary, CHUNK_MULTIPLE)
    if tokens <= most:
        return max(tokens, 1)
    chunks = -(-tokens // most)
    return -(-tokens // (chunks * CHUNK_MULTIPLE)) * CHUNK_MULTIPLE


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
    ) -> Tensor:
        losses, gradients = _run(features, weight, bias, targets, ctx.needs_input_grad[:3])
        ctx.save_for_backward(*gradients)
        return losses.sum()

    # torch declares one gradient as the only argument.
    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (gradient,) = grad_outputs
        saved: _Gradients = ctx.saved_tensors
        # Not in place: the graph may be kept for another backward pass.
        scaled = (None if part is None else part * gradient.to(part.dtype) for part in saved)
        return *scaled, None


def _run(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    wanted: tuple[bool, bool, bool] = (False, False, False),
) -> tuple[Tensor, _Gradients]:
    """Return the losses, and the requested gradients of features, weight and bias."""
    if targets.shape != features.shape[:1]:
        raise ValueError(
            f"expected a target for each of {len(features)} tokens, got {list(targets.shape)}"
        )
    product, device = features.dtype, features.device.type
    chunk = choose_chunk(len(targets), len(weight), device)
    if torch.is_autocast_enabled(device) and product != torch.float64:
        product = torch.get_autocast_dtype(device)
    if product == torch.float16:
        product = torch.float32
    with torch.autocast(device, enabled=False):
        loss = _Chunks(features, weight, bias, product, wanted)
        losses = features.new_empty(len(targets), dtype=loss.wide)
        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            losses[rows] = loss.add(rows, targets[rows])
    by_features, by_weight, by_bias = loss.gradients
    by_weight = None if by_weight is None else by_weight.to(weight.dtype)
    by_bias = None if by_bias is None or bias is None else by_bias.to(bias.dtype)
    return losses, (by_features, by_weight, by_bias)


class _Chunks:
    """Computes the losses of chunks of tokens, and adds up their gradients."""

    def __init__(
        self,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        product: torch.dtype,
        wanted: tuple[bool, bool, bool],
    ) -> None:
        self.wide = wide = torch.promote_types(product, torch.float32)
        self._features, self._weight = features.to(product), weight.to(product)
        self._bias = None if bias is None else bias.to(product)
        by_features, by_weight, by_bias = wanted
        self.gradients: _Gradients = (
            torch.empty_like(features) if by_features else None,
            torch.zeros_like(weight, dtype=wide) if by_weight else None,
            torch.zeros_like(weight[:, 0], dtype=wide) if by_bias else None,
        )
        self._logits: Tensor | None = None
        self._wide_logits: Tensor | None = None
        self._part: Tensor | None = None

    def add(self, rows: slice, targets: Tensor) -> Tensor:
        """Return the losses of one chunk, and add its gradients to the sums so far.

        All chunks but the last use the same memory for their logits.
        """
        features = self._features[rows]
        narrow = logits = self._multiply(features)
        if narrow.dtype != self.wide:
            if self._wide_logits is None:
                self._wide_logits = torch.empty_like(narrow, dtype=self.wide)
            logits = self._wide_logits[: len(narrow)].copy_(narrow)
        counted = targets != IGNORE_INDEX
        right = torch.where(counted, targets, 0)[:, None]
        highest = logits.amax(dim=-1, keepdim=True)
        of_right = logits.gather(1, right)
        terms = logits.sub_(highest).exp_()
        total = terms.sum(dim=-1, keepdim=True)
        losses = (total.log() + highest - of_right)[:, 0].masked_fill_(~counted, 0.0)
        by_features, by_weight, by_bias = self.gradients
        if by_features is None and by_weight is None and by_bias is None:
            return losses
        # Softmax minus one-hot is (terms - total one-hot) / total. The division is per row, so it
        # can be applied later to a narrower tensor than the logits.
        terms.scatter_add_(1, right, -total)
        share = total.reciprocal_().masked_fill_(~counted[:, None], 0.0)
        if narrow is not terms:
            narrow.copy_(terms)
        if by_features is not None:
            by_features[rows] = linear(narrow, self._weight.t()) * share
        if by_weight is not None:
            self._add_by_weight(by_weight, narrow, (features * share).to(narrow.dtype))
        if by_bias is not None:
            by_bias.addmv_(terms.t(), share[:, 0])
        return losses

    def _multiply(self, features: Tensor) -> Tensor:
        """Return the logits of a chunk, in the memory of the previous logits if possible."""
        if goes_to_onednn(features, self._weight, self._bias):
            return linear(features, self._weight, self._bias)
        if self._logits is None:
            self._logits = features.new_empty(features.shape[0], self._weight.shape[0])
        out, weight = self._logits[: features.shape[0]], self._weight.t()
        if self._bias is None:
            return torch.mm(features, weight, out=out)
        return torch.addmm(self._bias, features, weight, out=out)

    def _add_by_weight(self, total: Tensor, terms: Tensor, features: Tensor) -> None:
        if goes_to_onednn(terms.t(), features.t()):
            total += multiply_transposed(terms, features)
            return
        if terms.dtype == total.dtype:
            # Not addmm_, because torch's flop counter does not know it.
            torch.addmm(total, terms.t(), features, out=total)
            return
        if self._part is None:
            self._part = torch.empty_like(total, dtype=terms.dtype)
        part = torch.mm(terms.t(), features, out=self._part)
        # Adding two dtypes is slow, and converting the whole tensor takes memory.
        for start in range(0, len(total), ROWS_TOGETHER):
            rows = slice(start, start + ROWS_TOGETHER)
            total[rows] += part[rows].to(total.dtype)
