"""Evaluation on tasks: lm-eval's prompts and scoring, our networks, local copies of data sets.

Only this module and ``network_lm`` use lm-eval (docs/decisions/0014). Needs the extra ``eval``.
"""

import math
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from qkvary.checkpoints.models import LoadedModel
from qkvary.data.downloads import cache_only, find_hub_problem
from qkvary.data.prepared import open_prepared
from qkvary.data.prepared_sets import find_prepared
from qkvary.data.tokenizers import CharacterTokenizer, Tokenizer
from qkvary.inference.evaluation.contamination import TrainingText
from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS, read_rows
from qkvary.inference.evaluation.network_lm import NetworkLM, be_quiet
from qkvary.inference.evaluation.reading import TaskReading
from qkvary.inference.evaluation.task_scores import (
    Contamination,
    Metric,
    TaskMeasurement,
    TaskScore,
    measure_mean,
)
from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.text.names import near_names
from qkvary.text.progress_line import ShowProgress, no_progress

SHOT_SEED = 1234
"""lm-eval's own seed, which selects the few-shot examples of each question."""
_ACCURACIES = ("acc", "acc_norm")
_LABELS = re.compile(r"^Question: |\nAnswer:(?= )")
"""The labels that prompts put around a question; a training text may lack them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTasks:
    """Tasks that exist, with everything that scoring them needs."""

    reading: TaskReading
    folder: Path | None
    against: TrainingText | None
    """The training text that is searched for the questions."""
    manager: TaskManager

    def load(self) -> dict[str, Any]:
        """Load tasks and groups as lm-eval does, and set the number of few-shot examples.

        The questions and examples of a task that has local files are read from these files.
        """
        reading, advice, problem = self.reading, "", None
        local = {one.task: one for one in reading.local.values()}
        paths = [str(files("lm_eval") / "tasks" / one.config) for one in local.values()]
        if reading.others:
            problem = find_hub_problem()
            advice = "; data sets are downloaded from the Hugging Face hub unless the local cache "
            advice += "of the hub already contains them"
            advice += f", and the hub cannot be reached ({problem})" if problem else ""
        with (
            _explain(reading.names, advice),
            cache_only() if problem else nullcontext(),
            nullcontext() if self.folder is None else _local_rows(self.folder),
        ):
            found = self.manager.load([*paths, *reading.others])
        for name, task in found["tasks"].items():
            shots = local[name].usual_shots if name in local else None
            shots = shots if reading.fewshot is None else reading.fewshot
            # A task that wants no examples gets none, as in lm-eval.
            if shots is not None and task.get_config("num_fewshot") != 0:
                task.set_config(key="num_fewshot", value=shots)
            _check_shots(task)
            task.set_fewshot_seed(seed=SHOT_SEED)
        return cast("dict[str, Any]", found)


def prepare_tasks(reading: TaskReading) -> PreparedTasks:
    """Check that the tasks and their files exist, before a network is loaded."""
    others, folder = reading.others, reading.task_data
    if others and reading.against is not None:
        raise UsageError(
            f"expected only tasks with local files with --against, got {', '.join(others)}; "
            f"choices: {', '.join(LOCAL_TASKS)}"
        )
    against = None
    if reading.against is not None:
        against = TrainingText(open_prepared(find_prepared(reading.against)))
    if folder is None and (root := os.environ.get("QKVARY_DATA")):
        folder = Path(root) / "lm_eval"
    for name, task in reading.local.items():
        if folder is None:
            raise UsageError(
                "expected a folder with the files of the tasks: give --task-data, or set "
                "QKVARY_DATA to a folder with lm_eval in it"
            )
        if not (folder / task.evaluated).is_file():
            raise UsageError(
                f"expected {task.evaluated} in {folder} for {name}, got no such file; nothing is "
                "downloaded"
            )
    # Building the index of all tasks takes seconds.
    manager = TaskManager(include_defaults=bool(others))
    for name in others:
        if not manager.match_tasks([name]):
            near = near_names(name, manager.all_tasks)
            advice = f"did you mean {near[0]}?" if near else "`lm-eval ls tasks` lists all"
            raise UsageError(f"expected a task, got {name!r}; {advice}")
    return PreparedTasks(reading=reading, folder=folder, against=against, manager=manager)


def measure_tasks(
    loaded: LoadedModel,
    asked: PreparedTasks,
    *,
    batch_size: int = 8,
    show_progress: ShowProgress = no_progress,
) -> TaskMeasurement:
    """Score a language model on tasks; ``batch_size`` changes rounding only."""
    reading, tokenizer = asked.reading, cast("Tokenizer", loaded.tokenizer)
    if isinstance(tokenizer, CharacterTokenizer):
        raise UsageError(
            f"expected a tokenizer for any text, got one of {tokenizer.vocabulary} characters; "
            "tasks need a byte-level or BPE tokenizer"
        )
    with be_quiet():
        lm = cast("Any", NetworkLM)(loaded.network, tokenizer, batch_size=batch_size)
        found = asked.load()
        tasks = found["tasks"]
        shared: Mapping[str, Sequence[bool]] = {}
        if asked.against is not None:
            with show_progress("reading training text") as on_progress:
                texts = {
                    name: [question_text(task, one) for one in [*task.eval_docs][: reading.limit]]
                    for name, task in tasks.items()
                }
                questions = [*chain.from_iterable(texts.values())]
                answers = iter(asked.against.find(questions, on_progress=on_progress))
                shared = {name: [next(answers) for _ in one] for name, one in texts.items()}
        with _explain(reading.names):
            # lm-eval's bootstrapped standard errors would start one process per core.
            results: Any = evaluate(
                lm, found, limit=reading.limit, bootstrap_iters=0, log_samples=True
            )
    names = {one.task: name for name, one in reading.local.items()}
    return TaskMeasurement(
        reading=reading,
        against=asked.against and asked.against.describe(),
        scores={
            str(names.get(name, name)): _read_score(
                results, name, tasks.get(name), shared.get(name), lm.truncated_share(name)
            )
            for name in results["results"]
        },
        lm_eval=version("lm_eval"),
    )


def question_text(task: Any, document: Mapping[str, Any]) -> str:
    """Return a question and its correct answer as lm-eval's prompt has them, without labels."""
    requests: Any = task.construct_requests(
        document, task.fewshot_context(document, 0), metadata=(task.config.task, 0, 1)
    )
    if task.OUTPUT_TYPE == "multiple_choice":
        # If the choices are in the question, doc_to_text returns the index of the right one.
        right = task.doc_to_text if task.multiple_input else task.doc_to_target
        requests = requests[right(document)]
    return _LABELS.sub("", "".join(requests.args))


