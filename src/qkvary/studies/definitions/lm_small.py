"""Small language models: every sharing of paper 1 beside baselines of the same cache and size."""

from qkvary.costs.parameters import network_parameters
from qkvary.studies.small_language_models import (
    POSITIONS_PER_STEP,
    describe_scale,
    novels,
    small_network,
    small_training,
)
from qkvary.studies.study import Crossing, Setting, Study

CONTEXT = 128
STEPS = 1_300
MAIN, EQUAL, FINE = "novels", "equal parameters", "32 heads"

_NETWORK = small_network(context=CONTEXT)
_COUNTS = network_parameters(_NETWORK)
_TASK = novels(context=CONTEXT)
_TRAINING = small_training(steps=STEPS, context=CONTEXT)
_TOKENS = STEPS * POSITIONS_PER_STEP

_LIMITS = (
    (
        "These settings do not suit the question yet. In 45 runs of three seeds, test losses fell "
        "into two groups, near 5.3 and 5.5 nats, by what happened in the first hundred steps; "
        "which network fell where differed from seed to seed. Only differences that are larger "
        "than that, or the same in all seeds, say something about sharing."
    ),
    (
        f"These are small networks: {_COUNTS.total:,} parameters, {_COUNTS.embedding:,} of "
        f"them the table of tokens, after {_TOKENS:,} tokens, about one a parameter, where 20 "
        "are usual. They show which sharing learns faster at the beginning. They cannot "
        "show what it costs a network that has learnt what it can, nor that an order which "
        "holds here holds at a usual size."
    ),
    (
        "A head has 8 channels, where those of usual networks have 64 or 128. So one KV head "
        "keeps 16 numbers of a token, and sharing heads takes more away than at a usual size; "
        "sharing projections does not depend on that."
    ),
    describe_scale(networks=15, seeds=5, presets=("lm-30m", "lm-124m", "lm-300m")),
)

STUDY = Study(
    name="lm-small",
    question="What does sharing cost a language model, beside others of the same cache or size?",
    description=(
        "English novels (50 by authors of which none wrote those that are scored), GPT-2's first "
        "4,096 tokens, rows of 128; paper 1's network and training with 3 layers of 128 channels "
        f"and 16 heads, {STEPS:,} steps of {POSITIONS_PER_STEP:,} tokens. All variants of its "
        "Table 4; I-K-V and I-K=V; GQA-8, which has the cache of Q-K=V, and GQA-2, which has that "
        "of Q-GQA-4; MQA with 32 heads of 4 channels, which has the cache and the parameters of "
        "Q-MQA; Q-K=V and I-K=V with their saved parameters in the feed-forward networks."
    ),
    settings=(
        Setting(name=MAIN, task=_TASK, network=_NETWORK, training=_TRAINING, limits=_LIMITS),
        Setting(
            name=EQUAL,
            task=_TASK,
            network=_NETWORK,
            training=_TRAINING,
            table=EQUAL,
            variants=("QKV", "Q-K=V", "I-K=V"),
            equal_parameters=True,
        ),
        Setting(
            name=FINE,
            task=_TASK,
            network=small_network(context=CONTEXT, num_heads=32),
            training=_TRAINING,
            table=FINE,
            variants=("MQA",),
        ),
    ),
    variants=(
        "QKV",
        "Q=K-V",
        "Q-K=V",
        "Q=K=V",
        "GQA-8",
        "GQA-4",
        "GQA-2",
        "MQA",
        "Q-GQA-4",
        "Q-MQA",
        "I-K-V",
        "I-K=V",
    ),
    contrasts=(
        ("Q-K=V", "GQA-8"),
        ("Q-GQA-4", "GQA-2"),
        ("Q-K=V", "MQA"),
        ("I-K=V", "Q=K=V"),
        ("I-K-V", "Q=K-V"),
        Crossing(variant="Q-MQA", setting=MAIN, reference="MQA", reference_setting=FINE),
        Crossing(variant="Q-K=V", setting=EQUAL, reference="GQA-8", reference_setting=MAIN),
    ),
    seeds=(0, 1, 2, 3, 4),
)
