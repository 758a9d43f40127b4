"""The common part of tasks whose loss is the cross entropy of one answer out of several."""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from qkvary.arch.networks import LanguageModelConfig, Network
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.tasks.config import (
    CharacterTaskConfig,
    LanguageTaskConfig,
    NumberTaskConfig,
    RecallTaskConfig,
    TaskConfig,
)
from qkvary.tasks.contract import SINGLE_PROCESS_CONTEXT, Batch, EvaluationContext, Split

Config = TypeVar("Config", bound=TaskConfig)
Kind = TypeVar("Kind", bound=Network)
Built = TypeVar("Built", bound=nn.Module)
_Decoded = CharacterTaskConfig | LanguageTaskConfig | NumberTaskConfig | RecallTaskConfig

EVALUATION_BATCH_TOKENS = 8_192
"""Tokens per forward call of an evaluation: fast, and small in memory."""


class _Mapped(Protocol):
    def attention_maps(self, inputs: Tensor, /) -> Tensor: ...


class ClassificationTask(Generic[Config]):
    """A task whose network gives logits over the answers, for each position or for all.

    Loss: mean cross entropy over the counted targets. A subclass has the batches, and says how they
    are evaluated.
    """

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def metric(self) -> str:
        """The headline metric."""
        return self.config.metric

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger headline metric is better."""
        return self.config.higher_is_better

    @property
    def data_fingerprint(self) -> str:
        """sha256 of what determines the examples."""
        return self.config.data_fingerprint

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None: the task is not about text."""
        return None

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the logits of the answers, ``[..., answers]``."""
        return model(inputs)

    def scored(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits and targets that are scored: by default all of them."""
        return self.logits(model, batch.inputs), batch.targets

    def evaluation_batches(self, split: Split) -> Iterable[Batch]:
        """Yield the examples of a split, each once."""
        raise NotImplementedError

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
                logits, targets = self.scored(model, batch.to(device))
                total += F.cross_entropy(*_flat(logits, targets), reduction="sum").item()
                right += (logits.argmax(dim=-1) == targets).sum().item()
                count += targets.numel()
        return {"loss": total / count, "accuracy": right / count}


def build_language_model(
    network: Network, seed: int, task: _Decoded, vocabulary: int, *, more: bool = False
) -> LanguageModel:
    """Build the language model of a task with so many tokens; ``more`` admits others.

    Raises:
        ValueError: if the network is not a language model that fits the task.
    """
    exact = {} if more else {"vocabulary": vocabulary}
    fewest = {"max_tokens": task.sequence_length, "vocabulary": vocabulary}
    fitting = require_network(network, LanguageModelConfig, task.name, exact=exact, least=fewest)
    return build_network(fitting, LanguageModel, seed)


def build_network(network: Network, kind: type[Built], seed: int) -> Built:
    """Build a network by the ``make`` of a user's configuration, or as the usual class."""
    make: Callable[[int], Built] | None = getattr(network, "make", None)
    return kind(network, seed=seed) if make is None else make(seed)


def require_network(
    network: Network,
    kind: type[Kind],
    task: str,
    *,
    exact: Mapping[str, object],
    least: Mapping[str, int] | None = None,
) -> Kind:
    """Return a network that fits a task.

    Args:
        network: The network.
        kind: The class that its configuration must have.
        task: The name of the task, for messages.
        exact: Values that its fields must have, by name.
        least: Values that its fields must reach, by name.

    Raises:
        ValueError: for the first condition that is not met, with the value of the field.
    """
    if not isinstance(network, kind):
        # All bad input is a ValueError.
        raise ValueError(  # noqa: TRY004
            f"expected a network of {kind.__name__} for task {task}, got {type(network).__name__}"
        )
    for name, value in exact.items():
        if getattr(network, name) != value:
            raise ValueError(
                f"expected the {name} {value} of a network for task {task}, got "
                f"{getattr(network, name)}"
            )
    for name, value in (least or {}).items():
        if getattr(network, name) < value:
            raise ValueError(
                f"expected {name} of at least {value:,} of a network for task {task}, got "
                f"{getattr(network, name):,}"
            )
    return network


def attention_maps(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the attention maps of a network, ``[batch, layers, heads, rows, columns]``.

    Raises:
        TypeError: if the network has none.
    """
    if not hasattr(model, "attention_maps"):
        raise TypeError(f"expected a network with attention maps, got {type(model).__name__}")
    with torch.inference_mode():
        inputs = inputs.to(next(model.parameters()).device)
        return cast("_Mapped", model).attention_maps(inputs)


def example_maps(model: nn.Module, inputs: Tensor) -> NDArray[np.float32]:
    """Return the attention maps of the first of these inputs, ``[layers, heads, rows, columns]``.

    Raises:
        TypeError: if the network has none.
    """
    return attention_maps(model, inputs[:1])[0].float().cpu().numpy()


def _flat(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return logits.flatten(0, -2), targets.flatten()
