"""The evaluations, imported when one is asked for: a command line is read without torch."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from qkvary.storage.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from qkvary.data.tokenizers import Tokenizer
    from qkvary.inference.evaluation.answers import MeanScore, TaskScore
    from qkvary.inference.evaluation.contamination import TrainingText
    from qkvary.inference.evaluation.identity import Identity
    from qkvary.inference.evaluation.lengths import LengthScore
    from qkvary.inference.evaluation.perplexity import PaperScore, TextScore
    from qkvary.inference.evaluation.texts import Text
    from qkvary.nn.language_model import LanguageModel

_HERE = "qkvary.inference.evaluation"


class TextMeasures(NamedTuple):
    """What can be measured on a text."""

    make_text: Callable[[Tokenizer, Iterable[str]], Text]
    """``texts.make_text``: documents as tokens."""
    read_documents: Callable[[Sequence[Path]], Iterable[str]]
    """``texts.read_documents``: those of files and folders."""
    is_prepared: Callable[[Path], bool]
    """``prepared.is_prepared``: whether a folder is a prepared set."""
    open_split: Callable[..., tuple[Tokenizer, Text]]
    """``texts.open_split``: a split of a prepared set."""
    protocol: Callable[..., Any]
    """``perplexity.Protocol``: how they are read."""
    score_text: Callable[..., TextScore]
    """``perplexity.score_text``: every token once."""
    score_as_papers: Callable[..., PaperScore]
    """``perplexity.score_as_papers``: padding included."""
    score_lengths: Callable[..., tuple[LengthScore, ...]]
    """``lengths.score_lengths``: by position, from windows of several lengths."""
    lengthen: Callable[[LanguageModel, int], LanguageModel]
    """``lengths.lengthen``: the same network for more tokens."""


class TaskMeasures(NamedTuple):
    """What can be asked."""

    ask: Callable[..., dict[str, TaskScore]]
    """``harness.ask``: the questions of tasks."""
    average: Callable[[dict[str, TaskScore]], MeanScore | None]
    """``answers.average``: the mean of the five."""
    version: str
    """Of lm-eval."""


def load_text_measures() -> TextMeasures:
    """What needs torch and a text."""
    texts, perplexity, lengths = (
        import_module(f"{_HERE}.{name}") for name in ("texts", "perplexity", "lengths")
    )
    return TextMeasures(
        make_text=texts.make_text,
        read_documents=texts.read_documents,
        is_prepared=import_module("qkvary.data.prepared").is_prepared,
        open_split=texts.open_split,
        protocol=perplexity.Protocol,
        score_text=perplexity.score_text,
        score_as_papers=perplexity.score_as_papers,
        score_lengths=lengths.score_lengths,
        lengthen=lengths.lengthen,
    )


def load_task_measures() -> TaskMeasures:
    """What needs lm-eval.

    Raises:
        UsageError: if it is not installed.
    """
    require_lm_eval()
    harness, answers = (import_module(f"{_HERE}.{name}") for name in ("harness", "answers"))
    return TaskMeasures(ask=harness.ask, average=answers.average, version=harness.lm_eval_version())


def require_lm_eval() -> None:
    """Refuse to go on without lm-eval.

    Raises:
        UsageError: if it is not installed.
    """
    if find_spec("lm_eval") is None:
        raise UsageError("lm_eval is not installed: pip install 'qkvary[eval]' brings it")


def load_training_text() -> Callable[[str], TrainingText]:
    """``contamination.open_training_text``: where questions are looked for. Torch-free."""
    return import_module(f"{_HERE}.contamination").open_training_text


def load_identify() -> Callable[[LanguageModel, Tokenizer | None], Identity]:
    """``identity.identify``: what a figure belongs to."""
    return import_module(f"{_HERE}.identity").identify
