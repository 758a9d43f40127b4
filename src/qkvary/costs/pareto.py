"""Pareto dominance of points whose coordinates should all be small."""

from collections.abc import Sequence


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether ``one`` is smaller than ``other`` in a coordinate and larger in none.

    If a coordinate should be large, the caller must pass its negative.
    """
    pairs = list(zip(one, other, strict=True))
    return all(own <= its for own, its in pairs) and any(own < its for own, its in pairs)
