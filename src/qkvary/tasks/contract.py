"""Defines the interface of tasks, and what classification tasks have in common.

The training loop uses tasks only through their interface.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from qkvary.arch.networks import EncoderConfig, LanguageModelConfig, Network
from qkvary.arch.parts import returned
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.encoder import Encoder
from qkvary.nn.fused_loss import IGNORE_INDEX
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import MisfitError
from qkvary.tasks.config_parts import TaskConfig
from qkvary.tasks.examples import AttentionExample, Sample

Split = Literal["validation", "test"]
ALL_ROWS = slice(None)
Config = TypeVar("Config", bound=TaskConfig)
Built = TypeVar("Built", bound=nn.Module)
EVALUATION_BATCH_TOKENS = 8_192
"""Tokens per forward pass of an evaluation. This number is fast and needs little memory."""


class Batch(NamedTuple):
    """A training batch, or some rows of it."""

    inputs: Tensor
    """Inputs of the network, one row per example."""
    targets: Tensor
    """Targets; ``IGNORE_INDEX`` at positions without a target."""
    documents: Tensor | None = None
    """Document number of each input, given if tokens must not attend to other documents."""
    source: Tensor | None = None
    """Inputs of the encoder, if the network has one."""

    @property
    def counted(self) -> int:
        """Number of targets that count in the loss."""
        return int((self.targets != IGNORE_INDEX).sum())

    def mean(self, total: Tensor) -> Tensor:
        """Return a sum divided by the number of counted targets, computed on the device."""
        return total / (self.targets != IGNORE_INDEX).sum().clamp(min=1)

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on a device. Copies to a GPU are asynchronous."""
        is_copied, moved = torch.device(device).type == "cuda", list[Tensor | None]()
        for part in self:
            ready = part
            if part is not None and is_copied and part.device.type == "cpu":
                # A copy from pageable memory to a GPU would wait for all earlier work.
                ready = part.pin_memory()
            moved.append(None if ready is None else ready.to(device, non_blocking=True))
        return Batch._make(moved)


class ProcessGroup:
    """The processes that score a network together: one process here, several in a subclass."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process of rank 0, which writes files and reports."""
        return self.rank == 0

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, with equal bits. Every process must call this."""
        return list(values)


Generate = Callable[..., list[tuple[int, ...]]]
"""Type of the function ``inference.decoding.generate``, which tasks get as an argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """Resources that a run passes to a task for scoring."""

    processes: ProcessGroup = field(default_factory=ProcessGroup)
    generate: Generate | None = None
    """The function for greedy decoding; None if the run does not support it."""


SINGLE_PROCESS_CONTEXT = EvaluationContext()


class Task(Protocol):
    """Data, network, loss and scores of a task. A ``TaskConfig`` describes a task without data."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, if the task is about text."""
        ...

    def build(self, network: Network, seed: int) -> nn.Module:
        """Return the network, initialized from ``seed`` alone."""
        ...

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the batch of one step, or some of its rows. Equal arguments give equal batches."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the training loss, the mean over the counted targets."""
        ...

    def evaluate(
        self, model: nn.Module, split: Split, context: EvaluationContext = SINGLE_PROCESS_CONTEXT, /
    ) -> dict[str, float]:
        """Score a split deterministically; return the headline metric, ``loss`` and other scores.

        The caller sets evaluation mode and disables gradients. If several processes score a split
        together, all must make the same number of forward passes.
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
        """
        ...


