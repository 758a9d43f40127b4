"""What the five synthetic tasks share: random digits in, one digit per position out.

Knows everything of such a task but the answer; that stands in the file of the task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.networks import EncoderConfig, Network
from qkvary.data.digits import DigitSplit, draw_digits
from qkvary.data.random_numbers import permutation
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.encoder import Encoder
from qkvary.tasks.config import SequenceTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    SINGLE_PROCESS_CONTEXT,
    AttentionExample,
    Batch,
    EvaluationContext,
    Split,
)

TOKENS_SCORED_TOGETHER = 8_192
"""Digits in one forward call of an evaluation: as fast as any, and small in memory."""

MASS_EXAMPLES = 64
"""Test sequences over which ``attention_mass_on_target`` is averaged."""


Columns = Callable[[Tensor], Tensor]
"""Maps digits ``[batch, n]`` to the columns, same shape, from which the answers are taken."""


class DigitSequenceTask:
    """Answer every position of a random sequence with the digit of some column.

    ``y_i = f(x_c(i))`` with the column c(i) given by the task; f is the identity but in ``sub``.

    Loss: cross entropy, mean over digits. Metric: the share of digits that are right.

    Source: Borji 2023 (Key-Value Transformer), section 3.1; Kayyam et al. 2026, section 3.1. The
    published examples were drawn without a seed; here they follow from the config.
    """

    metric = "accuracy"
    higher_is_better = True
    tokenizer: Tokenizer | None = None

    def __init__(
        self,
        config: SequenceTaskConfig,
        columns: Columns,
        relabel: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Name the examples; they are drawn when first needed.

        Args:
            config: Lengths and sizes.
            columns: Where each answer is taken from.
            relabel: What becomes of the digits taken; nothing by default.
        """
        self.config = config
        self.columns = columns
        self.relabel = relabel
        self._splits: dict[DigitSplit, Tensor] = {}
        self._epoch: tuple[tuple[int, int], Tensor] | None = None

    @property
    def data_fingerprint(self) -> str:
        """Sha256 of what the sequences depend on."""
        return self.config.data_fingerprint

    def build(self, network: Network, seed: int) -> Encoder:
        """Build the encoder.

        Raises:
            ValueError: if the network is not an encoder that fits the digits.
        """
        digits, length = self.config.vocabulary, self.config.length
        if (
            not isinstance(network, EncoderConfig)
            or (network.vocabulary, network.classes) != (digits, digits)
            or network.max_tokens < length
        ):
            raise ValueError(
                f"expected an EncoderConfig with vocabulary and classes of {digits} and at least "
                f"{length} max_tokens for task {self.config.name}, got {network}"
            )
        return Encoder(network, seed=seed)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Take the next sequences of the epoch's shuffled order; a last partial batch is dropped.

        Raises:
            ValueError: if a batch is larger than the training split.
        """
        per_epoch = self.config.train_examples // batch_size
        if per_epoch < 1:
            raise ValueError(
                f"expected batches of at most {self.config.train_examples} examples, "
                f"got {batch_size}"
            )
        epoch, place = divmod(step, per_epoch)
        order = self._order(seed, epoch)[place * batch_size : (place + 1) * batch_size]
        return self._ask(self._examples("train")[order[rows]])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy, mean over digits."""
        return F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        _context: EvaluationContext = SINGLE_PROCESS_CONTEXT,
        /,
    ) -> dict[str, float]:
        """Score every sequence of a split: ``loss``, ``accuracy``; attention on the test split."""
        device = next(model.parameters()).device
        total = right = 0.0
        examples = self._examples(split)
        with torch.inference_mode():
            for batch in self._chunks(examples, device):
                logits = model(batch.inputs)
                flat = logits.flatten(0, 1)
                total += F.cross_entropy(flat, batch.targets.flatten(), reduction="sum").item()
                right += (logits.argmax(dim=-1) == batch.targets).sum().item()
        scores = {"loss": total / examples.numel(), "accuracy": right / examples.numel()}
        if split == "test":
            scores["attention_mass_on_target"] = self.attention_mass_on_target(model)
        return scores

    def attention_mass_on_target(self, model: nn.Module) -> float:
        """How much attention rests on the column that holds the answer, between 0 and 1.

        For each position of each of the first 64 test sequences: the largest weight that any head
        of any layer gives to the column the answer comes from. Then the mean over positions and
        sequences. 1 means that every position is read off by some head; with n tokens, L layers
        and H heads of uniform attention it is 1/n, and for unrelated attention it grows with L H,
        so compare it between networks of one size only.
        """
        device = next(model.parameters()).device
        tokens = self._examples("test")[:MASS_EXAMPLES].long()
        with torch.inference_mode():
            maps = self._maps(model, tokens.to(device))
            index = (
                self.columns(tokens).to(device)[:, None, None, :, None].expand(*maps.shape[:-1], 1)
            )
            mass = maps.gather(-1, index).squeeze(-1)
            return mass.amax(dim=(1, 2)).mean().item()

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the maps of the first validation sequence."""
        device = next(model.parameters()).device
        tokens = self._examples("validation")[:1].long()
        with torch.inference_mode():
            maps = self._maps(model, tokens.to(device))[0]
        return AttentionExample(
            maps=maps,
            tokens=tuple(str(digit) for digit in tokens[0].tolist()),
            targets=tuple(self.columns(tokens)[0].tolist()),
        )

    def _ask(self, examples: Tensor) -> Batch:
        tokens = examples.long()
        taken = tokens.gather(-1, self.columns(tokens))
        return Batch(inputs=tokens, targets=taken if self.relabel is None else self.relabel(taken))

    def _chunks(self, examples: Tensor, device: torch.device) -> Iterator[Batch]:
        for some in examples.split(max(1, TOKENS_SCORED_TOGETHER // self.config.length)):
            asked = self._ask(some)
            yield Batch(inputs=asked.inputs.to(device), targets=asked.targets.to(device))

    def _examples(self, split: DigitSplit) -> Tensor:
        if split not in self._splits:
            config = self.config
            count = {
                "train": config.train_examples,
                "validation": config.validation_examples,
                "test": config.test_examples,
            }[split]
            self._splits[split] = _draw(
                config.data_seed, config.length, split, count, config.vocabulary
            )
        return self._splits[split]

    def _order(self, seed: int, epoch: int) -> Tensor:
        if self._epoch is None or self._epoch[0] != (seed, epoch):
            order = permutation(self.config.train_examples, "order of examples", seed, epoch)
            self._epoch = (seed, epoch), torch.from_numpy(order)
        return self._epoch[1]

    @staticmethod
    def _maps(model: nn.Module, tokens: Tensor) -> Tensor:
        if not isinstance(model, Encoder):
            raise TypeError(f"expected an Encoder, got {type(model).__name__}")
        return model.attention_maps(tokens)


def positions_like(tokens: Tensor) -> Tensor:
    """The index of every position, in the shape of the digits."""
    return torch.arange(tokens.shape[-1], device=tokens.device).expand_as(tokens)


@functools.lru_cache(maxsize=9)
def _draw(seed: int, length: int, split: DigitSplit, count: int, vocabulary: int) -> Tensor:
    # Kept for the other tasks and runs of this process, a byte per digit where that is enough.
    digits = draw_digits(seed=seed, length=length, split=split, count=count, vocabulary=vocabulary)
    return torch.from_numpy(digits).to(torch.uint8 if vocabulary <= 256 else torch.int32)
