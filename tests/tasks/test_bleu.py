"""BLEU of words is NLTK's, and that of sentences sacreBLEU's."""

import random

import pytest
from nltk.translate.bleu_score import corpus_bleu
from sacrebleu.metrics.bleu import BLEU

from qkvary.tasks.bleu import sacrebleu_score, word_bleu


@pytest.mark.parametrize("seed", range(5))
def test_bleu_of_words_is_that_of_nltk(seed: int) -> None:
    draw = random.Random(seed)
    references = [[draw.randrange(4) for _ in range(draw.randrange(2, 15))] for _ in range(23)]
    # Words left out or replaced, and some very short answers.
    hypotheses = [
        [word if draw.random() < 0.8 else draw.randrange(4) for word in row][seed % 3 :] or [9]
        for row in references
    ]
    hypotheses[0] = [2, 3]
    expected = corpus_bleu([[row] for row in references], hypotheses)
    assert word_bleu(hypotheses, references) == pytest.approx(expected, rel=1e-12)
    # NLTK gives 1e-231 here, which is meant for none.
    assert word_bleu(["axbx"], ["abcd"]) == 0.0


def test_bleu_of_sentences_has_the_signature_that_is_documented() -> None:
    scorer = BLEU()
    said = ["Ein Mann, der läuft.", "Zwei Hunde spielen im Schnee ."]
    wanted = ["Ein Mann, der schnell läuft.", "Zwei Hunde spielen im Schnee."]
    expected = scorer.corpus_score(said, [wanted]).score
    assert sacrebleu_score(said, wanted) == expected > 50
    signature = str(scorer.get_signature())
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert sacrebleu_score(wanted, wanted) == pytest.approx(100.0)
