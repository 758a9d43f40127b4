"""The ladder of language models as it runs everywhere in seconds: to see that it works."""

from dataclasses import replace

from qkvary.papers.ours.studies.lm_ladder import STUDY as LADDER
from qkvary.papers.ours.studies.quickstart import STUDY as QUICKSTART

_SETTING = QUICKSTART.settings[0]

STUDY = replace(
    LADDER,
    name="quick-ladder",
    settings=(
        replace(
            _SETTING,
            name="1M",
            training=replace(_SETTING.training, steps=2, evaluate_every=2),
            table="quick",
        ),
    ),
    variants=("QKV", "Q-K=V"),
    baseline="QKV",
    contrasts=(),
    seeds=(0,),
)
