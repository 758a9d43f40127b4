"""Trains networks to translate Multi30k as in paper 2's code, with or without its mistakes."""

from dataclasses import replace

from qkvary.papers.key_value.translation import SACREBLEU, VARIANTS, translation_grid
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Study

STUDY = Study(
    name="translation-published",
    question="Are the published BLEU scores reproduced, and does the 2D encoding (+) lower them?",
    description=(
        "Networks translate Multi30k in both directions as in the code of paper 2 (Key-Value "
        "Transformer): 20 epochs of 580 batches of 50, two runs. The code divides the loss by a "
        "number of tokens that includes padding, and the code's BLEU counts the begin and end "
        "tokens. If query and key share a projection, the code uses a special layer, also for "
        "cross attention. In cross attention, this layer has all three projections and the 2D "
        "encoding. If padded source and target are equally long, the layer uses the key as the "
        "query, so the output does not depend on the target. Words are split by a rule of this "
        "project instead of spaCy's."
    ),
    settings=translation_grid("as-published", "published-code"),
    variants=VARIANTS,
    seeds=(0, 1),
    published=published_tables("key-value-notebook-translation"),
    contrasts=(("(Q=K-V)+", "Q=K-V"),),
)

PROTOCOLS = {
    "as-published": STUDY,
    "clean": replace(
        STUDY,
        name="translation-published-clean",
        question=(
            "With the code's mistakes corrected, does sharing query and key lower BLEU, and "
            "does adding the 2D encoding lower BLEU?"
        ),
        description=(
            "The grid and training follow paper 2's code, with three changes: QKV in cross "
            f"attention (as the paper's text says), a loss per word, and {SACREBLEU} as BLEU."
        ),
        settings=translation_grid("clean"),
        published=(),
    ),
}
