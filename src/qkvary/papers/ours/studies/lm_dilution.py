"""Compares two losses: the one that paper 1 prints counts padding, the other only real tokens."""

from qkvary.papers.ours.small_language_models import (
    PIECES,
    describe_scale,
    small_network,
    small_training,
    stories,
)
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import Protocol

STEPS = 360
HEADS = 4
SHARES = {256: 88, 512: 53, 1024: 28}
"""Percentage of real tokens in rows of each length, with one story per row."""
PACKED = 512
RATE = 4e-3
PADDED_RATES = {256: RATE, 512: 2e-3, 1024: RATE}
"""Learning rate for each row length. It is the best of 1e-3, 2e-3 and 4e-3 for QKV with seed 0. At
length 1,024, the losses at the three rates differ by less than the spread between seeds."""


_LIMITS = (
    (
        "A padded row has fewer real tokens, so networks in different tables of the report have "
        "seen different amounts of text: about 320,000, 190,000 and 100,000 tokens with "
        "padding, and 370,000 tokens without padding. The networks in one table have all seen "
        "the same text, and no part of the text twice. All these amounts are small: the "
        "networks have a million parameters and are at the beginning of their training."
    ),
    (
        "The share of real tokens in paper 1's rows is not known. The mean length of the paper's "
        "documents suggests about 53 % or less."
    ),
    (
        "Each table has one learning rate: the best of 1e-3, 2e-3 and 4e-3 for QKV with seed 0. "
        "It is 2e-3 for the table with 53 % real tokens (loss 4.19, against 4.38 with 4e-3), "
        "and 4e-3 for the other tables. With 28 % real tokens, the losses at the three learning "
        "rates differ by less than the spread between seeds. The other variants were trained at "
        "the same learning rate; a variant whose best learning rate differs looks worse than it "
        "is."
    ),
    (
        "Networks that use the keys as values learn faster at first. Without padding, QKV "
        "overtakes Q=K=V between steps 180 and 270 of the 360 steps; with 88 % real tokens, "
        "between steps 270 and 360. With 53 % and 28 % real tokens, QKV does not overtake Q=K=V "
        "in the 360 steps. The sign of the difference in loss between two variants therefore "
        "depends on the number of steps, and does not show the cost of sharing after long "
        "training. The fraction of the difference that remains in the printed loss does not "
        "depend on the number of steps."
    ),
    describe_scale(networks=12, seeds=5, presets=("lm-30m", "lm-300m")),
)


def _setting(
    name: str, metric: str, *, context: int, protocol: Protocol, learning_rate: float
) -> Setting:
    return Setting(
        name=name,
        task=stories(context=context, protocol=protocol),
        network=small_network(context=context, num_heads=HEADS, d_model=128, vocabulary=PIECES),
        training=small_training(steps=STEPS, context=context, learning_rate=learning_rate),
        table=name,
        metric=metric,
        limits=_LIMITS,
    )


STUDY = Study(
    name="lm-dilution",
    question="How much of the cost of sharing is left in a loss that counts padding?",
    description=(
        "The data are short stories, one in each row as in paper 1 (Do Transformers Need Three "
        "Projections?). Rows are padded with the separator to 256, 512 or 1,024 tokens, so "
        f"{SHARES[256]}, {SHARES[512]} or {SHARES[1024]} % of the tokens in the loss are real "
        "tokens. Networks have 2 layers of 128 channels, 4 heads and rotary positions. Each "
        "network is scored twice on the same rows: once on real tokens only, and once with the "
        "padding as in paper 1. For comparison, networks are trained without padding, on stories "
        "packed one after the other into rows of 512 tokens. These networks are scored on the real "
        "tokens of stories in separate rows. Every training step has the same number of positions."
    ),
    settings=(
        *(
            _setting(
                f"{share} % real, {words}",
                metric,
                context=context,
                protocol="padded-paper",
                learning_rate=PADDED_RATES[context],
            )
            for context, share in SHARES.items()
            for words, metric in (("real tokens", "document_loss"), ("as printed", "paper_loss"))
        ),
        _setting(
            "no padding", "document_loss", context=PACKED, protocol="packed", learning_rate=RATE
        ),
    ),
    variants=("QKV@rotary", "Q-K=V@rotary", "Q=K=V@rotary"),
    baseline="QKV@rotary",
    seeds=(0, 1, 2, 3, 4),
)
