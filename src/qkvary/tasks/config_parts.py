"""The common parts of configurations of tasks: metrics, checks, constants. Torch-free."""

import hashlib
from typing import Any, ClassVar, Literal, NamedTuple

from qkvary.data.split_names import DataSplit

SequenceTaskName = Literal["reverse", "sort", "sub", "swap", "copy"]
"""The five synthetic tasks."""

Evaluation = Literal["exact", "sampled"]
"""``exact`` scores every position of a split once, ``sampled`` random batches as published."""

Protocol = Literal["packed", "padded-paper"]
"""Windows over concatenated documents, or one padded document per row."""

NumberProtocol = Literal["as-published", "clean"]
"""Spelled numbers without 8000, the last windows scored as validation and as test; or all numbers,
with windows of all sizes of numbers in three disjoint splits."""

ImageSplits = Literal["clean", "as-published"]
"""``clean`` holds validation images out; ``as-published`` validates on the test images, or on
images that are mostly trained on too."""

TranslationProtocol = Literal["as-published", "clean"]
"""Loss and BLEU of paper 2's code, which padding dilutes and marks inflate; or per token, and
sacreBLEU."""

AnomalyOrder = Literal["shuffled", "last"]
"""Place of the anomaly in a set."""

TEXT_VOCABULARY = 257
"""Distinct tokens of labelled texts: all bytes, and the padding behind short texts."""

MULTI30K_TOKENS = 14
"""Words of an average training sentence of Multi30k and the mark at its end, in both languages."""

ANOMALY_DATA_VERSION = 1
"""Incremented by hand when other sets of images are drawn."""

SEQUENCE_DATA_VERSION = 1
"""Incremented by hand when the generator draws other synthetic sequences."""

NUMBER_DATA_VERSION = 1
"""Incremented by hand when the spelled numbers or their splits change."""

RECALL_DATA_VERSION = 1
"""Incremented by hand when the generator draws other sequences of pairs and queries."""


class Scale(NamedTuple):
    """The two ends of a metric."""

    guess: float
    """The score of a solver that learns nothing."""
    perfect: float
    """The best possible score."""

    def learnt(self, score: float) -> float:
        """Return the share of the way from a guess to a perfect score, negative below a guess."""
        return (score - self.guess) / (self.perfect - self.guess)


class Accuracy:
    """A task whose headline metric is accuracy."""

    __slots__ = ()
    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    has_test: ClassVar[bool] = True


class DrawnExamples(Accuracy):
    """A task whose examples are drawn from a seed, a number of them for each split."""

    __slots__ = ()
    train_examples: int
    validation_examples: int
    test_examples: int

    def count_examples(self, split: DataSplit) -> int:
        """Return the number of examples of a split."""
        return {
            "train": self.train_examples,
            "validation": self.validation_examples,
            "test": self.test_examples,
        }[split]


class NextToken:
    """A task that predicts the next token of a window, whose headline metric is the loss."""

    __slots__ = ()
    metric: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False
    context: int

    @property
    def sequence_length(self) -> int:
        """Tokens in one sequence, for the costs."""
        return self.context


class HashedData:
    """A task with data of its own, which a sha256 identifies."""

    __slots__ = ()
    data_sha256: str

    @property
    def data_fingerprint(self) -> str:
        """The fingerprint of the data."""
        return self.data_sha256


def check_sizes(task: Any, *sizes: str) -> None:
    """Refuse sizes below 1; None is no size.

    Args:
        task: A configuration.
        sizes: Names of its fields.

    Raises:
        ValueError: if one is below 1.
    """
    for name in sizes:
        value: int | None = getattr(task, name)
        if value is not None and value < 1:
            raise ValueError(f"task {task.name}: {name} must be at least 1, got {value}")


def digest(*parts: object) -> str:
    """Return the sha256 of values."""
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()
