"""Networks that the theorems of paper 3 are about, trained for a moment and kept."""

from dataclasses import replace
from typing import Any

from qkvary.papers.ours.why_studies import SIZES, why_setting
from qkvary.studies.study import Setting, Study

SMALL = replace(SIZES["small"], steps=150, num_layers=2)


def _setting(
    name: str, variants: tuple[str, ...], *, heads: int = 4, block: dict[str, Any], **network: Any
) -> Setting:
    """Return a setting without attention biases; the rest is given."""
    plain = why_setting(name, SMALL, variants=variants)
    layer = replace(plain.network.layers[0], bias=False, num_heads=heads)
    changed = replace(plain.network, attention=layer, block=replace(plain.network.block, **block))
    return replace(plain, network=replace(changed, **network), keep_networks=True)


WITHOUT_NORMS = {"norm": "none"}
"""Blocks of the theorems, with both skips."""
ATTENTION_SKIP = {"norm": "none", "skips": "attention"}
"""Blocks of Theorem 4.2."""
STUDY = Study(
    name="why-networks",
    question="Networks to rewrite",
    description="Networks that the theorems of paper 3 are about: 2 layers of 64 channels.",
    settings=(
        _setting(
            "attention skip", ("QKV@rotary", "Q-K=V@alibi", "MQA@alibi"), block=ATTENTION_SKIP
        ),
        _setting("both skips", ("QKV@rotary",), block=WITHOUT_NORMS),
        _setting("shared blocks", ("QKV@rotary",), block=WITHOUT_NORMS, shared_blocks=True),
        _setting("one head", ("QKV@alibi",), heads=1, block=ATTENTION_SKIP),
        _setting("LayerNorm", ("QKV@rotary",), block={}),
        _setting("ReLU", ("QKV@alibi",), block={**WITHOUT_NORMS, "activation": "relu"}),
        _setting("learned positions", ("(QKV)+",), block=ATTENTION_SKIP, positions="learned"),
    ),
    variants=("QKV@rotary", "Q-K=V@alibi", "MQA@alibi", "QKV@alibi", "(QKV)+"),
    baseline="QKV@rotary",
    seeds=(0,),
)
