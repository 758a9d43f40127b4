"""The settings of an analysis. Never imports torch."""

from dataclasses import dataclass
from pathlib import Path

from qkvary.text.numbers import check_seed

DEFAULT_TOKENS = 10_240
FEWEST_TOKENS = 2
"""Minimum tokens per window: one to read and one to predict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSettings:
    """The text of an analysis, and how it is read."""

    text: tuple[Path, ...]
    """Files or folders of .txt and .jsonl."""
    tokens: int = DEFAULT_TOKENS
    """The maximum number of tokens to read."""
    context: int | None = None
    """Maximum tokens per window; ``None`` for the network's maximum, but at most 1,024 and half of
    ``tokens``."""
    seed: int = 0
    """The seed of random weights, drawn tokens and drawn keys."""

    def __post_init__(self) -> None:
        if not self.text:
            raise ValueError("expected a text to read, got none")
        for name in ("tokens", "context"):
            count: int | None = getattr(self, name)
            if count is not None and count < FEWEST_TOKENS:
                raise ValueError(f"expected {name} of at least {FEWEST_TOKENS}, got {count}")
        check_seed(self.seed)