class LocalRows(dict[str, Dataset]):
    """The rows of a task, keyed by the names of their files, which serve as names of splits."""


@contextmanager
def _local_rows(folder: Path) -> Generator[None]:
    """Make lm-eval read tasks from local files in the ``with`` block, where a task has such files.

    The rows of local files are not cached on disk.
    """
    download = ConfigurableTask.download

    def load(task: ConfigurableTask, *arguments: Any, **options: Any) -> None:
        config, shots = task.config, cast("Any", task.fewshot_cfg)
        local = next((one for one in LOCAL_TASKS.values() if one.task == config.task), None)
        if local and (folder / local.evaluated).is_file():
            # If questions and examples come from the same test split, lm-eval excludes the question
            # from its examples.
            found = {"test": local.evaluated, "shots": local.find_shots(folder)}
            if local.is_processed:
                config.process_docs = shots.process_docs = None
        else:
            splits = {
                "training": config.training_split,
                "validation": config.validation_split,
                "test": config.test_split,
                "shots": shots.split,
            }
            paths = {use: folder / f"{config.task}_{split}.jsonl" for use, split in splits.items()}
            found = {use: path.name for use, path in paths.items() if path.is_file()}
        if not found:
            download(task, *arguments, **options)
            return
        convert = local and local.convert
        rows = {
            file: Dataset.from_list(read_rows(folder / file, convert)) for file in {*found.values()}
        }
        task.dataset = cast("Any", LocalRows(rows))
        # A missing file means that the task does not have this split.
        config.training_split = found.get("training")
        config.validation_split = found.get("validation")
        config.test_split, shots.split = found.get("test"), found.get("shots")

    # lm-eval has no argument for data sets that are in memory already.
    with patch.object(ConfigurableTask, "download", load):
        yield


