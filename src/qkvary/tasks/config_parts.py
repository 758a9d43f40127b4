"""Defines the metrics and checks that task configurations share. Does not import torch."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self, cast

from qkvary.arch.canonical import canonical_json
from qkvary.arch.networks import Network
from qkvary.arch.parts import check_choices, check_sizes, returned
from qkvary.data.splits import DataSplit
from qkvary.storage.errors import DamagedError


class Scale(NamedTuple):
    """The scores of a guess and of a perfect solver."""

    guess: float
    """The score of a solver that has learned nothing."""
    perfect: float
    """The best possible score of the metric."""

    def learnt(self, score: float) -> float:
        """Rescale a score: 0 for guessing, 1 for a perfect score, negative below guessing."""
        return (score - self.guess) / (self.perfect - self.guess)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """The configuration of a task, and everything about it that is known without training.

    A subclass is a frozen dataclass with a stored kind. The function ``load`` in the same file
    makes the task. If commands need the configuration without torch, ``load`` is in another file.
    """

    module: ClassVar[str] = ""
    """The module with the function ``load``. If empty, this is the module of the class."""
    metric: ClassVar[str]
    """Name of the headline metric, which is one of the scores of the task."""
    higher_is_better: ClassVar[bool]
    has_test: ClassVar[bool] = True
    is_language: ClassVar[bool] = False
    """Whether the task trains a language model, so that published tables of such models apply."""
    right_cell: ClassVar[str] = "the cell with the answer"
    """A phrase for the cell of an attention map that holds the answer of its row."""
    name: str

    def __post_init__(self) -> None:
        check_choices(self)
        numbers = (one for one in fields(self) if one.type in (int, int | None))
        # A number that is 0 by default, in a user's task, is no size.
        sizes = (one.name for one in numbers if one.default != 0)
        check_sizes(self, *(name for name in sizes if name != "data_seed"))

    @property
    def data_fingerprint(self) -> str:
        """sha256 of everything that determines the examples."""
        raise ValueError(f"expected the property data_fingerprint in {type(self).__name__}")

    @property
    def sequence_length(self) -> int:
        """The number of tokens in one sequence. Costs are computed from this number."""
        raise ValueError(f"expected the method count_tokens in {type(self).__name__}")

    def count_tokens(self, network: Network) -> int:
        """Return the number of tokens of one sequence. Costs are computed from this number."""
        del network
        return self.sequence_length

    def count_answers(self, network: Network) -> int | None:
        """Return the number of answers that a guess chooses from; None if it is not known.

        By default, this is the network's number of classes or, without classes, its vocabulary.
        """
        return getattr(network, "classes", None) or getattr(network, "vocabulary", None)

    def scale(self, network: Network, metric: str) -> Scale | None:
        """Return the scores of a guess and of a perfect solver in a metric; None if unknown.

        The name of the metric may have a prefix, as in ``test_accuracy``.
        """
        answers = self.count_answers(network)
        if answers is not None and metric.endswith("accuracy"):
            return Scale(1.0 / answers, 1.0)
        if answers is not None and metric.endswith("loss"):
            return Scale(math.log(answers), 0.0)
        return None

    def pinned(self) -> Self:
        """Return the task with its fingerprint, computed from the local data if it is missing."""
        return self

    def check_data(self, report: Callable[[str], None]) -> None:
        """Check the data; download or prepare missing data if possible.

        ``report`` is called with a message if this takes a while.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy(TaskConfig):
    """A task whose headline metric is accuracy."""

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnExamples(Accuracy):
    """A task whose sequences are drawn from a seed, with a given number of sequences per split."""

    length: int
    train_examples: int
    validation_examples: int
    test_examples: int
    data_seed: int = 42
    """Seed from which all three splits are drawn."""

    @property
    def sequence_length(self) -> int:
        """The number of tokens in one sequence. Costs are computed from this number."""
        return self.length

    @property
    def drawn(self) -> tuple[int, int, int, int]:
        """The number of examples of each split, and the seed from which all are drawn."""
        return self.train_examples, self.validation_examples, self.test_examples, self.data_seed

    def count_examples(self, split: DataSplit) -> int:
        """Return the number of examples of a split."""
        return getattr(self, f"{split}_examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrediction(TaskConfig):
    """A task that predicts the tokens of a window, with the loss as headline metric."""

    metric: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False
    context: int
    """Tokens per window."""

    @property
    def sequence_length(self) -> int:
        """The number of tokens in one sequence. Costs are computed from this number."""
        return self.context


class HashedData:
    """A task whose data is the file or folder ``data``, identified by ``data_sha256``.

    If no sha256 is given, loading the study computes it from the data on this machine.
    """

    __slots__ = ()
    data: str
    data_sha256: str | None

    @property
    def data_fingerprint(self) -> str:
        """The fingerprint of the data."""
        if self.data_sha256 is None:
            raise ValueError(
                f"expected data_sha256, the fingerprint of {self.data}, got None: call pinned() "
                "to compute it"
            )
        return self.data_sha256

    def find_fingerprint(self) -> str:
        """Return the fingerprint of the data on this machine."""
        raise NotImplementedError

    def require(self, found: str) -> None:
        """Raise an error if ``found`` is not the expected fingerprint."""
        if found != self.data_fingerprint:
            raise DamagedError(
                f"expected the data of {self.data} with sha256 {self.data_fingerprint}, got "
                f"{found}: the data is different or was changed"
            )

    def check_data(self, report: Callable[[str], None]) -> None:
        """Check the data."""
        del report
        self.require(self.find_fingerprint())

    def pinned(self) -> Self:
        """Return the task with its fingerprint, computed from the local data if it is missing."""
        if self.data_sha256 is not None:
            return self
        return replace(cast("Any", self), data_sha256=self.find_fingerprint())


def check_task(task: TaskConfig, network: Network) -> None:
    """Check that the configuration of a task has all members that studies need.

    Raises:
        ValueError: if a member is missing or has a wrong type. The message names the first one.
    """
    for name, kind in (("metric", str), ("higher_is_better", bool), ("data_fingerprint", str)):
        returned(task, name, getattr(task, name, None), kind)
    returned(task, "count_tokens", task.count_tokens(network), int)
    canonical_json(task)


def digest(*parts: object) -> str:
    """Return the sha256 of the given values.

    A task that draws its examples passes a version number as the second value. This number must be
    raised whenever a change of the code changes the examples.
    """
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()
