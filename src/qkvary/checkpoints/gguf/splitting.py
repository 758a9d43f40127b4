"""Lists the pre-tokenizers that split texts before merging, by their names in llama.cpp."""

import json
from collections.abc import Mapping
from typing import Any

from qkvary.storage.errors import UsageError

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2 = {**_BYTES, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}


def _split(pattern: str, *more: Mapping[str, Any]) -> Mapping[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return {"type": "Sequence", "pretokenizers": [{**split, "invert": False}, *more]}


_LLAMA3 = _split(_WORDS, _BYTES)
_ONE_DIGIT = _split(_WORDS.replace("{1,3}", ""), _BYTES)
_APART = {"type": "Sequence", "pretokenizers": [_DIGITS, _GPT2]}
SPLITTINGS: Mapping[str, Mapping[str, Any]] = {
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "dbrx": _LLAMA3,
    "qwen2": _ONE_DIGIT,
    "starcoder": _APART,
    # Other names of the same pre-tokenizers.
    **dict.fromkeys(("olmo", "phi-2", "mpt"), _GPT2),
    **dict.fromkeys(("llama3", "llama-v3", "pixtral", "lfm2", "falcon3"), _LLAMA3),
    **dict.fromkeys(("stablelm2", "deepseek-r1-qwen"), _ONE_DIGIT),
    **dict.fromkeys(("smollm", "refact", "command-r"), _APART),
}
"""The ``pre_tokenizer`` of a ``tokenizer.json``, by llama.cpp's name for the equivalent
pre-tokenizer. Source: the pre-tokenizers in ``llama-vocab.cpp`` of llama.cpp."""
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "pixtral", "lfm2", "falcon3")
"""Names of the pre-tokenizers with ``ignore_merges``: a word that is a token stays whole, even if
no merges lead to it."""


def find_splitting(fields: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the pre-tokenizer of a ``tokenizer.json``."""
    whole = fields["model"].get("ignore_merges") is True
    wanted = _plain(fields.get("pre_tokenizer"))
    for name, known in SPLITTINGS.items():
        if _plain(known) == wanted and (name in WHOLE_WORDS) == whole:
            normalizer = fields.get("normalizer")
            if normalizer is None:
                return name
            raise UsageError(
                f"expected a tokenizer.json without a normalizer, got {normalizer.get('type')}, "
                "which llama.cpp does not apply"
            )
    raise UsageError(
        "expected a tokenizer.json with a pre_tokenizer that llama.cpp supports, got another one; "
        f"choices: {', '.join(SPLITTINGS)}; or train with the tokenizer of GPT-2 "
        "(--tokenizer gpt2) or with bytes (--tokenizer bytes)"
    )


def _plain(value: object) -> str:
    """Return a pre-tokenizer as JSON for comparison, ignoring the offset setting."""
    text = json.dumps(value, sort_keys=True)
    return text.replace('"trim_offsets": false', '"trim_offsets": true')
