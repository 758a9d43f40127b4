"""Recall: answer each queried key with the value that followed it earlier."""

import functools
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.recall import NO_ANSWER, draw_recall
from qkvary.data.rows import epoch_batch
from qkvary.data.splits import DataSplit
from qkvary.nn.decoder import Decoder
from qkvary.nn.language_model import LanguageModel
from qkvary.tasks.config import RecallTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    EVALUATION_BATCH_TOKENS,
    IGNORE_INDEX,
    Batch,
    ClassificationTask,
    Split,
    build_language_model,
    example_maps,
)
from qkvary.tasks.examples import AttentionExample


class RecallTask(ClassificationTask[RecallTaskConfig]):
    """Multi-query associative recall by a language model.

    A sequence begins with pairs of a key and a value. After the pairs every key occurs once more,
    among zeros. There the network must predict the value of the key. Only these positions are
    scored. Loss: mean cross entropy. Metric: accuracy.

    Source: Arora et al. 2023 (Zoology), section 4, and its code. The code validates on the test
    sequences; here validation has separate sequences.
    """

    def build(self, network: Network, seed: int) -> LanguageModel:
        """Build the language model."""
        size = self.config.vocabulary
        return build_language_model(network, seed, self.config, size)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the next sequences of the shuffled epoch; a last partial batch is dropped."""
        order = epoch_batch(self.config.train_examples, batch_size, step=step, seed=seed)
        tokens, pairs = _draw(self.config, "train")
        chosen = torch.tensor(order[rows])
        return _make_batch(tokens[chosen], pairs[chosen])

    def scored(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits and targets of the queries. Other logits are not computed."""
        # Indices instead of masks: the host waits for a GPU only once.
        queries = (batch.targets != IGNORE_INDEX).nonzero(as_tuple=True)
        decoder = cast("Decoder", model)
        return decoder.head(decoder.features(batch.inputs)[queries]), batch.targets[queries]

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        """Yield all sequences of a split."""
        size = max(1, EVALUATION_BATCH_TOKENS // self.config.length)
        parts = (part.split(size) for part in _draw(self.config, split))
        return (_make_batch(*some) for some in zip(*parts, strict=True))

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the first validation sequence, with values as targets."""
        tokens, pairs = (part[:1] for part in _draw(self.config, "validation"))
        return AttentionExample(
            maps=example_maps(model, tokens.long()),
            tokens=tuple(map(str, tokens[0].tolist())),
            targets=tuple(
                None if pair == NO_ANSWER else 2 * pair + 1 for pair in pairs[0].tolist()
            ),
        )


def _make_batch(tokens: Tensor, pairs: Tensor) -> Batch:
    """Return sequences as inputs, with the values of the queried pairs as targets."""
    inputs, is_query = tokens.long(), pairs != NO_ANSWER
    values = inputs.gather(-1, torch.where(is_query, 2 * pairs + 1, 0).long())
    return Batch(inputs, torch.where(is_query, values, IGNORE_INDEX))


@functools.lru_cache(maxsize=6)
def _draw(config: RecallTaskConfig, split: DataSplit) -> tuple[Tensor, Tensor]:
    # Shared by all runs of this process.
    drawn = draw_recall(
        seed=config.data_seed,
        length=config.length,
        pairs=config.pairs,
        vocabulary=config.vocabulary,
        power=config.power,
        split=split,
        count=config.count_examples(split),
    )
    return torch.from_numpy(drawn.tokens), torch.from_numpy(drawn.pairs)


load = RecallTask
