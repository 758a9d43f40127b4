"""Trains networks to translate Multi30k as the text of paper 2 describes."""

from dataclasses import replace

from qkvary.papers.key_value.studies import translation_published
from qkvary.papers.key_value.translation import translation_grid

STUDY = replace(
    translation_published.STUDY,
    name="translation-paper",
    question=(
        "Does sharing query and key in self-attention lower BLEU, and does adding the 2D "
        "encoding (+) lower BLEU?"
    ),
    description=(
        "Networks translate Multi30k in both directions as in the text of paper 2 (Key-Value "
        "Transformer): cross attention keeps all three projections (QKV), and each network trains "
        "twice for 20 epochs. Where the text leaves a choice open, the study follows the code: "
        "580 batches of 50 in an epoch, a loss that is divided by a number of tokens that includes "
        "padding, and a BLEU that counts the begin and end tokens. Words are split by a rule of "
        "this project instead of spaCy's."
    ),
    settings=translation_grid("as-published"),
)

PROTOCOLS = {
    "as-published": STUDY,
    # Once repaired, the published code does what the paper's text says: the same runs.
    "clean": replace(translation_published.PROTOCOLS["clean"], name="translation-paper-clean"),
}
