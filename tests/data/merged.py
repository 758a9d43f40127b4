"""GPT-2's list of merges where ``QKVARY_DATA`` has it, and a short one that always exists."""

import json
import os
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

DATA = Path(os.environ["QKVARY_DATA"]) if os.environ.get("QKVARY_DATA") else None
KINDS = ["stand-in", *(["published"] if DATA else [])]
TEXT = (
    "the cat sat on the mat, and the other cat's hat was there too. 1,234 cats they'll have; "
    "naïve cafés don't. " * 3 + "\n\n\tthe end  of it\n"
)


@cache
def merges_of(kind: str) -> str:
    """The list of merges; the short one is what a library learns from a text."""
    if kind == "published":
        assert DATA is not None
        return (DATA / "gpt2_bpe" / "vocab.bpe").read_text("utf-8")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 90, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    merges = json.loads(made.to_str())["model"]["merges"]
    return "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in merges) + "\n"
