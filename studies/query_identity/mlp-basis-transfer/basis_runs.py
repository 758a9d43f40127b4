"""The runs of the transfer of a basis: the readings of its target, and what came out of each.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", section 8.3.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from qkvary.arch.canonical import ADDED_LATER, canonical_json, stored
from qkvary.studies.results.statistics import Estimate, paired_t

VERSION = 1
"""Raised by hand when a change of the code changes the numbers of a run."""
PUBLISHED_LINEAR = (0.09, 0.10)
"""Relative error of the best linear map, as printed."""
WIDENING = 4
"""Inner width over the width."""


# ---- what is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One reading of the target: a linear map of x plus a two-layer GELU network of x."""

    formula: str
    keeps_input: bool
    """Whether x itself is added to x M."""
    first_variance: float
    """Variance of what the nonlinearity is given, for x of variance 1."""
    second_variance: float
    """Variance of a sum of h products of independent inner values of variance 1 and W2."""
    biases: bool = False
    """Whether the network has biases, drawn as torch does."""

    @property
    def linear_variance(self) -> float:
        """Variance of a channel of the linear part."""
        return 2.0 if self.keeps_input else 1.0


TARGETS = {
    "skip": Target(
        formula="x + x M + GELU(x W1) W2; M over the root of d, W1 and W2 over that of h",
        keeps_input=True,
        first_variance=1 / WIDENING,
        second_variance=1.0,
    ),
    "torch": Target(
        formula="x M + MLP(x); M over the root of d, the network drawn as torch does, biases too",
        keeps_input=False,
        first_variance=1 / 3,
        second_variance=1 / 3,
        biases=True,
    ),
    "plain": Target(
        formula="x M + GELU(x W1) W2; M and W1 over the root of d, W2 over that of h",
        keeps_input=False,
        first_variance=1.0,
        second_variance=1.0,
    ),
}
"""Every reading, the ones whose linear error is near the printed one first."""


@stored("BasisRun")
@dataclass(frozen=True, slots=True, kw_only=True)
class BasisRun:
    """One student on one target."""

    target: str
    d: int
    """Width of input and output."""
    biases: bool
    """Whether student and linear map have biases."""
    seed: int
    """The seed of the target, the student and every batch."""
    steps: int = 4_000
    """The training steps of the student; the paper has 20,000."""
    batch: int = 512
    """Fresh inputs a step; the paper has 65,536."""
    learning_rate: float = 1e-2
    """Peak of the cosine, the better of two that were tried with another seed; the paper's is
    lost."""
    weight_decay: float = 0.01
    """The weight decay of AdamW; the paper's is not known."""
    gradient_clip: float = 3.0
    """As published."""
    linear_samples: int = 500_000
    """As published."""
    ridge: float = 1e-3
    """Added to the diagonal of the sum of x x^T; the paper's is lost."""
    test_samples: int = 65_536
    """Fresh inputs that both are scored on."""
    device: str = field(default="cpu", metadata=ADDED_LATER)
    """The device of the training. GPU and CPU draw different inputs from the same seed."""

    @property
    def key(self) -> str:
        """The sha256 that names its file."""
        text = f"basis transfer {VERSION}\n{canonical_json(self)}\n"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def parameters(self) -> int:
        """The parameters of the student."""
        return 2 * WIDENING * self.d**2 + self.biases * (WIDENING + 1) * self.d

    @property
    def reading(self) -> str:
        """The target and the biases."""
        return f"{self.target} {'with' if self.biases else 'without'} biases"


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisRecord:
    """The result of one run."""

    run: BasisRun
    figures: Mapping[str, float]
    """``student_error`` and ``linear_error`` (roots of squared errors over squared outputs),
    ``half_way_error`` of the student after half of its steps, ``student_cosine`` and
    ``linear_cosine`` (means over inputs), ``seconds``."""


