"""Learns byte-level pairs from a text whose documents end in ``<|endoftext|>``.

    python studies/ours/stories-10m/learn_tokenizer.py tinystories_sample.txt tok4k.json

Writes a ``tokenizer.json`` that cuts texts as GPT-2 does.
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
TOKENS = 4_096


def main(text: str, out: str) -> None:
    """Learn the pairs and write a ``tokenizer.json``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(Path(text).read_text(encoding="utf-8").split(END), trainer)
    tokenizer.save(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
