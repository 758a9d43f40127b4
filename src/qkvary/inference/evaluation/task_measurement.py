"""Evaluation on tasks: lm-eval's prompts and scoring, our networks, local copies of data sets.

Only this module and ``network_lm`` use lm-eval (docs/decisions/0014). Needs the extra ``eval``.
"""

import math
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from qkvary.checkpoints.models import LoadedModel
from qkvary.data.downloads import cache_only, find_hub_problem
from qkvary.data.prepared import open_prepared
from qkvary.data.prepared_sets import find_prepared
from qkvary.data.tokenizers import CharacterTokenizer, Tokenizer
from qkvary.inference.evaluation.contamination import TrainingText
from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS, LocalTask, read_rows
from qkvary.inference.evaluation.network_lm import NetworkLM, be_quiet
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
    """Tasks whose names and files have been checked, and everything needed to score them."""

    names: tuple[str, ...]
    folder: Path | None
    """The folder of the task files."""
    fewshot: int | None
    """Number of solved examples before each question; ``None`` for the task's own number."""
    limit: int | None
    """The maximum number of questions per task, counted from the first; ``None`` for all."""
    against: TrainingText | None
    """The training text that is searched for the questions."""
    manager: TaskManager

    def load(self) -> dict[str, Any]:
        """Load tasks and groups, with the number of few-shot examples, in the form of lm-eval."""
        local = [self._load_local(one) for one in _find_local(self.names).values()]
        others, advice, problem = _find_others(self.names), "", None
        if others:
            problem = find_hub_problem()
            advice = (
                "; data sets are downloaded from the Hugging Face hub unless the local cache of "
                "the hub already contains them"
            )
            advice += f", but the hub cannot be reached ({problem})" if problem else ""
        with _explain(self.names, advice), cache_only() if problem else nullcontext():
            found = self.manager.load([*local, *others])
        for task in found["tasks"].values():
            # A task that wants no examples gets none, as in lm-eval.
            if self.fewshot is not None and task.get_config("num_fewshot") != 0:
                task.set_config(key="num_fewshot", value=self.fewshot)
            task.set_fewshot_seed(seed=SHOT_SEED)
        return cast("dict[str, Any]", found)

    def _load_local(self, task: LocalTask) -> ConfigurableTask:
        """Return a task of lm-eval that reads its questions and examples from local files."""
        folder = cast("Path", self.folder)
        shots = task.find_shots(folder)
        rows = {
            file: Dataset.from_list(read_rows(folder / file, task.convert))
            for file in {task.evaluated, shots}
        }
        wanted = task.usual_shots if self.fewshot is None else self.fewshot
        available = len(rows[shots]) - (shots == task.evaluated)
        if wanted > available:
            raise UsageError(
                f"expected 0 to {available} few-shot examples for {task.task} ({shots}), got "
                f"{wanted}"
            )
        config = load_yaml(str(files("lm_eval") / "tasks" / task.config))
        if task.is_processed:
            del config["process_docs"]
        # If questions and examples come from the same test split, lm-eval excludes the question
        # from its examples.
        splits = {"validation_split": None, "test_split": task.evaluated, "fewshot_split": shots}
        config |= {"training_split": None, **splits, "num_fewshot": wanted}

        def take_rows(**_options: object) -> dict[str, Dataset]:
            return rows

        return ConfigurableTask(config={**config, "tag": None, "custom_dataset": take_rows})


def _find_local(names: Sequence[str]) -> dict[str, LocalTask]:
    """Return the tasks that are evaluated on local files alone."""
    return {name: LOCAL_TASKS[name] for name in names if name in LOCAL_TASKS}


def _find_others(names: Sequence[str]) -> list[str]:
    """Return the tasks whose data sets may be downloaded."""
    return [name for name in names if name not in LOCAL_TASKS]