def plan_runs(widths: Sequence[int], seeds: Sequence[int], steps: int) -> list[BasisRun]:
    """Returns every target with and without biases at every width; seeds outermost."""
    return [
        BasisRun(target=target, d=d, biases=biases, seed=seed, steps=steps)
        for seed in seeds
        for d in widths
        for target in TARGETS
        for biases in (False, True)
    ]


def linear_error(target: Target, *, biases: bool) -> float:
    """Returns the error of the best linear map, for Gaussian inputs and infinite width.

    Of a GELU of variance s^2 a linear map reaches ``E[u g(u)] / s^2 * u``, with biases also the
    mean; what is left is the error. All random matrices are independent, so that variances add.
    """
    variance = target.first_variance
    mean, square, slope = _gelu_moments(math.sqrt(variance))
    rest = square - slope**2 * variance - (mean**2 if biases else 0.0)
    whole = target.linear_variance + target.second_variance * square
    return math.sqrt(target.second_variance * rest / whole)


def _gelu_moments(deviation: float) -> tuple[float, float, float]:
    """Mean and mean square of GELU(u), and E[u GELU(u)] / s^2, for u of this deviation."""
    steps, span = 4_000, 10.0
    mean = square = product = 0.0
    for index in range(steps + 1):
        z = -span + 2 * span * index / steps
        weight = math.exp(-z * z / 2) * (2 * span / steps) / math.sqrt(2 * math.pi)
        u = deviation * z
        value = 0.5 * u * (1 + math.erf(u / math.sqrt(2)))
        mean += weight * value
        square += weight * value**2
        product += weight * u * value
    return mean, square, product / deviation**2


# ---- what was found


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisSummary:
    """One target at one width, over seeds."""

    run: BasisRun
    """The first of them."""
    seeds: int
    student: Estimate
    """Relative error."""
    half_way: Estimate
    """The same after half of the steps."""
    linear: Estimate
    """Relative error of the best linear map."""
    cosine: Estimate
    """Cosine similarity of the student's outputs."""
    analytic: float
    """Error of the best linear map for infinite width."""

    @property
    def agrees(self) -> bool:
        """Whether the linear error for infinite width is a printed one, to the percent."""
        low, high = PUBLISHED_LINEAR
        return low - 0.005 <= self.analytic < high + 0.005


def summarise(records: Sequence[BasisRecord]) -> list[BasisSummary]:
    """Returns one summary for each target, choice of biases and width."""
    groups: dict[tuple[int, bool, int], list[BasisRecord]] = {}
    for record in records:
        run = record.run
        place = (list(TARGETS).index(run.target), run.biases, run.d)
        groups.setdefault(place, []).append(record)
    return [_summarise(groups[place]) for place in sorted(groups)]


def _summarise(group: Sequence[BasisRecord]) -> BasisSummary:
    run = group[0].run

    def estimate(name: str) -> Estimate:
        return paired_t([record.figures[name] for record in group])

    return BasisSummary(
        run=run,
        seeds=len(group),
        student=estimate("student_error"),
        half_way=estimate("half_way_error"),
        linear=estimate("linear_error"),
        cosine=estimate("student_cosine"),
        analytic=linear_error(TARGETS[run.target], biases=run.biases),
    )


def to_json(record: BasisRecord) -> dict[str, Any]:
    """Returns JSON-ready data."""
    return {"version": VERSION, "run": asdict(record.run), "figures": dict(record.figures)}


def from_json(data: Mapping[str, Any]) -> BasisRecord:
    """Returns what ``to_json`` was given.

    Raises:
        ValueError: if it is something else.
    """
    try:
        if data["version"] != VERSION:
            raise ValueError(f"expected version {VERSION}, got {data['version']}")
        run = BasisRun(**data["run"])
        figures = {str(name): float(value) for name, value in data["figures"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected a record of a transfer of a basis, got none: {error}") from None
    return BasisRecord(run=run, figures=figures)
