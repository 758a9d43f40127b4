"""Any task that lm-eval knows, as lm-eval loads it: its data sets are local files or the hub's.

Unlike the tasks with local files (``harness``), these have the metrics that lm-eval gives them.
Needs the extra ``eval``.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from qkvary.data.downloads import cache_only, find_hub_problem
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.evaluation.answers import measure_accuracy
from qkvary.inference.evaluation.harness import SHOT_SEED, NetworkLM, be_quiet, require_any_text
from qkvary.inference.evaluation.local_tasks import LARGEST_FILE
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, QkvaryError, UsageError
from qkvary.storage.untrusted_files import parse_json, read_file
from qkvary.text.names import near_names


@dataclass(frozen=True, slots=True, kw_only=True)
class StockScore:
    """The score of a network on a task, or on a group of tasks."""

    documents: int | None
    """The number of questions; ``None`` for a group."""
    fewshot: int | None
    """Solved examples before each question; ``None`` for a group."""
    version: str
    """The version of the task in lm-eval."""
    cut_prompts: float | None
    """The share of prompts that were cut on the left to fit the network; ``None`` for a group, and
    for tasks that score whole texts."""
    metrics: Mapping[str, tuple[float, float | None]]
    """Value and standard error of each metric, by its name and, if it has one, its filter."""


def find_stock_tasks(names: Sequence[str]) -> TaskManager:
    """Look names up among the tasks, groups and tags of lm-eval.

    Args:
        names: The names.

    Raises:
        UsageError: for an unknown name; the message suggests the nearest.
    """
    manager = TaskManager()
    for name in names:
        if not manager.match_tasks([name]):
            near = near_names(name, manager.all_tasks)
            advice = f"did you mean {near[0]}?" if near else "`lm-eval ls tasks` lists all"
            raise UsageError(f"expected a task, got {name!r}; {advice}")
    return manager


def evaluate_stock_tasks(
    model: LanguageModel,
    tokenizer: Tokenizer,
    names: Sequence[str],
    manager: TaskManager,
    *,
    fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    folder: Path | None = None,
) -> dict[str, StockScore]:
    """Evaluate a network on tasks of lm-eval.

    Args:
        model: The network, in evaluation mode.
        tokenizer: The tokenizer of the network.
        names: Names of tasks, groups or tags.
        manager: The result of ``find_stock_tasks`` for them.
        fewshot: Solved examples before each question; by default those of each task.
        limit: The maximum number of questions per task, the first ones.
        batch_size: Requests per batch.
        folder: A folder with ``TASK_SPLIT.jsonl`` for some tasks, whose lines have the fields of
            the data set on the hub.

    Returns:
        Scores by the names of tasks and groups, as lm-eval lists them.

    Raises:
        UsageError: if the data of a task cannot be loaded, or lm-eval refuses the task.
        DamagedError: if a local file is damaged.
    """
    require_any_text(tokenizer)
    with be_quiet():
        lm = cast("Any", NetworkLM)(model, tokenizer, batch_size=batch_size)
        problem = find_hub_problem()
        advice = f", and it cannot be reached ({problem})" if problem else ""
        with (
            _explain(
                names,
                f"; data sets are downloaded from the hub unless they are in its cache{advice}",
            ),
            cache_only() if problem else nullcontext(),
            _local_rows(folder),
        ):
            tasks = manager.load(list(names))
        with _explain(names):
            for task in tasks["tasks"].values():
                _set_shots(task, fewshot)
            # lm-eval's bootstrapped standard errors would start one process per core.
            results = evaluate(lm, tasks, limit=limit, bootstrap_iters=0, log_samples=True)
    found = cast("Mapping[str, Any]", results)
    return {name: _read_score(found, name, lm.truncated_share(name)) for name in found["results"]}


@contextmanager
def _local_rows(folder: Path | None) -> Generator[None]:
    """Load tasks with the rows of local files, if they have any."""
    download = ConfigurableTask.download

    def load(task: ConfigurableTask, *arguments: Any, **options: Any) -> None:
        start = f"{task.config.task}_"
        paths = [] if folder is None else sorted(folder.glob(f"{start}*.jsonl"))
        splits = {path.stem.removeprefix(start): path for path in paths}
        config = task.config
        wanted = {config.training_split, config.validation_split, config.test_split}
        rows = {split: _read_rows(path) for split, path in splits.items() if split in wanted}
        if not rows:
            download(task, *arguments, **options)
            return
        task.dataset = cast("Any", rows)
        # A missing file means that the task does not have this split.
        for name in ("training_split", "validation_split", "test_split", "fewshot_split"):
            if getattr(config, name) not in rows:
                setattr(config, name, None)

    setattr(ConfigurableTask, "download", load)  # noqa: B010 -- restored below
    try:
        yield
    finally:
        setattr(ConfigurableTask, "download", download)  # noqa: B010


def _read_rows(path: Path) -> Dataset:
    lines = read_file(path, limit=LARGEST_FILE).splitlines()
    try:
        rows = [parse_json(line) for line in lines if line.strip()]
        if rows and all(isinstance(row, dict) for row in rows):
            return Dataset.from_list(rows)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(f"expected a JSON object on each line of {path}, got {error}") from None
    raise DamagedError(f"expected JSON objects in {path}, got none or other values")


@contextmanager
def _explain(names: Sequence[str], advice: str = "") -> Generator[None]:
    """Turn errors of lm-eval into one sentence; our errors and a full memory pass unchanged."""
    try:
        yield
    except (QkvaryError, torch.OutOfMemoryError):
        raise
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"lm-eval cannot evaluate {', '.join(names)}: {said[0]}{advice}"
        ) from error


def _set_shots(task: Any, fewshot: int | None) -> None:
    """Set the number of solved examples; a task without any keeps none, as in lm-eval."""
    if fewshot is not None and task.get_config("num_fewshot") != 0:
        task.set_config(key="num_fewshot", value=fewshot)
    task.set_fewshot_seed(seed=SHOT_SEED)


def _read_score(results: Mapping[str, Any], name: str, cut_prompts: float | None) -> StockScore:
    samples: Sequence[Mapping[str, Any]] = results.get("samples", {}).get(name, ())
    metrics: dict[str, tuple[float, float | None]] = {}
    for key, value in results["results"][name].items():
        metric, _, rule = key.partition(",")
        if metric.endswith("_stderr") or not isinstance(value, int | float) or not rule:
            continue
        label = metric if rule == "none" else f"{metric} ({rule})"
        answers = [one[metric] for one in samples if one["filter"] == rule and metric in one]
        metrics[label] = (float(value), _error_of_mean(answers, float(value)))
    counts = results.get("n-samples", {}).get(name)
    return StockScore(
        documents=None if counts is None else int(counts["effective"]),
        fewshot=results.get("n-shot", {}).get(name),
        version=str(results.get("versions", {}).get(name, "")),
        metrics=metrics,
        cut_prompts=cut_prompts,
    )


def _error_of_mean(answers: Sequence[Any], value: float) -> float | None:
    """Return the standard error of a metric that is the mean of its answers, else None."""
    if not answers or not all(isinstance(one, int | float) for one in answers):
        return None
    measured = measure_accuracy([float(one) for one in answers])
    is_mean = math.isclose(measured.value, value, rel_tol=1e-9, abs_tol=1e-12)
    return measured.error if is_mean and math.isfinite(measured.error) else None
