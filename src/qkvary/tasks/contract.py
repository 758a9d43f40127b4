"""The interface of tasks; the training loop uses nothing else of a task."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.cache import KVCache
from qkvary.nn.decoder import Decoder
from qkvary.nn.fused_loss import IGNORE_INDEX
from qkvary.tasks.examples import AttentionExample, Sample

Split = Literal["validation", "test"]
"""The splits that are scored."""


ALL_ROWS = slice(None)
"""All rows of a batch."""


class Batch(NamedTuple):
    """A training batch, or some rows of it."""

    inputs: Tensor
    """Inputs of the network."""
    targets: Tensor
    """Targets; ``IGNORE_INDEX`` where there is none."""
    documents: Tensor | None = None
    """Document number of each input, if tokens must not attend to other documents."""
    source: Tensor | None = None
    """Inputs of the encoder, if the network has one."""

    @property
    def counted(self) -> int:
        """Number of targets that count in the loss."""
        return int(self._counted())

    def mean(self, total: Tensor) -> Tensor:
        """Return a sum over the targets that count, divided by their number.

        The number stays on the device: the host does not wait for it.
        """
        return total / self._counted().clamp(min=1)

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on a device; the host does not wait for a GPU to copy it."""
        there = torch.device(device)
        documents, source = (
            None if part is None else _move(part, there) for part in (self.documents, self.source)
        )
        return Batch(_move(self.inputs, there), _move(self.targets, there), documents, source)

    def _counted(self) -> Tensor:
        return (self.targets != IGNORE_INDEX).sum()


def _move(part: Tensor, device: torch.device) -> Tensor:
    # Of other memory a GPU copies only once it has done everything before.
    ready = part.pin_memory() if device.type == "cuda" and part.device.type == "cpu" else part
    return ready.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The processes that score a network together, seen from one of them."""

    rank: int = 0
    """Rank of this process."""
    size: int = 1
    """Number of processes."""
    all_reduce: Callable[[Sequence[float]], list[float]] = list[float]
    """Sums numbers over all processes; collective."""


SINGLE_PROCESS = ProcessGroup()
"""A group of one process."""


class Generate(Protocol):
    """Greedy decoding; an argument, because tasks cannot import ``inference``."""

    def __call__(
        self,
        model: Decoder,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop_tokens: Collection[int] = (),
        new_cache: Callable[[int], KVCache] | None = None,
    ) -> list[tuple[int, ...]]:
        """Return the new tokens of each prompt, without the stop token.

        Args:
            model: The decoder, in evaluation mode.
            prompts: Tokens of the prompts, decoded as one batch.
            max_new_tokens: Maximum number of new tokens.
            stop_tokens: Tokens that end an answer.
            new_cache: Creates the cache for a maximum number of tokens; by default that of the
                decoder's layers. It also holds other inputs of the decoder.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """Resources that a run passes to a task for scoring."""

    processes: ProcessGroup = SINGLE_PROCESS
    """The processes that score together."""
    generate: Generate | None = None
    """Greedy decoding, if the run supports it."""


SINGLE_PROCESS_CONTEXT = EvaluationContext()
"""A context of one process, without generation."""


class Task(Protocol):
    """Data, network, loss and metrics of a task."""

    @property
    def metric(self) -> str:
        """The headline metric, a key of the result of ``evaluate``, such as ``accuracy``."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger headline metric is better."""
        ...

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the data; equal to that of the task's config."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, if the task is about text."""
        ...

    def build(self, network: Network, seed: int) -> nn.Module:
        """Return the network, initialized from ``seed`` alone."""
        ...

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the batch of one step, or some rows of it: a pure function of its arguments."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the training loss, the mean over the counted targets."""
        ...

    def evaluate(
        self, model: nn.Module, split: Split, context: EvaluationContext = SINGLE_PROCESS_CONTEXT, /
    ) -> dict[str, float]:
        """Score a split deterministically; return the headline metric and always ``loss``.

        The caller sets evaluation mode and disables gradients. Several processes that score
        together all run the network equally often.
        """
        ...

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of one validation example, or None if there are none.

        The caller sets evaluation mode and disables gradients.
        """
        ...


@runtime_checkable
class ShowsSamples(Protocol):
    """A task whose questions and answers can be shown."""

    def samples(self, model: nn.Module, generate: Generate | None = None) -> tuple[Sample, ...]:
        """Return the first few questions of the validation split with the network's answers.

        The caller sets evaluation mode and disables gradients.

        Args:
            model: The network.
            generate: Decodes with a cache, for tasks that decode.
        """
        ...
