"""Steps and tokens of the published training runs, from the public code's settings."""

import math
from dataclasses import dataclass

from qkvary.papers.derivation import Derivation

BUDGET = 10 * 10**9
"""The training tokens of "Do Transformers Need Three Projections?", printed as ``~10B``."""
ROUNDING = 0.05
"""Largest relative error of ``~10B``: the exact number is between 9.5B and 10.5B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A published training run, described by the size of its batch."""

    sequences: int
    """Sequences per micro-batch on each device."""
    accumulated: int
    """Number of micro-batches per step."""
    devices: int
    """Number of devices per network."""
    context: int
    """Positions per sequence."""

    @property
    def tokens_per_step(self) -> int:
        """Number of positions per optimizer step, including padding."""
        return self.sequences * self.accumulated * self.devices * self.context

    @property
    def formula(self) -> str:
        """The formula for the tokens per step, as text."""
        parts = (self.sequences, self.accumulated, self.devices)
        return f"{' x '.join(map(str, parts))} x {self.context:,} tokens"


RUN_300M = Run(sequences=6, accumulated=24, devices=8, context=2048)
RUN_1200M = Run(sequences=2, accumulated=36, devices=8, context=2048)
RUN_124M = Run(sequences=12, accumulated=40, devices=1, context=1024)
"""The training runs of "[Key,Value] is probably all you need"."""


def derive_tokens(run: Run, steps: int, note: str = "") -> Derivation:
    """Derive the tokens of a run, in billions."""
    return Derivation(
        value=steps * run.tokens_per_step / 10**9,
        formula=f"{steps:,} steps x {run.formula}",
        convention="positions, padding included; settings of the public code",
        note=note,
    )


def derive_steps(run: Run, note: str = "") -> Derivation:
    """Derive the number of whole steps in about 10^10 tokens."""
    steps = BUDGET / run.tokens_per_step
    return Derivation(
        value=math.floor(steps),
        formula=f"about 10^10 tokens / ({run.formula}), rounded down",
        convention="settings of the public code",
        spread=(steps * (1 - ROUNDING), steps * (1 + ROUNDING)),
        note=note,
    )
