"""A task for the encoder-decoder: write the source backwards."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.networks import EncoderDecoderConfig, Network
from qkvary.nn.encoder_decoder import EncoderDecoder, EncoderDecoderCache
from qkvary.tasks.contract import (
    ALL_ROWS,
    SINGLE_PROCESS_CONTEXT,
    Batch,
    EvaluationContext,
    Split,
)
from qkvary.tasks.examples import AttentionExample

BEGIN, END = 0, 1
"""The end is also the padding."""


class ReverseTranslation:
    """Scored by what is generated, which the run hands down."""

    metric, higher_is_better, data_fingerprint, tokenizer = "exact", True, "backwards", None

    def __init__(self, length: int) -> None:
        self.length = length

    def build(self, network: Network, seed: int) -> EncoderDecoder:
        assert isinstance(network, EncoderDecoderConfig)
        return EncoderDecoder(network, seed=seed)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        random = torch.Generator().manual_seed(1_000 * seed + step)
        source = torch.randint(2, 7, (batch_size, self.length), generator=random)
        lengths = torch.randint(1, self.length + 1, (batch_size, 1), generator=random)
        source = source.masked_fill(torch.arange(self.length) >= lengths, END)
        answers = torch.stack([_answer(row) for row in source])
        inputs = F.pad(answers[:, :-1], (1, 0), value=BEGIN)
        return Batch(inputs[rows], answers[rows], None, source[rows])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch.inputs, source=batch.source)
        return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

    def evaluate(
        self, model: nn.Module, split: Split, context: EvaluationContext = SINGLE_PROCESS_CONTEXT, /
    ) -> dict[str, float]:
        batch = self.batch(10**6 + (split == "test"), 31, 0)
        assert isinstance(model, EncoderDecoder)
        assert batch.source is not None
        assert context.generate is not None
        memory, mask = model.encode(batch.source)
        said = context.generate(
            model,
            [[BEGIN]] * len(memory),
            max_new_tokens=self.length,
            stop_tokens=(END,),
            new_cache=lambda _tokens: EncoderDecoderCache(model.config, memory, mask),
        )
        wanted = [_until_end(row) for row in batch.targets.tolist()]
        right = [one == other for one, other in zip(said, wanted, strict=True)]
        return {"loss": self.loss(model, batch).item(), "exact": sum(right) / len(right)}

    def attention_example(self, _model: nn.Module) -> AttentionExample | None:
        return None


def _answer(row: Tensor) -> Tensor:
    backwards = row[row != END].flip(0)
    return F.pad(backwards, (0, len(row) + 1 - len(backwards)), value=END)


def _until_end(row: Sequence[int]) -> tuple[int, ...]:
    return tuple(row[: row.index(END)])
