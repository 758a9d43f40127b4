"""What every task offers to the training loop; nothing else of a task is known elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from torch import Tensor, nn

from qkvary.arch.networks import NetworkConfig
from qkvary.data.tokenizers import Tokenizer

Split = Literal["validation", "test"]
"""The two splits that are scored; the training split is only drawn from."""


class Batch(NamedTuple):
    """What one training step sees."""

    inputs: Tensor
    """What the network is given."""
    targets: Tensor
    """What it should answer."""


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

    def build(self, network: NetworkConfig, seed: int) -> nn.Module:
        """Return the network, initialised from ``seed`` alone."""
        ...

    def batch(self, step: int, batch_size: int, seed: int) -> Batch:
        """Return the batch of one step: a pure function of its arguments."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the scalar training loss."""
        ...

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """Score a split, deterministically: the headline metric and always ``loss``.

        The caller has put the network into evaluation mode and turned gradients off.
        """
        ...

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of one validation example, or None where there are none.

        Called as ``evaluate`` is.
        """
        ...
