"""Runs a rewrite and measures how much the logits change, before anything is written."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.checkpoints.models import build_model
from qkvary.checkpoints.structure import check_structure
from qkvary.conversions.catalog import load_rewrite
from qkvary.conversions.draft import Conditioning, RewriteOptions, make_draft
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError

MOST_DIFFERENCE = 1e-9
"""Logits count as equal if their relative difference in float64 is at most this."""
_ROWS, _TOKENS = 2, 128
"""Number and maximum length of the sequences of random tokens on which logits are compared."""


class LogitDifference(NamedTuple):
    """The difference between the logits of two networks on the same tokens."""

    dtype: str
    largest: float
    relative: float
    """``largest`` divided by the root mean square of the original's logits; 0 if all are 0."""
    changed: float
    """The share of positions at which the two networks predict different next tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """The result of a rewrite: both networks, the theorem, its conditions and logit differences."""

    name: str
    original: LanguageModel
    network: LanguageModel
    """The rewritten network, in the number format and on the device of the original."""
    statement: str
    conditions: tuple[str, ...]
    conditioning: tuple[Conditioning, ...]
    exact: LogitDifference
    """The difference between the logits of both networks, computed in float64."""
    stored: LogitDifference
    """The same difference, computed in the number format of the original."""
    tokens: int
    notes: tuple[str, ...]


def run_rewrite(name: str, network: LanguageModel, options: RewriteOptions) -> Rewriting:
    """Return a rewritten copy of a network, and how much its logits differ from the original's.

    Raises:
        UsageError: if the rewrite is unknown, its conditions do not hold, or it changes logits by
            more than rounding.
    """
    check_structure(network)
    dtype = network.embedding.dtype
    found = load_rewrite(name)(make_draft(network), options)
    exact = build_model(found.config, found.weights, None, "the rewritten network").network
    double = LanguageModel(network.config).double().eval()
    double.load_state_dict(network.state_dict())
    shape = (_ROWS, min(_TOKENS, network.config.max_tokens))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(network.config.vocabulary, shape, generator=generator)
    expected = _read(double, tokens)
    difference = measure_difference(expected, _read(exact, tokens), torch.float64)
    # Written so that NaN is refused.
    if not difference.relative <= MOST_DIFFERENCE:
        raise UsageError(
            f"expected {name} to change the logits by at most {MOST_DIFFERENCE:.0e} in float64, "
            f"got a relative difference of {difference.relative:.1e}; nothing is written"
        )
    made = exact.to(network.embedding.device, dtype)
    stored = measure_difference(_read(network, tokens), _read(made, tokens), dtype)
    return Rewriting(
        name=name,
        original=network,
        network=made,
        statement=found.statement,
        conditions=found.conditions,
        conditioning=found.conditioning,
        exact=difference,
        stored=stored,
        tokens=tokens.numel(),
        notes=found.notes,
    )


def measure_difference(
    expected: Float[Tensor, "*batch vocabulary"],
    found: Float[Tensor, "*batch vocabulary"],
    dtype: torch.dtype,
) -> LogitDifference:
    """Return the difference between two tensors of logits."""
    largest = float((found - expected).abs().max())
    size = float(expected.square().mean().sqrt())
    changed = found.argmax(dim=-1) != expected.argmax(dim=-1)
    return LogitDifference(
        dtype=str(dtype).removeprefix("torch."),
        largest=largest,
        relative=largest / size if size else (math.inf if largest else 0.0),
        changed=float(changed.double().mean()),
    )


def _read(network: LanguageModel, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return network(tokens.to(network.embedding.device)).double().cpu()
