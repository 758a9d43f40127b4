"""The bounds of the sizes of associative recall. Never imports numpy."""

LONGEST = 2**16
"""Maximum tokens of a sequence; 1,024 sequences are drawn at once."""
LARGEST_VOCABULARY = 2**24
MOST_TOKENS = 2**31
"""Maximum tokens of a split, which is kept in memory: 16 GiB with the indices of the pairs."""


def check_recall(
    *, length: int, pairs: int, vocabulary: int, power: float, counts: dict[str, int]
) -> None:
    """Refuse sizes for which no sequences exist, or that do not fit a machine.

    Args:
        length: Tokens per sequence.
        pairs: Key-value pairs per sequence.
        vocabulary: Distinct tokens.
        power: Exponent of the distances.
        counts: Numbers of sequences by name.

    Raises:
        ValueError: for the first condition that is not met.
    """
    if pairs < 1:
        raise ValueError(f"task recall: pairs must be at least 1, got {pairs}")
    fewest = {"length": 4 * pairs, "vocabulary": 2 * pairs + 2}
    most = {"length": LONGEST, "vocabulary": LARGEST_VOCABULARY}
    for name, given in {"length": length, "vocabulary": vocabulary}.items():
        if not fewest[name] <= given <= most[name]:
            raise ValueError(
                f"task recall: {name} must be {fewest[name]:,} to {most[name]:,} for {pairs:,} "
                f"pairs, got {given:,}"
            )
    if not 0.0 < power <= 1.0:
        raise ValueError(f"task recall: power must be above 0 and at most 1, got {power}")
    for name, given in counts.items():
        if not 1 <= given <= MOST_TOKENS // length:
            raise ValueError(
                f"task recall: {name} must be 1 to {MOST_TOKENS // length:,} for sequences of "
                f"{length:,} tokens, got {given:,}"
            )
