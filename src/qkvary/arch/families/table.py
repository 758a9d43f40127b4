"""The table of families, and the one function that reads a configuration of any of them."""

from collections.abc import Mapping
from dataclasses import replace

from qkvary.arch.families import classic, decoders, encoder_decoder, extended, gemma, hybrid
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.models import Model

FAMILIES: dict[str, Reader] = {
    model_type: read
    for file in (classic, gemma, decoders, extended, hybrid, encoder_decoder)
    for model_type, read in file.READERS.items()
}
"""The function that reads each family's configuration, by ``model_type``."""

MULTIMODAL = frozenset({"gemma3", "gemma4", "gemma4_unified", "qwen2_vl", "qwen2_5_vl"})
"""Families whose configuration may have the language model in a section."""
TOWERS = ("vision_config", "audio_config")
"""Keys of the other parts of a multimodal model."""

TEXT_SECTION = "text_config"
"""The key of the section that describes the language model of a multimodal model."""


def read_model(config: Mapping[str, object], name: str) -> Model:
    """Read a model from the ``config.json`` that is published with it."""
    family, fields = find_text(config)
    model = FAMILIES[family](fields, name)
    if fields.content is config and not any(config.get(name) for name in TOWERS):
        return model
    note = "only the language model is counted, not a vision or audio tower"
    return replace(model, notes=(*model.notes, note))


def find_text(config: Mapping[str, object]) -> tuple[str, Fields]:
    """Return the language model's family and fields, from the file or a section of the file."""
    family = _family(config)
    part = None
    if family is None or family in MULTIMODAL:
        part = Fields(config, family or "unknown").section(TEXT_SECTION)
    family = family or (part and _family(part.content))
    if family is None:
        got = str(config.get("model_type"))[:60]
        raise ValueError(
            f"expected model_type to be one of {len(FAMILIES)} known families such as llama, qwen3 "
            f"and gemma3, got {got!r}; reading it as a known family could give wrong numbers"
        )
    if part is None:
        return family, Fields(config, family)
    tied = config.get("tie_word_embeddings")
    # The field that ties the head stands outside the section.
    whole = {} if tied is None else {"tie_word_embeddings": tied}
    return family, Fields({**part.content, **whole}, family)


def _family(config: Mapping[str, object]) -> str | None:
    model_type = config.get("model_type")
    return model_type if isinstance(model_type, str) and model_type in FAMILIES else None
