"""Numbers: predict the next word of the spelled numbers from 1 to 9,999."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.number_words import load_number_words
from qkvary.data.rows import epoch_batch
from qkvary.nn.language_model import LanguageModel
from qkvary.tasks.config import NumberTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    EVALUATION_BATCH_TOKENS,
    Batch,
    ClassificationTask,
    Split,
    build_language_model,
    plain_example,
)
from qkvary.tasks.examples import AttentionExample

TRAIN_SHARE = 0.8
PERIOD, VALIDATION_PLACE, TEST_PLACE = 10, 8, 9
"""In the clean protocol, window 8 of every ten (counted from 0) is for validation, window 9 for the
test."""


class NumberTask(ClassificationTask[NumberTaskConfig]):
    """Predict every word of a window from the words before it.

    The windows do not overlap. Loss and headline metric: mean cross entropy in nats per word;
    ``accuracy`` is the share of correctly predicted words.

    ``as-published`` trains on the first 80 % of the windows and uses the remaining windows both for
    validation and for testing. These have only numbers above about 8,000, and the first words of
    such numbers hardly occur in training. ``clean`` has numbers from all thousands in every split.
    It includes the number 8,000, which is missing from the published data.

    Source: Borji 2023 (Key-Value Transformer), section 3.3, and its code. The code scores randomly
    chosen whole batches of validation windows.
    """

    def __init__(self, config: NumberTaskConfig) -> None:
        super().__init__(config)
        words = load_number_words(complete=config.protocol == "clean")
        self.vocabulary = words.vocabulary
        # A copy, because torch shares memory with numpy and the words are read-only.
        codes, context = torch.tensor(words.codes), config.context
        longest = (len(codes) - 1) // PERIOD
        if context > longest:
            raise ValueError(
                f"expected a context of at most {longest:,} words, which leaves {PERIOD} windows, "
                f"got {context:,}"
            )
        windows = codes.unfold(0, context + 1, context)
        place = torch.arange(len(windows))
        if config.protocol == "clean":
            validation, test = place % PERIOD == VALIDATION_PLACE, place % PERIOD == TEST_PLACE
        else:
            validation = test = place >= int(TRAIN_SHARE * len(windows))
        self._splits = {
            "train": windows[~validation & ~test],
            "validation": windows[validation],
            "test": windows[test],
        }

    def build(self, network: Network, seed: int) -> LanguageModel:
        """Build the language model."""
        size = len(self.vocabulary)
        return build_language_model(network, seed, self.config, size)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the next windows of the shuffled epoch; a last partial batch is dropped."""
        windows = self._splits["train"]
        indices = epoch_batch(len(windows), batch_size, step=step, seed=seed)[rows]
        return _make_batch(windows[torch.tensor(indices)])

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        """Yield all windows of a split."""
        size = max(1, EVALUATION_BATCH_TOKENS // self.config.context)
        return map(_make_batch, self._splits[split].split(size))

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the first validation window."""
        words = self._splits["validation"][0, :-1]
        return plain_example(model, words[None], [self.vocabulary[code] for code in words.tolist()])


def _make_batch(windows: Tensor) -> Batch:
    return Batch(inputs=windows[:, :-1], targets=windows[:, 1:])


load = NumberTask
