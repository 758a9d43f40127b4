"""Computes two BLEU scores: that of sacreBLEU, and that of paper 2's code, which compares words."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence

ORDER = 4
"""Maximum length of the n-grams that BLEU counts."""


def sacrebleu_score(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the corpus BLEU that sacreBLEU computes with its default settings, from 0 to 100.

    The signature of sacreBLEU is ``nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp``.
    """
    # An optional dependency that the other tasks do not need.
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415

    return BLEU().corpus_score(list(hypotheses), [list(references)]).score


def word_bleu(
    hypotheses: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]]
) -> float:
    """Return the BLEU of words, from 0 to 1: the corpus BLEU of NLTK without smoothing.

    As in NLTK, a sentence with fewer than n words counts as one n-gram that does not match.

    Source: Papineni et al. 2002.
    """
    pairs = list(zip(hypotheses, references, strict=True))
    precisions: list[float] = []
    for order in range(1, ORDER + 1):
        matches = sum(
            (_count_ngrams(ours, order) & _count_ngrams(theirs, order)).total()
            for ours, theirs in pairs
        )
        total = sum(max(1, len(ours) - order + 1) for ours, _ in pairs)
        precisions.append(matches / total)
    if not all(precisions):
        return 0.0
    ours, theirs = (sum(map(len, side)) for side in (hypotheses, references))
    brevity = min(0.0, 1.0 - theirs / ours)
    return math.exp(brevity + sum(map(math.log, precisions)) / ORDER)


def _count_ngrams(words: Sequence[Hashable], order: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))