class ClassificationTask(Generic[Config]):
    """A task whose network scores all possible answers, per position or once per sequence.

    Loss: mean cross entropy over the counted targets. A subclass supplies the batches, and defines
    how they are evaluated.
    """

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None, because the task is not about text."""
        return None

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the logits of the answers, ``[..., answers]``."""
        return model(inputs)

    def scored(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits to score, and their targets. By default, these are all logits."""
        return self.logits(model, batch.inputs), batch.targets

    def evaluation_batches(self, split: Split) -> Iterable[Batch]:
        """Yield batches that contain each example of a split once."""
        raise NotImplementedError(
            f"expected the method evaluation_batches in {type(self).__name__}"
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross entropy over the targets, in nats."""
        return F.cross_entropy(*_flat(*self.scored(model, batch)))

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        _context: EvaluationContext = SINGLE_PROCESS_CONTEXT,
        /,
    ) -> dict[str, float]:
        """Return ``loss`` and ``accuracy`` over the targets of a split."""
        device = next(model.parameters()).device
        total = right = count = 0.0
        with torch.inference_mode():
            for batch in self.evaluation_batches(split):
                returned(self, "evaluation_batches", batch, Batch)
                logits, targets = self.scored(model, batch.to(device))
                total += F.cross_entropy(*_flat(logits, targets), reduction="sum").item()
                right += (logits.argmax(dim=-1) == targets).sum().item()
                count += (targets != IGNORE_INDEX).sum().item()
        if not count:
            raise ValueError(f"expected targets in the {split} split, got none")
        return {"loss": total / count, "accuracy": right / count}


def build_language_model(
    network: Network, seed: int, task: TaskConfig, vocabulary: int, *, more: bool = False
) -> LanguageModel:
    """Build a task's language model. With ``more``, the model's vocabulary may be larger."""
    return build_network(
        network,
        seed,
        LanguageModelConfig,
        LanguageModel,
        task=task.name,
        exact={} if more else {"vocabulary": vocabulary},
        least={"max_tokens": task.sequence_length, "vocabulary": vocabulary},
    )


def build_encoder(
    network: Network, seed: int, task: str, max_tokens: int, **exact: object
) -> Encoder:
    """Build an encoder for a task. The fields of ``network`` must have the values in ``exact``."""
    least = {"max_tokens": max_tokens}
    return build_network(network, seed, EncoderConfig, Encoder, task=task, exact=exact, least=least)


def build_network(
    network: Network,
    seed: int,
    kind: type[Network],
    built: type[Built],
    *,
    task: str,
    exact: Mapping[str, object],
    least: Mapping[str, int] | None = None,
) -> Built:
    """Build the network of a task from its configuration ``network``.

    ``network`` must be an instance of ``kind``. ``exact`` has values that its fields must have, and
    ``least`` has minimum values of fields. If ``network`` has a method ``make``, this method builds
    the network. Otherwise the class ``built`` builds it.
    """
    if not isinstance(network, kind):
        raise MisfitError(
            f"expected a {kind.__name__} for task {task}, got {type(network).__name__}"
        )
    for name, value in exact.items():
        if getattr(network, name) != value:
            raise MisfitError(
                f"expected a network with {name} {value} for task {task}, got "
                f"{getattr(network, name)}"
            )
    for name, value in (least or {}).items():
        if getattr(network, name) < value:
            raise MisfitError(
                f"expected a network with {name} of at least {value:,} for task {task}, got "
                f"{getattr(network, name):,}"
            )
    make: Callable[[int], Built] | None = getattr(network, "make", None)
    return built(network, seed=seed) if make is None else make(seed)


def attention_maps(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the attention maps of a network, ``[batch, layers, heads, rows, columns]``."""
    with torch.inference_mode():
        inputs = inputs.to(next(model.parameters()).device)
        return cast("Any", model).attention_maps(inputs)


def example_maps(model: nn.Module, inputs: Tensor) -> NDArray[np.float32]:
    """Return the attention maps of the first input, ``[layers, heads, rows, columns]``."""
    return attention_maps(model, inputs[:1])[0].float().cpu().numpy()


def plain_example(model: nn.Module, inputs: Tensor, tokens: Iterable[str]) -> AttentionExample:
    """Return the attention maps of the first input, without target columns."""
    shown = tuple(tokens)
    maps = example_maps(model, inputs)
    return AttentionExample(maps=maps, tokens=shown, targets=(None,) * len(shown))


def _flat(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return logits.flatten(0, -2), targets.flatten()
