"""``qk.generate`` and ``qk.evaluate``: texts continued and scored by a language model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast, overload

from qkvary.api.arguments import open_checkpoint, read_count, read_texts
from qkvary.api.options import Checkpoint
from qkvary.api.results import Result
from qkvary.checkpoints.models import LoadedModel
from qkvary.data.split_names import DataSplit
from qkvary.inference.decoding import complete
from qkvary.inference.evaluation.identity import identify
from qkvary.inference.evaluation.reading import TaskReading, TextReading
from qkvary.inference.evaluation.task_measurement import (
    TaskMeasurement,
    measure_tasks,
    prepare_tasks,
)
from qkvary.inference.evaluation.text_measurement import TextMeasurement, measure_text
from qkvary.inference.prompts import choose_sampling, make_requests
from qkvary.reports.evaluation import evaluation_report, text_data
from qkvary.reports.evaluation import task_data as describe_tasks
from qkvary.reports.report import Report
from qkvary.storage.errors import UsageError
from qkvary.storage.paths import StrPath, read_path
from qkvary.text.names import suggest

_COUNTS = {"tokens", "context", "stride", "fewshot", "limit"}
"""Options of ``evaluate`` that are numbers, also as text such as ``32k``."""


@overload
def generate(
    model: Checkpoint,
    prompt: str,
    *,
    tokens: int | str | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] = (),
    seed: int = 0,
) -> str: ...


@overload
def generate(
    model: Checkpoint,
    prompt: list[str] | tuple[str, ...],
    *,
    tokens: int | str | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] = (),
    seed: int = 0,
) -> list[str]: ...


def generate(
    model: Checkpoint,
    prompt: str | Sequence[str],
    *,
    tokens: int | str | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] = (),
    seed: int = 0,
) -> str | list[str]:
    """Continue a text, or several together.

    The same call gives the same text on the same machine. Other prompts change an answer by
    rounding at most.

    Args:
        model: The name or path of a checkpoint, or what ``qk.load`` returned.
        prompt: The text to continue, or several.
        tokens: Maximum new tokens; by default as many as the model has positions for, up to 256.
        temperature: The divisor of the logits; 0 takes the most probable token. By default 0, or 1
            with a filter.
        top_k: Choose among the k most probable tokens.
        top_p: Choose among the fewest tokens of this probability.
        min_p: Drop tokens below this share of the highest probability.
        repetition_penalty: Above 1: penalise tokens seen before.
        stop: End before this text, or any of several.
        seed: Seed of the random numbers.

    Returns:
        The new text, without the prompt; a list of them for several prompts.

    Raises:
        ValueError: if there is no such checkpoint, it has no tokenizer, or a prompt or a number is
            out of its range.
        DamagedError: if the checkpoint is damaged.
    """
    loaded, _ = open_checkpoint(model)
    if loaded.tokenizer is None:
        raise ValueError("expected a checkpoint with a tokenizer, got one without")
    prompts = list(prompt) if isinstance(prompt, list | tuple) else [cast("str", prompt)]
    requests = make_requests(
        loaded.tokenizer,
        prompts,
        max_tokens=loaded.network.config.max_tokens,
        tokens=None if tokens is None else read_count(tokens),
        sampling=choose_sampling(
            temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
        ),
        stop=_read_stop(stop),
        seed=seed,
    )
    answers = complete(loaded.network, requests, tokenizer=loaded.tokenizer)
    texts = [answer.text for answer in answers]
    return texts[0] if isinstance(prompt, str) else texts


def _read_stop(given: object) -> tuple[str, ...]:
    if not isinstance(given, str | Sequence):
        raise UsageError(f"expected texts for stop, got {given!r}")
    return (given,) if isinstance(given, str) else tuple(cast("Sequence[str]", given))


@overload
def evaluate(
    model: Checkpoint,
    data: StrPath | Sequence[StrPath],
    *,
    split: DataSplit = "validation",
    tokens: int | str | None = None,
    context: int | str | None = None,
    stride: int | str | None = None,
    joined: bool = False,
    lengths: Sequence[int | str] = (),
    paper: bool = False,
    batch_size: int = 8,
) -> Result[TextMeasurement]: ...


@overload
def evaluate(
    model: Checkpoint,
    *,
    tasks: str | Sequence[str],
    task_data: StrPath | None = None,
    fewshot: int | None = None,
    limit: int | None = None,
    against: StrPath | None = None,
    batch_size: int = 8,
) -> Result[TaskMeasurement]: ...


def evaluate(
    model: Checkpoint,
    data: StrPath | Sequence[StrPath] | None = None,
    *,
    tasks: str | Sequence[str] | None = None,
    batch_size: int = 8,
    **options: Any,
) -> Result[TextMeasurement] | Result[TaskMeasurement]:
    """Score a language model on a text or on tasks.

    A text gives the perplexity per token, per byte and as the papers counted; tasks give accuracies
    with their standard error and their distance from guessing.

    Args:
        model: The name or path of a checkpoint, or what ``qk.load`` returned.
        data: Files or folders of .txt and .jsonl, or a prepared set.
        split: The split of a prepared set.
        tokens: Maximum number of tokens to read.
        context: Maximum tokens before a target; by default the maximum of the network.
        stride: Tokens between starts of windows; as many as ``context`` by default.
        joined: Read documents one after the other, not separately.
        lengths: Also give the perplexity by position from windows of these lengths.
        paper: Also count as the papers did: a document per row, padded with separators.
        tasks: Instead of a text, tasks of lm-eval: ``arc_easy``, ``arc_challenge``,
            ``hellaswag``, ``piqa``, ``winogrande`` (``five``: these) and ``lambada`` from local
            files; any other task from the hub.
        task_data: The folder of the task files; by default ``lm_eval`` in ``$QKVARY_DATA``.
        fewshot: Solved examples before each question; by default 5, and 0 for lambada; for a task
            from the hub those of lm-eval, which keeps none where the task is made for none.
        limit: Maximum number of questions per task, from the first.
        against: A prepared set; questions that share 13 words in a row with its training split
            are counted, and the others scored separately.
        batch_size: Windows or requests per batch; changes rounding only.
        **options: Those above, of a text or of tasks.

    Raises:
        ValueError: if there is no such checkpoint, text or task, or the network cannot read such
            windows.
        DamagedError: if the checkpoint, the set or a file of a task is damaged.
    """
    if read_count(batch_size) < 1:
        raise ValueError(f"expected a batch_size of at least 1, got {batch_size}")
    if data is not None and tasks is None:
        settings = _read_options(options, TextReading, "a text")
        lengths = tuple(dict.fromkeys(map(read_count, settings.pop("lengths", ()))))
        reading = TextReading(data=read_texts(data), lengths=lengths, **settings)
        loaded, name = open_checkpoint(model)
        measured = measure_text(loaded, reading, batch_size=batch_size)
        return Result(measured, _report(loaded, name, batch_size, text_data(measured)))
    if tasks is None or data is not None:
        given = "neither" if tasks is None else "both"
        raise UsageError(f"expected a text or tasks, got {given}")
    settings = _read_options(options, TaskReading, "tasks")
    if settings.get("task_data") is not None:
        settings["task_data"] = read_path(settings["task_data"], "a folder of task files")
    if settings.get("against") is not None:
        settings["against"] = os.fspath(settings["against"])
    names = map(str.strip, tasks.split(",")) if isinstance(tasks, str) else tasks
    asked = prepare_tasks(TaskReading(tasks=tuple(names), **settings))
    loaded, name = open_checkpoint(model)
    if loaded.tokenizer is None:
        raise ValueError("expected a checkpoint with a tokenizer, got one without")
    answered = measure_tasks(loaded, asked, batch_size=batch_size)
    return Result(answered, _report(loaded, name, batch_size, describe_tasks(answered)))


def _read_options(
    options: Mapping[str, Any], kind: type[TextReading | TaskReading], what: str
) -> dict[str, Any]:
    """Return the options of a text or of tasks; refuse others."""
    # The first field is the text, or the tasks.
    known = [one.name for one in fields(kind)[1:]]
    for name in options:
        if name not in known:
            raise UsageError(
                f"expected an option of qk.evaluate for {what}, got {name!r}; "
                + suggest(name, known)
            )
    return {
        name: read_count(value) if name in _COUNTS and value is not None else value
        for name, value in options.items()
    }


def _report(
    loaded: LoadedModel, name: str, batch_size: int, figures: Mapping[str, object]
) -> Report:
    identity = identify(loaded.network, loaded.tokenizer)
    document = {"checkpoint": name, "batch_size": batch_size, "identity": identity}
    return evaluation_report({**document, **figures})
