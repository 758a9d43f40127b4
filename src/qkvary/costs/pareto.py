"""Pareto dominance of points whose coordinates should all be small."""

from collections.abc import Sequence


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether ``one`` is nowhere larger than ``other`` and smaller in some coordinate.

    If a coordinate should be large, the caller must pass its negative.
    """
    pairs = list(zip(one, other, strict=True))
    return all(own <= its for own, its in pairs) and any(own < its for own, its in pairs)
