"""Digit sequences: five synthetic tasks that map random digits to one digit per position."""

import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.rows import epoch_batch, random_words
from qkvary.data.splits import DataSplit
from qkvary.nn.encoder import Encoder
from qkvary.tasks.config import SequenceTaskConfig, SequenceTaskName
from qkvary.tasks.contract import (
    ALL_ROWS,
    EVALUATION_BATCH_TOKENS,
    SINGLE_PROCESS_CONTEXT,
    Batch,
    ClassificationTask,
    EvaluationContext,
    Split,
    attention_maps,
    build_encoder,
    example_maps,
)
from qkvary.tasks.examples import AttentionExample

MASS_EXAMPLES = 64
"""Number of test sequences over which ``attention_mass_on_target`` is averaged."""


def _positions(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[-1], device=tokens.device).expand_as(tokens)


_COLUMNS: Mapping[SequenceTaskName, Callable[[Tensor], Tensor]] = {
    # 4 3 9 8 becomes 8 9 3 4.
    "reverse": lambda tokens: _positions(tokens).flip(-1),
    # 4 3 9 8 becomes 3 4 8 9; equal digits keep their order.
    "sort": lambda tokens: tokens.argsort(dim=-1, stable=True),
    # Every digit x becomes 9 - x.
    "sub": _positions,
    # 4 3 9 8 becomes 9 8 4 3, the second half before the first.
    "swap": lambda tokens: _positions(tokens).roll(-(tokens.shape[-1] // 2), dims=-1),
    "copy": _positions,
}
"""For each task, a function that takes digits ``[batch, n]`` and returns the answers' columns."""


class DigitSequenceTask(ClassificationTask[SequenceTaskConfig]):
    """Predict a fixed rearrangement of a sequence of random digits.

    The answer at position i is ``y_i = f(x_c(i))``. Each task defines the position ``c(i)``; f is
    the identity, except in ``sub``.

    Loss: mean cross entropy over digits. Metric: accuracy over digits.

    Source: Borji 2023 (Key-Value Transformer), section 3.1; Kayyam et al. 2026, section 3.1. The
    published examples were drawn without a seed; here the config determines them.
    """

    def __init__(self, config: SequenceTaskConfig) -> None:
        super().__init__(config)
        self.columns = _COLUMNS[config.name]

    def build(self, network: Network, seed: int) -> Encoder:
        """Build the encoder."""
        config = self.config
        exact = {"vocabulary": config.vocabulary, "classes": config.vocabulary}
        return build_encoder(network, seed, config.name, config.length, **exact)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the next sequences of the shuffled epoch; a last partial batch is dropped."""
        order = epoch_batch(self.config.train_examples, batch_size, step=step, seed=seed)
        return self._make_batch(self._examples("train")[torch.tensor(order[rows])])

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        context: EvaluationContext = SINGLE_PROCESS_CONTEXT,
        /,
    ) -> dict[str, float]:
        """Return ``loss`` and ``accuracy``, and on the test split ``attention_mass_on_target``."""
        scores = super().evaluate(model, split, context)
        if split == "test":
            scores["attention_mass_on_target"] = self.attention_mass_on_target(model)
        return scores

    def attention_mass_on_target(self, model: nn.Module) -> float:
        """Return the attention weight on the column that holds the answer, between 0 and 1.

        This is the largest weight over all heads and layers, averaged over the positions of the
        first 64 test sequences. It grows with the number of heads and layers, so only compare
        networks of the same size.
        """
        tokens = self._examples("test")[:MASS_EXAMPLES].long()
        maps = attention_maps(model, tokens)
        index = self.columns(tokens).to(maps.device)[:, None, None, :, None]
        mass = maps.gather(-1, index.expand(*maps.shape[:-1], 1)).squeeze(-1)
        return mass.amax(dim=(1, 2)).mean().item()

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the first validation sequence."""
        tokens = self._examples("validation")[:1].long()
        return AttentionExample(
            maps=example_maps(model, tokens),
            tokens=tuple(str(digit) for digit in tokens[0].tolist()),
            targets=tuple(self.columns(tokens)[0].tolist()),
        )

    def _make_batch(self, examples: Tensor) -> Batch:
        tokens = examples.long()
        taken = tokens.gather(-1, self.columns(tokens))
        is_sub = self.config.name == "sub"
        return Batch(tokens, self.config.vocabulary - 1 - taken if is_sub else taken)

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        """Yield all sequences of a split."""
        size = max(1, EVALUATION_BATCH_TOKENS // self.config.length)
        return map(self._make_batch, self._examples(split).split(size))

    def _examples(self, split: DataSplit) -> Tensor:
        config = self.config
        count = config.count_examples(split)
        return draw_digits(config.data_seed, config.length, split, count, config.vocabulary)


@functools.lru_cache(maxsize=9)
def draw_digits(
    seed: int, length: int, split: DataSplit, count: int, vocabulary: int = 10
) -> Tensor:
    """Draw ``count`` sequences of independent digits. Equal arguments give equal sequences.

    Each split has its own random stream. A larger ``count`` keeps the first sequences the same.
    """
    words = random_words(count * length, "digits", seed, length, vocabulary, split)
    digits = (words % np.uint64(vocabulary)).astype(np.int64).reshape(count, length)
    return torch.from_numpy(digits).to(torch.uint8 if vocabulary <= 256 else torch.int32)


load = DigitSequenceTask
