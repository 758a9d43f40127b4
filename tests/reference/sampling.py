"""Filters of logits for one row, in plain loops: sets of tokens that are kept."""

import math
from collections.abc import Sequence


def ranking(logits: Sequence[float]) -> list[int]:
    """Tokens from the most probable on; of equal ones the lower number first."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def probabilities(logits: Sequence[float]) -> list[float]:
    """The softmax."""
    highest = max(logits)
    odds = [math.exp(value - highest) for value in logits]
    return [value / math.fsum(odds) for value in odds]


def top_k(logits: Sequence[float], count: int) -> set[int]:
    """The tokens of the highest logits."""
    return set(ranking(logits)[:count])


def top_p(logits: Sequence[float], share: float) -> tuple[set[int], float]:
    """The fewest that hold the share, and how near the decision was."""
    chances = probabilities(logits)
    kept: set[int] = set()
    held, near = 0.0, math.inf
    for token in ranking(logits):
        if kept:
            near = min(near, abs(held - share))
        if kept and held >= share:
            break
        kept.add(token)
        held += chances[token]
    return kept, near


def min_p(logits: Sequence[float], share: float) -> tuple[set[int], float]:
    """Those with the share of the most probable one's probability, and how near it was."""
    chances = probabilities(logits)
    limit = share * max(chances)
    kept = {token for token, chance in enumerate(chances) if chance >= limit}
    best = ranking(logits)[0]
    others = [abs(chance - limit) for token, chance in enumerate(chances) if token != best]
    return kept | {best}, min(others, default=math.inf)


def penalised(logits: Sequence[float], occurred: set[int], penalty: float) -> list[float]:
    """Tokens that occurred made less probable."""
    found: list[float] = []
    for token, value in enumerate(logits):
        if token not in occurred:
            found.append(value)
        elif value > 0:
            found.append(value / penalty)
        else:
            found.append(value * penalty)
    return found
