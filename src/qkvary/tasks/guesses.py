"""What a solver that learns nothing scores in each task, and a perfect one. Torch-free."""

import math

from qkvary.arch.networks import Network
from qkvary.data.recall import score_positions
from qkvary.tasks.config import (
    AnomalyTaskConfig,
    ImageTaskConfig,
    LanguageTaskConfig,
    RecallTaskConfig,
    SequenceTaskConfig,
    TaskConfig,
    TextTaskConfig,
)
from qkvary.tasks.config_parts import Scale

PADDING_MULTIPLE = 64
"""Tables of language models are padded to a multiple of this, as the papers' and the presets'."""


def scale_of(task: TaskConfig, network: Network, metric: str) -> Scale | None:
    """Return the scale of a metric, or None if a guess is not known.

    A guess is uniform; in recall it knows which pair is the likeliest at the position of a query,
    and in a table that may be padded that the tokens of the padding never occur.

    Args:
        task: The task.
        network: Its network.
        metric: Name of the metric, such as ``test_accuracy``; its last word says what it is.
    """
    if metric.endswith("bleu"):
        return Scale(0.0, 1.0 if metric.endswith("published_bleu") else 100.0)
    match task:
        case SequenceTaskConfig():
            choices = task.vocabulary
        case ImageTaskConfig():
            choices = task.images.classes
        case AnomalyTaskConfig():
            choices = task.set_size
        case RecallTaskConfig():
            return Scale(score_positions(task.length, task.pairs, task.power), 1.0)
        case TextTaskConfig():
            choices = getattr(network, "classes", None)
        case _:
            choices = getattr(network, "vocabulary", None)
            if isinstance(task, LanguageTaskConfig) and choices is not None:
                choices = _without_padding(choices)
    if choices is not None and metric.endswith("accuracy"):
        return Scale(1.0 / choices, 1.0)
    if choices is not None and metric.endswith("loss"):
        return Scale(math.log(choices), 0.0)
    return None


def _without_padding(rows: int) -> int:
    """Return the fewest tokens that a table of so many rows may have been padded for."""
    is_padded = rows > PADDING_MULTIPLE and rows % PADDING_MULTIPLE == 0
    return rows - PADDING_MULTIPLE + 1 if is_padded else rows
