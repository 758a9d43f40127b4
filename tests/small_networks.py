"""Small language models by the fields of their parts, in one call."""

import dataclasses
from typing import Any

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.labels import as_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.arch.variants import Variant


def small_config(label: Variant | str = "QKV", **fields: Any) -> LanguageModelConfig:
    """A language model of two layers without positions of its own.

    Args:
        label: Its attention.
        fields: Fields of the positions, the attention layer, the block or the network: each goes to
            the first of them that has it.
    """

    def take(kind: Any, **usual: Any) -> Any:
        names = {field.name for field in dataclasses.fields(kind)}
        given = {name: fields.pop(name) for name in list(fields) if name in names}
        return kind(**(usual | given))

    position = take(PositionConfig)
    attention = take(AttentionConfig, variant=as_variant(label), causal=True, position=position)
    block = fields.pop("block", None) or take(BlockConfig, d_ff=11)
    sizes = {"num_layers": 2, "vocabulary": 13, "max_tokens": 17, "positions": "none"}
    return LanguageModelConfig(attention=attention, block=block, **(sizes | fields))