def prepare_tasks(
    names: tuple[str, ...],
    *,
    task_data: Path | None = None,
    fewshot: int | None = None,
    limit: int | None = None,
    against: str | None = None,
) -> PreparedTasks:
    """Check that tasks and their files exist, before a network is loaded.

    Args:
        names: The tasks.
        task_data: The folder of the task files; ``None`` for ``lm_eval`` in ``$QKVARY_DATA``.
        fewshot: See :class:`PreparedTasks`.
        limit: See :class:`PreparedTasks`.
        against: A prepared set whose training split is searched for the questions: its folder, or
            its name in the cache.
    """
    others, folder = _find_others(names), task_data
    if others and against is not None:
        raise UsageError(
            f"expected only tasks with local files with --against, got {', '.join(others)}; "
            f"choices: {', '.join(LOCAL_TASKS)}"
        )
    text = None if against is None else TrainingText(open_prepared(find_prepared(against)))
    if folder is None and (root := os.environ.get("QKVARY_DATA")):
        folder = Path(root) / "lm_eval"
    for name, task in _find_local(names).items():
        if folder is None:
            raise UsageError(
                "expected a folder with the files of the tasks: give --task-data, or set "
                "QKVARY_DATA to a folder that contains lm_eval"
            )
        if not (folder / task.evaluated).is_file():
            raise UsageError(
                f"expected the file {task.evaluated} of the task {name} in {folder}, got none; "
                "qkvary does not download it"
            )
    # Building the index of all tasks takes seconds.
    manager = TaskManager(include_defaults=bool(others))
    for name in others:
        if not manager.match_tasks([name]):
            near = near_names(name, manager.all_tasks)
            advice = f"did you mean {near[0]}?" if near else "`lm-eval ls tasks` lists all tasks"
            raise UsageError(f"expected a task, got {name!r}; {advice}")
    return PreparedTasks(
        names=names, folder=folder, fewshot=fewshot, limit=limit, against=text, manager=manager
    )


def measure_tasks(
    loaded: LoadedModel,
    asked: PreparedTasks,
    *,
    batch_size: int = 8,
    show_progress: ShowProgress = no_progress,
) -> TaskMeasurement:
    """Score a language model on tasks; ``batch_size`` changes rounding only."""
    tokenizer = cast("Tokenizer", loaded.tokenizer)
    if isinstance(tokenizer, CharacterTokenizer):
        raise UsageError(
            "expected a tokenizer that encodes any text, got one for only "
            f"{tokenizer.vocabulary} characters; tasks need a byte-level or BPE tokenizer"
        )
    with show_progress("answering", "requests") as answering, be_quiet(answering):
        lm = cast("Any", NetworkLM)(loaded.network, tokenizer, batch_size=batch_size)
        found = asked.load()
        tasks = found["tasks"]
        shared: Mapping[str, Sequence[bool]] = {}
        if asked.against is not None:
            with show_progress("reading training text") as on_progress:
                texts = {
                    name: [question_text(task, one) for one in [*task.eval_docs][: asked.limit]]
                    for name, task in tasks.items()
                }
                questions = [*chain.from_iterable(texts.values())]
                answers = iter(asked.against.find(questions, on_progress=on_progress))
                shared = {name: [next(answers) for _ in one] for name, one in texts.items()}
        with _explain(asked.names):
            # lm-eval's bootstrapped standard errors would start one process per core.
            results: Any = evaluate(
                lm, found, limit=asked.limit, bootstrap_iters=0, log_samples=True
            )
    local = {one.task: name for name, one in _find_local(asked.names).items()}
    scores: dict[str, TaskScore] = {}
    for name in results["results"]:
        score = _read_score(results, name, tasks.get(name), shared.get(name), lm)
        if name in local:
            task = tasks[name]
            shots = task.fewshot_cfg.split if score.fewshot else None
            score = replace(score, evaluated=task.config.test_split, shots_from=shots)
        scores[str(local.get(name, name))] = score
    return TaskMeasurement(
        limit=asked.limit,
        against=asked.against and asked.against.describe(),
        scores=scores,
        lm_eval=version("lm_eval"),
    )


def question_text(task: Any, document: Mapping[str, Any]) -> str:
    """Return a question and its correct answer as in lm-eval's prompt, without the labels."""
    requests: Any = task.construct_requests(
        document, task.fewshot_context(document, 0), metadata=(task.config.task, 0, 1)
    )
    if task.OUTPUT_TYPE == "multiple_choice":
        # If the choices are in the question, doc_to_text returns the index of the right one.
        right = task.doc_to_text if task.multiple_input else task.doc_to_target
        requests = requests[right(document)]
    return _LABELS.sub("", "".join(requests.args))


@contextmanager
def _explain(names: Sequence[str], advice: str = "") -> Generator[None]:
    """Turn errors of lm-eval into one line. Errors of qkvary and of memory pass unchanged."""
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
    lm: Any,
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
    counts = results["n-samples"].get(name)
    return TaskScore(
        task=name,
        documents=None if counts is None else int(counts["effective"]),
        fewshot=results["n-shot"].get(name),
        metrics=metrics,
        cut_prompts=lm.truncated_share(name),
        version=str(results["versions"].get(name, "")),
        contamination=contamination,
    )


def _measure(task: Any, metric: str, samples: Sequence[Mapping[str, Any]]) -> Metric | None:
    """Return the mean of a metric over questions; None if a question has no number."""
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
