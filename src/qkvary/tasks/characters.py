"""Characters: predict the next character of tiny Shakespeare."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.checksums import TINY_SHAKESPEARE_SHA256
from qkvary.data.rows import random_indices
from qkvary.data.shakespeare import load_shakespeare
from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.tasks.config import CharacterTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    SINGLE_PROCESS_CONTEXT,
    Batch,
    ClassificationTask,
    EvaluationContext,
    Split,
    build_language_model,
    plain_example,
)
from qkvary.tasks.examples import AttentionExample

PRINTED = {"\n": "↵", " ": "␣"}
"""Printed forms of whitespace characters."""


class CharacterTask(ClassificationTask[CharacterTaskConfig]):
    """Predict every character of a window from the characters before it.

    Loss: mean cross entropy in nats per character. Metric: the same loss on the last tenth of the
    text, also in bits. As in the published code, the last tenth is both validation and test. Random
    windows for validation (``sampled``) are the same every time.

    Source: Borji 2023 (Key-Value Transformer), section 3.3, and its code.
    """

    def __init__(self, config: CharacterTaskConfig) -> None:
        if config.text_sha256 != TINY_SHAKESPEARE_SHA256:
            raise ValueError(
                f"expected the text with sha256 {TINY_SHAKESPEARE_SHA256}, got {config.text_sha256}"
            )
        super().__init__(config)
        text = load_shakespeare()
        self.alphabet = text.alphabet
        # A copy, because torch shares memory with numpy and the text is read-only.
        self._train, self._held_out = (
            torch.tensor(part) for part in text.split(config.train_fraction)
        )
        if config.scored_characters is not None:
            # Plus one, because the first character is never a target.
            self._held_out = self._held_out[: config.scored_characters + 1]
        shortest = min(len(self._train), len(self._held_out))
        if shortest <= config.context:
            raise ValueError(
                f"expected a context below {shortest}, the number of characters in the shorter "
                f"part of the text, got {config.context}"
            )

    @property
    def tokenizer(self) -> CharacterTokenizer:
        """The tokenizer, with one token per distinct character of the text."""
        return CharacterTokenizer(self.alphabet)

    def build(self, network: Network, seed: int) -> LanguageModel:
        """Build the language model."""
        size = len(self.alphabet)
        return build_language_model(network, seed, self.config, size)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return random windows, drawn with replacement."""
        starts = random_indices(
            batch_size, len(self._train) - self.config.context, "training windows", seed, step
        )
        return self._windows(self._train, torch.from_numpy(starts[rows]))

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        context: EvaluationContext = SINGLE_PROCESS_CONTEXT,
        /,
    ) -> dict[str, float]:
        """Score the held-out text: ``loss`` in nats per character and ``bits_per_character``."""
        loss = super().evaluate(model, split, context)["loss"]
        return {"loss": loss, "bits_per_character": loss / math.log(2)}

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        """Yield all windows of the held-out text, or random ones for sampled validation.

        Validation is sampled if the task's ``evaluation`` is ``"sampled"``.
        """
        sampled = split == "validation" and self.config.evaluation == "sampled"
        return self._samples() if sampled else self._whole()

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the first held-out window."""
        tokens = self._held_out[: self.config.context]
        characters = [self.alphabet[code] for code in tokens.tolist()]
        return plain_example(model, tokens[None], [PRINTED.get(one, one) for one in characters])

    def _windows(self, text: Tensor, starts: Tensor) -> Batch:
        codes = text[starts[:, None] + torch.arange(self.config.context + 1)]
        return Batch(inputs=codes[:, :-1], targets=codes[:, 1:])

    def _samples(self) -> Iterator[Batch]:
        size = self.config.evaluation_batch_size
        highest = len(self._held_out) - self.config.context
        for index in range(self.config.evaluation_batches):
            starts = random_indices(size, highest, "validation windows", index)
            yield self._windows(self._held_out, torch.from_numpy(starts))

    def _whole(self) -> Iterator[Batch]:
        """Yield consecutive windows. Every character except the first is predicted once."""
        context, text = self.config.context, self._held_out
        windows = (len(text) - 1) // context
        starts = torch.arange(windows) * context
        for some in starts.split(self.config.evaluation_batch_size):
            yield self._windows(text, some)
        end = windows * context
        if end < len(text) - 1:
            yield Batch(inputs=text[None, end:-1], targets=text[None, end + 1 :])


load = CharacterTask
