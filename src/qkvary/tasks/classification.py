"""The common part of tasks whose loss is the cross entropy of one answer out of several."""

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.data.tokenizers import Tokenizer
from qkvary.tasks.config import TaskConfig
from qkvary.tasks.contract import SINGLE_PROCESS_CONTEXT, Batch, EvaluationContext, Split

Config = TypeVar("Config", bound=TaskConfig)


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
        """Return logits and targets where a batch is scored: everywhere."""
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


def _flat(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return logits.flatten(0, -2), targets.flatten()
