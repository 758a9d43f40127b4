"""Compares the variants of paper 1 with baselines of the same cache size or parameter count.

All networks are small.
"""

from qkvary.costs.parameters import network_parameters
from qkvary.papers.ours.small_language_models import (
    CONTEXT,
    HEADS,
    POSITIONS_PER_STEP,
    STEPS,
    describe_scale,
    novels_setting,
    small_network,
)
from qkvary.studies.study import CrossSettingContrast, Study

MAIN, EQUAL, FINE = "novels", "equal parameters", "32 heads"

_NETWORK = small_network(context=CONTEXT, num_heads=HEADS)
_COUNTS = network_parameters(_NETWORK)
_TOKENS = STEPS * POSITIONS_PER_STEP


def _rotary(*labels: str) -> tuple[str, ...]:
    return tuple(f"{label}@rotary" for label in labels)


_LIMITS = (
    (
        f"These are small networks at the beginning of their training: {_COUNTS.total:,} "
        f"parameters, trained on {_TOKENS:,} bytes ({_TOKENS / _COUNTS.total:.1f} bytes per "
        "parameter, while 20 tokens per parameter are usual). They show which sharing learns "
        "faster at first. They cannot show what sharing costs a fully trained network, nor that "
        "the order of the variants is the same in larger networks."
    ),
    (
        f"A head has {_NETWORK.d_model // HEADS} channels here, while a head usually has 64 or "
        "128. So one KV head keeps only 32 numbers per token, and sharing heads removes more than "
        "in larger networks. Sharing projections removes the same amount at any head size."
    ),
    (
        "Where the value shares the key's projection, the output is rotated back. In networks "
        "with 8 heads, rotating the output back gains more than sharing key and value costs, as "
        "lm-rotary shows. If the key before its rotation were used as the value, these variants "
        "would be worse than shown."
    ),
    (
        "The learning rate is the best of three for QKV. The other variants were trained at the "
        "same learning rate. A variant whose best learning rate differs looks worse than it is."
    ),
    describe_scale(networks=15, seeds=5, presets=("lm-30m", "lm-124m", "lm-300m")),
)

STUDY = Study(
    name="lm-small",
    question=(
        "What does sharing cost a language model, compared with language models that have a "
        "cache of the same size or as many parameters?"
    ),
    description=(
        "Networks learn the bytes of 50 English novels in rows of 128 bytes and are scored on "
        "novels by other authors. The network and its training are those of paper 1 (Do "
        "Transformers Need Three Projections?), with 2 layers of 256 channels, 16 heads and rotary "
        f"positions on all channels. Training takes {STEPS:,} steps of {POSITIONS_PER_STEP:,} "
        "bytes. The study compares all variants of paper 1's Table 4 with other networks. I-K-V "
        "and I-K=V have no query projection. GQA-8 has the cache size of Q-K=V, and GQA-2 has the "
        "cache size of Q-GQA-4. MQA with 32 heads of 8 channels has the cache size and "
        "the parameter count of Q-MQA. Q-K=V and I-K=V are also trained with the saved parameters "
        "moved to the feed-forward networks. If the value shares the key's projection, the output "
        "is rotated back."
    ),
    settings=(
        novels_setting(MAIN, _NETWORK, steps=STEPS, limits=_LIMITS),
        novels_setting(
            EQUAL,
            _NETWORK,
            steps=STEPS,
            table=EQUAL,
            variants=_rotary("QKV", "Q-K=V", "I-K=V"),
            equal_parameters=True,
        ),
        novels_setting(
            FINE,
            small_network(context=CONTEXT, num_heads=2 * HEADS),
            steps=STEPS,
            table=FINE,
            variants=_rotary("MQA"),
        ),
    ),
    variants=_rotary(
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
    baseline="QKV@rotary",
    contrasts=(
        ("Q-K=V@rotary", "GQA-8@rotary"),
        ("Q-GQA-4@rotary", "GQA-2@rotary"),
        ("Q-K=V@rotary", "MQA@rotary"),
        ("I-K=V@rotary", "Q=K=V@rotary"),
        ("I-K-V@rotary", "Q=K-V@rotary"),
        CrossSettingContrast("Q-MQA@rotary", MAIN, "MQA@rotary", FINE),
        CrossSettingContrast("Q-K=V@rotary", EQUAL, "GQA-8@rotary", MAIN),
    ),
    seeds=(0, 1, 2, 3, 4),
)
