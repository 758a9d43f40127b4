"""What every task offers to the training loop; nothing else of a task is known elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.cache import KVCache
from qkvary.nn.decoder import Decoder

Split = Literal["validation", "test"]
"""The two splits that are scored; the training split is only drawn from."""


IGNORED = -100
"""The target of a position that no loss counts."""

EVERY_ROW = slice(None)
"""All rows of a batch."""


class Batch(NamedTuple):
    """What one training step sees, or some rows of it."""

    inputs: Tensor
    """What the network is given."""
    targets: Tensor
    """What it should answer; ``IGNORED`` where nothing is asked."""
    documents: Tensor | None = None
    """A number for each input, where tokens must not see other documents than their own."""
    source: Tensor | None = None
    """What an encoder reads, where the network has one beside its decoder."""

    @property
    def counted(self) -> int:
        """Targets that count in the loss."""
        return int((self.targets != IGNORED).sum())

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        documents, source = (
            None if part is None else part.to(device) for part in (self.documents, self.source)
        )
        return Batch(self.inputs.to(device), self.targets.to(device), documents, source)


def _as_they_are(values: Sequence[float]) -> list[float]:
    return list(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Which part of a score this process finds, and how the parts come together."""

    rank: int = 0
    """Counted from 0."""
    size: int = 1
    """Processes that score together."""
    add: Callable[[Sequence[float]], list[float]] = _as_they_are
    """Sums numbers over all processes; everybody calls it, and gets the same."""


ALONE = Ranks()
"""One process that finds all of it."""


class Generate(Protocol):
    """Continues prompts greedily: decoding, which tasks cannot import."""

    def __call__(
        self,
        model: Decoder,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop_tokens: Collection[int] = (),
        new_cache: Callable[[int], KVCache] | None = None,
    ) -> list[tuple[int, ...]]:
        """Return the new tokens of each prompt, the one that stops it left out.

        Args:
            model: In evaluation mode.
            prompts: Tokens, answered as one batch.
            max_new_tokens: Tokens of an answer at most.
            stop_tokens: Tokens that end an answer.
            new_cache: Makes the cache, given the tokens that it holds at most; by default one of
                the decoder's layers. What a decoder reads besides its tokens belongs in it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """What a run hands to a task that scores its network."""

    ranks: Ranks = ALONE
    """Which part of the score this process finds."""
    generate: Generate | None = None
    """Continues prompts, where the run can."""


IN_ONE_PROCESS = EvaluationContext()
"""One process, without generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionExample:
    """The attention of a network on one validation example."""

    maps: Tensor
    """Attention weights, ``[layers, heads, rows, columns]``."""
    tokens: tuple[str, ...]
    """The example's tokens, as they should be printed; one for each column."""
    targets: tuple[int | None, ...]
    """For each row the column that holds its answer; None where no single column does."""


class Task(Protocol):
    """Data, network, loss and metric of one question."""

    @property
    def metric(self) -> str:
        """The headline metric, a key of what ``evaluate`` returns, such as ``accuracy``."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger headline metric is the better one."""
        ...

    @property
    def data_fingerprint(self) -> str:
        """Sha256 of what the examples are made of; equal to that of the task's config."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What makes tokens of text and text of tokens, where the task is about text."""
        ...

    def build(self, network: Network, seed: int) -> nn.Module:
        """Return the network, initialised from ``seed`` alone."""
        ...

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = EVERY_ROW) -> Batch:
        """Return the batch of one step, or some rows of it: a pure function of its arguments."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the training loss: the mean over the targets that count."""
        ...

    def evaluate(
        self, model: nn.Module, split: Split, context: EvaluationContext = IN_ONE_PROCESS, /
    ) -> dict[str, float]:
        """Score a split, deterministically: the headline metric and always ``loss``.

        The caller has put the network into evaluation mode and turned gradients off. Where several
        processes score together, all of them run the network equally often.
        """
        ...

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of one validation example, or None where there are none.

        Called as ``evaluate`` is.
        """
        ...
