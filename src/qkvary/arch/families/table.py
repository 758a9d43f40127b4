"""The table of families, and the one function that reads a configuration of any of them."""

import difflib
from collections.abc import Mapping
from dataclasses import replace

from qkvary.arch.families import classic, deepseek, encoder_decoder, gemma, llama
from qkvary.arch.families.family import Family
from qkvary.arch.families.fields import Fields
from qkvary.arch.models import Model

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for file in (classic, llama, gemma, deepseek, encoder_decoder)
    for family in file.FAMILIES_OF_FILE
}
"""Every family that can be read, by ``model_type``."""

TEXT_SECTION = "text_config"
"""Keys of the language model in multimodal models, unless their family says otherwise."""

LLAMA_SIZES = (
    ("hidden_size", "n_embd", "d_model"),
    ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    ("num_attention_heads", "n_head", "num_heads"),
    ("num_hidden_layers", "n_layer", "num_layers"),
    ("vocab_size",),
)
"""The sizes without which nothing like Llama can be read, each with its other spellings."""


def read_model(config: Mapping[str, object], name: str) -> Model:
    """Read a model from the configuration that is published with it.

    Args:
        config: The content of a ``config.json``.
        name: What the model is called in tables.

    Raises:
        ValueError: for an unknown family, a field that is missing or makes no sense, or sizes that
            do not fit each other; always in one sentence.
    """
    model_type = config.get("model_type")
    family = _find(model_type)
    part = _text_part(config, family)
    if family is None and part is not None:
        family = _find(part.content.get("model_type"))
    if family is None:
        raise _unknown(model_type, Fields(config, "unknown") if part is None else part)
    if part is None:
        return family.read(Fields(config, family.model_type), name)
    model = family.read(Fields(part.content, family.model_type), name)
    note = "counts the language model only: a vision or audio tower is not counted"
    return replace(model, notes=(*model.notes, note))


def _find(model_type: object) -> Family | None:
    return FAMILIES.get(model_type) if isinstance(model_type, str) else None


def _text_part(config: Mapping[str, object], family: Family | None) -> Fields | None:
    """Return the configuration of the language model inside one of several modalities."""
    section = TEXT_SECTION if family is None else family.text_section
    if section is None:
        return None
    part = Fields(config, "unknown" if family is None else family.model_type).section(section)
    tied = config.get("tie_word_embeddings")
    if part is None or tied is None or part.has("tie_word_embeddings"):
        return part
    # The head belongs to the whole, which alone may say that it is the embedding.
    return Fields({**part.content, "tie_word_embeddings": tied}, part.family)


def _unknown(model_type: object, fields: Fields) -> ValueError:
    found: list[str] = []
    missing: list[str] = []
    for names in LLAMA_SIZES:
        spelled = next((name for name in names if _is_size(fields.content.get(name))), None)
        if spelled is None:
            missing.append(names[0])
        else:
            found.append(f"{spelled}={fields.content[spelled]}")
    known = ", ".join(sorted(FAMILIES))
    if isinstance(model_type, str):
        near = difflib.get_close_matches(model_type[:60], FAMILIES, n=1)
        got = repr(model_type[:60]) + (f" (did you mean {near[0]}?)" if near else "")
    else:
        got = "none" if model_type is None else f"a {type(model_type).__name__}"
    return ValueError(
        f"expected a model_type out of {known}, got {got}; read {', '.join(found) or 'no sizes'}; "
        f"a Llama-like reading misses {', '.join(missing) or 'nothing else'}"
    )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**15
