"""Texts: predict the label of a text, such as its author."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.labelled_texts import LabelledText, load_labelled_texts
from qkvary.data.rows import random_indices
from qkvary.data.splits import DataSplit
from qkvary.nn.encoder import Encoder
from qkvary.tasks.config import TEXT_VOCABULARY, TextTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    Batch,
    ClassificationTask,
    Generate,
    Split,
    build_encoder,
    plain_example,
)
from qkvary.tasks.examples import AttentionExample, Sample

PADDING = TEXT_VOCABULARY - 1
"""The token that pads a text that is shorter than its window."""
SAMPLES = 10
SHOWN_BYTES = 32


class TextTask(ClassificationTask[TextTaskConfig]):
    """Predict the label of a text from a window of its bytes.

    Loss: mean cross entropy. Metric: accuracy. In training all labels are equally likely, and so
    are all windows of a label's texts. Every label is scored on the same number of windows, at
    regular intervals in the label's texts.
    """

    def __init__(self, config: TextTaskConfig) -> None:
        super().__init__(config)
        texts = load_labelled_texts(config.data, config.labels)
        config.require(texts.fingerprint)
        self.labels, self.texts = texts.labels, texts.splits
        self._train = tuple(_Windows(some, config.context) for some in texts.splits["train"])

    def build(self, network: Network, seed: int) -> Encoder:
        """Build the encoder."""
        exact = {"pooling": "mean", "vocabulary": TEXT_VOCABULARY, "classes": len(self.labels)}
        return build_encoder(network, seed, self.config.name, self.config.context, **exact)

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the logits of the labels; padding is masked."""
        mask = inputs != PADDING
        return model(inputs, attention_mask=None if bool(mask.all()) else mask)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return random windows of random labels, drawn with replacement."""
        labels = random_indices(batch_size, len(self.labels), "labels of texts", seed, step)[rows]
        numbers = random_indices(batch_size, 2**62, "windows of texts", seed, step)[rows]
        windows = [
            self._train[label].read(number % self._train[label].count)
            for label, number in zip(labels.tolist(), numbers.tolist(), strict=True)
        ]
        return _make_batch(windows, labels)

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        """Yield the windows of a split, label by label."""
        windows, labels = self._scored_windows(split)
        size = self.config.evaluation_batch_size
        for first in range(0, len(labels), size):
            yield _make_batch(windows[first : first + size], labels[first : first + size])

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the beginning of the first validation window."""
        windows, _ = self._scored_windows("validation")
        # Attention maps are computed without a mask, so the padding of a short text is cut off.
        shown = windows[0][windows[0] != PADDING][:SHOWN_BYTES]
        return plain_example(
            model, torch.from_numpy(shown)[None], map(_print_token, shown.tolist())
        )

    def samples(self, model: nn.Module, _generate: Generate | None = None) -> tuple[Sample, ...]:
        """Return a few validation windows at regular intervals, with their labels and answers."""
        windows, labels = self._scored_windows("validation")
        chosen = np.linspace(0, len(labels) - 1, num=min(SAMPLES, len(labels))).astype(int)
        batch = _make_batch([windows[one] for one in chosen], labels[chosen])
        logits = self.logits(model, batch.inputs.to(next(model.parameters()).device))
        return tuple(
            Sample(
                truth=self.labels[truth],
                answer=self.labels[answer],
                text=bytes(token for token in window if token != PADDING).decode(errors="replace"),
            )
            for window, truth, answer in zip(
                batch.inputs.tolist(),
                batch.targets.tolist(),
                logits.argmax(dim=-1).tolist(),
                strict=True,
            )
        )

    def _scored_windows(
        self, split: DataSplit
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return windows without overlap, the same number for each label."""
        context = self.config.context
        starts = [
            [
                (text, start)
                for text in texts
                for start in range(0, max(1, len(text.data) - context + 1), context)
            ]
            for texts in self.texts[split]
        ]
        count = min(self.config.windows_per_label, *map(len, starts))
        windows = [
            _cut(*some[number * len(some) // count], context)
            for some in starts
            for number in range(count)
        ]
        return windows, np.repeat(np.arange(len(starts)), count)


class _Windows:
    """All windows in the texts of a label."""

    def __init__(self, texts: tuple[LabelledText, ...], context: int) -> None:
        self._texts, self._context = texts, context
        self._ends = np.cumsum([max(1, len(text.data) - context + 1) for text in texts])
        self.count = int(self._ends[-1])

    def read(self, number: int) -> NDArray[np.int64]:
        """Return a window by its number."""
        text = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[text - 1]) if text else 0
        return _cut(self._texts[text], number - before, self._context)


def _cut(text: LabelledText, start: int, context: int) -> NDArray[np.int64]:
    found = np.full(context, PADDING, dtype=np.int64)
    taken = text.data[start : start + context]
    found[: len(taken)] = taken
    return found


def _make_batch(windows: list[NDArray[np.int64]], labels: NDArray[np.int64]) -> Batch:
    return Batch(torch.from_numpy(np.stack(windows)), torch.from_numpy(labels))


def _print_token(token: int) -> str:
    if token == PADDING:
        return "∅"
    return {10: "↵", 32: "␣"}.get(token, chr(token) if 32 < token < 127 else f"{token:02X}")


load = TextTask
