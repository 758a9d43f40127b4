"""Translation of Multi30k as in the code of paper 2, and with its mistakes repaired."""

from dataclasses import replace

from qkvary.papers.key_value.translation import SACREBLEU, VARIANTS, translation_grid
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Study

STUDY = Study(
    name="translation-published",
    question="Are the published BLEU scores reproduced, and does the encoding lower them?",
    description=(
        "Multi30k in both directions by the code of paper 2: 20 epochs of 580 batches of 50, two "
        "runs. Its loss is divided by padding too, and its BLEU counts the marks of beginning and "
        "end. Its layer for a shared query and key also stands in cross attention, with all three "
        "projections and the 2D encoding, and takes the key for the query wherever padded source "
        "and target are equally long, so that the output does not see the target. Words are split "
        "by a rule of our own instead of spaCy's."
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
        question="Does a shared query and key cost BLEU, and the encoding, without the mistakes?",
        description=(
            "The grid and training of the code of paper 2, with QKV in cross attention as its text "
            f"says, the loss per word, and {SACREBLEU}."
        ),
        settings=translation_grid("clean"),
        published=(),
    ),
}