def _check_shots(task: Any) -> None:
    """Check that a task with local rows has as many few-shot examples as requested."""
    split, wanted = _name_files(task)[1], task.get_config("num_fewshot") or 0
    if split:
        available = len(task.dataset[split]) - (split == task.config.test_split)
        if wanted > available:
            raise UsageError(
                f"expected 0 to {available} few-shot examples for {task.config.task} ({split}), "
                f"got {wanted}"
            )


def _name_files(task: Any) -> tuple[str | None, str | None]:
    """Return the local files of the questions and of the few-shot examples."""
    if not isinstance(getattr(task, "dataset", None), LocalRows):
        return None, None
    return task.config.test_split or task.config.validation_split, task.fewshot_cfg.split


@contextmanager
def _explain(names: Sequence[str], advice: str = "") -> Generator[None]:
    """Turn errors of lm-eval into one sentence; our errors and MemoryError pass unchanged."""
    try:
        yield
    except (QkvaryError, torch.OutOfMemoryError):
        raise
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"lm-eval cannot evaluate {', '.join(names)}: {said[0]}{advice}"
        ) from error


def _read_score(
    results: Mapping[str, Any],
    name: str,
    task: Any,
    shared: Sequence[bool] | None,
    cut_prompts: float | None,
) -> TaskScore:
    samples: Sequence[Mapping[str, Any]] = results["samples"].get(name, ())
    metrics: dict[str, Metric] = {}
    for key, value in results["results"][name].items():
        metric, _, rule = key.partition(",")
        if metric.endswith("_stderr") or not isinstance(value, int | float) or not rule:
            continue
        label = metric if rule == "none" else f"{metric} ({rule})"
        found = _measure(task, metric, [one for one in samples if one["filter"] == rule])
        is_mean = found and math.isclose(found.value, value, rel_tol=1e-9, abs_tol=1e-12)
        metrics[label] = found if found and is_mean else Metric(value=float(value))
    contamination = None
    if shared is not None:
        clean = [one for one in samples if not shared[one["doc_id"]]]
        found = {metric: _measure(task, metric, clean) for metric in _ACCURACIES}
        contamination = Contamination(
            questions=len(samples),
            shared=len(samples) - len(clean),
            metrics={metric: one for metric, one in found.items() if one},
        )
    evaluated, shots_from = _name_files(task)
    fewshot = results["n-shot"].get(name)
    counts = results["n-samples"].get(name)
    return TaskScore(
        task=name,
        documents=None if counts is None else int(counts["effective"]),
        evaluated=evaluated,
        fewshot=fewshot,
        shots_from=shots_from if fewshot else None,
        metrics=metrics,
        cut_prompts=cut_prompts,
        version=str(results["versions"].get(name, "")),
        contamination=contamination,
    )


def _measure(task: Any, metric: str, samples: Sequence[Mapping[str, Any]]) -> Metric | None:
    """Return the mean of a metric over questions; None unless every question has a number."""
    samples = [one for one in samples if metric in one]
    answers = [one[metric] for one in samples]
    if not answers or not all(isinstance(one, int | float) for one in answers):
        return None
    choices = None
    if (
        metric in _ACCURACIES
        and task.OUTPUT_TYPE == "multiple_choice"
        and isinstance(task, ConfigurableTask)
        and not task.config.process_results
        and not task.multiple_target
    ):
        choices = [len(task.doc_to_choice(one["doc"])) for one in samples]
    return measure_mean([float(one) for one in answers], choices)
