"""Compute the BLEU of references without the words that have no token, and put it into the guide.

Run from the root of the repository, where QKVARY_DATA has Multi30k, with the extra ``translation``:
``python docs/refresh_ceilings.py``. The limit of translation-quick names the scores of its words.
"""

import re
from pathlib import Path

from qkvary.data.translations import Language, load_translations
from qkvary.data.word_tokenizer import WordTokenizer
from qkvary.papers.ours.studies.translation_quick import LIMIT, MIN_COUNT
from qkvary.tasks.bleu import sacrebleu_score

PAGE = Path(__file__).parent / "guide" / "studies.md"
SCORES = re.compile(r"of [\d.]+ \(German\) and [\d.]+ \(English\)")
LANGUAGES: tuple[Language, Language] = ("de", "en")


def score(language: Language, min_count: int) -> str:
    """The sacreBLEU of the test references, read through the vocabulary of the training split."""
    train, test = (load_translations("multi30k").splits[one][language] for one in ("train", "test"))
    words = WordTokenizer.learn(train, min_count=min_count)
    replaced = [words.decode(words.encode(sentence)) for sentence in test]
    return f"{sacrebleu_score(replaced, test):.1f}"


def main() -> None:
    """Refresh the paragraph; fail if the limit of translation-quick says other scores."""
    scores = [[score(language, count) for language in LANGUAGES] for count in (1, MIN_COUNT)]
    lines = iter(f"of {german} (German) and {english} (English)" for german, english in scores)
    text, count = SCORES.subn(lambda _: next(lines), PAGE.read_text("utf-8"))
    PAGE.write_text(text, "utf-8")
    if count != len(scores) or "{} (German) and {} (English)".format(*scores[1]) not in LIMIT:
        raise SystemExit(f"expected the scores {scores} in {PAGE} and in the limit, got {count}")


if __name__ == "__main__":
    main()
