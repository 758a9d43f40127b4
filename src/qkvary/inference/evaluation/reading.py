"""The settings for texts and tasks that are scored. Never imports torch."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import get_args

from qkvary.arch.parts import check_word
from qkvary.data.splits import DataSplit
from qkvary.inference.evaluation.local_tasks import FIVE, LOCAL_TASKS, LocalTask


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReading:
    """A text, and the windows in which it is scored."""

    data: tuple[Path, ...]
    """Files or folders of .txt and .jsonl, or one prepared set."""
    split: DataSplit = "validation"
    """The split of a prepared set."""
    tokens: int | None = None
    """The maximum number of tokens to read; ``None`` for all tokens."""
    context: int | None = None
    """The maximum number of tokens before a target; ``None`` for the network's maximum."""
    stride: int | None = None
    """Tokens between the starts of two windows; ``None`` for ``context``."""
    joined: bool = False
    """Whether documents are concatenated; otherwise each is read separately."""
    lengths: tuple[int, ...] = ()
    """Window lengths at which the perplexity by position is compared."""
    paper: bool = False
    """Whether to also score as the papers did: one document per row, padded with separators."""

    def __post_init__(self) -> None:
        check_word("split", self.split, get_args(DataSplit))
        if not self.data:
            raise ValueError("expected a text to score, got none")
        counts = {"tokens": self.tokens, "context": self.context, "stride": self.stride}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ValueError(f"expected {name} of at least 1, got {count}")
        if any(length < 1 for length in self.lengths):
            raise ValueError(f"expected lengths of at least 1 token, got {self.lengths}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReading:
    """Tasks, and the settings of their prompts."""

    tasks: tuple[str, ...]
    """Names of tasks; ``five`` means all local tasks except lambada."""
    task_data: Path | None = None
    """The folder of the task files; ``None`` for ``lm_eval`` in ``$QKVARY_DATA``."""
    fewshot: int | None = None
    """Solved examples before each question; ``None`` for the task's own number."""
    limit: int | None = None
    """The maximum number of questions per task, counted from the first; ``None`` for all."""
    against: str | None = None
    """A prepared set whose training split is searched for the questions: its folder, or its name in
    the cache."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"expected a limit of at least 1, got {self.limit}")
        if self.fewshot is not None and self.fewshot < 0:
            raise ValueError(f"expected fewshot of at least 0, got {self.fewshot}")
        if not self.tasks:
            given = "only a prepared data set to search for questions" if self.against else "none"
            raise ValueError(f"expected tasks, got {given}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks, each once."""
        names = (FIVE if name == "five" else (name,) for name in self.tasks)
        return tuple(dict.fromkeys(chain.from_iterable(names)))

    @property
    def local(self) -> dict[str, LocalTask]:
        """The tasks that are evaluated on local files alone."""
        return {name: LOCAL_TASKS[name] for name in self.names if name in LOCAL_TASKS}

    @property
    def others(self) -> tuple[str, ...]:
        """The tasks whose data sets may be downloaded."""
        return tuple(name for name in self.names if name not in LOCAL_TASKS)
