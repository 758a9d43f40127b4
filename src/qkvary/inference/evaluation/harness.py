"""Tasks with lm-eval: its prompts and scoring, our networks, and local copies of the data.

All code specific to lm-eval is here and in ``stock_tasks`` (docs/decisions/0014). Needs the extra
``eval``.
"""

import logging
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import datasets
import lm_eval.api.task
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks._yaml_loader import load_yaml
from tokenizers import Tokenizer as LibraryModel
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from qkvary.checkpoints.huggingface.causal import QKVForCausalLM
from qkvary.data.tokenizers import CharacterTokenizer, Tokenizer
from qkvary.inference.decoding import stream
from qkvary.inference.evaluation.answers import Accuracy, Contamination, TaskScore, measure_accuracy
from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS, LocalRows, read_rows
from qkvary.inference.requests import GREEDY, MAX_STOPS, Request, Sampling
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError

SHOT_SEED = 1234
"""lm-eval's own seed, which selects the solved examples of each question."""
_REMEMBERED = 64
"""Number of texts whose tokens are cached: all choices of a question share a prompt."""
_LONGEST_ANSWER = 256
"""Maximum tokens of a generated answer if the task sets none; lm-eval's default."""
_UNKNOWN = "<unk>"
_SPLIT, _SHOTS = "evaluated", "shots"
_LABELS = re.compile(r"^Question: |\nAnswer:(?= )")
"""The labels that prompts put around a question; a training text may lack them."""
FindShared = Callable[[Sequence[str]], Sequence[bool]]
"""Returns for each text whether it shares a run of words with the training text."""


class ConfiguredTask(NamedTuple):
    """A task with its documents."""

    task: Any
    """The task of lm-eval."""
    rows: LocalRows
    """The documents of the task."""
    fewshot: int
    """Solved examples before each question."""


class NetworkLM(HFLM):
    """lm-eval's class for models of transformers, with the tokenizer of the checkpoint."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, *, batch_size: int) -> None:
        """Wrap a network; its weights are shared.

        Args:
            model: The network, in evaluation mode.
            tokenizer: The tokenizer of the network.
            batch_size: Requests per batch.
        """
        self._network, self._words = model, tokenizer
        self._encode: Callable[[str], list[int]] = lru_cache(_REMEMBERED)(tokenizer.encode)
        self._begin = tokenizer.beginning
        begin = tokenizer.separator if self._begin is None else self._begin
        self._prefix = 0 if begin is None else begin
        self._limit = model.config.max_tokens
        self._names: list[str] = []
        """The tasks that the current requests belong to."""
        self._cut: dict[str, list[bool]] = {}
        """For each task, whether each prompt lost its beginning."""
        self._is_watched = sys.stderr.isatty()
        options: dict[str, Any] = {
            "pretrained": QKVForCausalLM.wrap(model),
            "tokenizer": _make_stand_in(),
            "max_length": self._limit,
            "batch_size": batch_size,
            "prefix_token_id": self._prefix,
        }
        super().__init__(**options)

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **_kwargs: Any,
    ) -> list[int]:
        """Return the tokens of a text, encoded as for training."""
        found = self._encode(string)
        if add_special_tokens is False and found[:1] == [self._begin]:
            found = found[1:]
        return found[-left_truncate_len:] if left_truncate_len else list(found)

    def generate_until(self, requests: list[Any], **_options: Any) -> list[str]:
        """Continue prompts one by one; a prompt that does not fit loses its beginning.

        Raises:
            UsageError: for a task whose answers leave the prompt no room.
        """
        answers: list[str] = []
        for request in requests:
            context, options = request.args
            until = options.get("until") or []
            stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
            if len(stops) > MAX_STOPS:
                raise UsageError(
                    f"expected at most {MAX_STOPS} texts that end an answer, got {len(stops)} in "
                    f"{request.task_name}"
                )
            longest = int(options.get("max_gen_toks", _LONGEST_ANSWER))
            room = self._limit - longest
            if room < 1:
                raise UsageError(
                    f"expected answers of less than {self._limit:,} tokens for this network, got "
                    f"up to {longest:,} in {request.task_name}"
                )
            prompt = self.tok_encode(context)
            self._count(request.task_name, is_cut=len(prompt) > room)
            asked = Request(
                prompt=tuple(prompt[-room:] or [self._prefix]),
                max_new_tokens=longest,
                sampling=_sampling(options),
                stop=tuple(stops),
                stop_tokens=tuple(self._words.ends),
            )
            events = stream(self._network, [asked], tokenizer=self._words)
            answers.append("".join(event.text for event in events))
        return answers

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        """Answer requests; the progress bar appears only on a terminal."""
        hidden = disable_tqdm or not self._is_watched
        self._names = [request.task_name for request in requests]
        try:
            return cast("Any", super()).loglikelihood(requests, disable_tqdm=hidden)
        finally:
            self._names = []

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        """Score whole texts; the progress bar appears only on a terminal."""
        hidden = disable_tqdm or not self._is_watched
        return cast("Any", super()).loglikelihood_rolling(requests, disable_tqdm=hidden)

    def truncated_share(self, task: str) -> float | None:
        """Return the share of a task's prompts that lost their beginning; None for no prompts."""
        cut = self._cut.get(task)
        return None if not cut else sum(cut) / len(cut)

    def _count(self, task: str, *, is_cut: bool) -> None:
        self._cut.setdefault(task, []).append(is_cut)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> Any:
        """Count the prompts that do not fit before lm-eval truncates them on the left.

        Raises:
            UsageError: if an answer alone does not fit, or is empty.
        """
        # Windows of a rolling text belong to no task, and are not cut.
        names = self._names or [""] * len(requests)
        for name, (_, context, answer) in zip(names, requests, strict=True):
            if not 0 < len(answer) <= self._limit:
                raise UsageError(
                    f"expected answers of 1 to {self._limit:,} tokens for this network, got "
                    f"{len(answer):,} in {name or 'a task'}: leave it out of --tasks, or evaluate "
                    "a network with more positions"
                )
            self._count(name, is_cut=len(context) + len(answer) > self._limit + 1)
        # Decorators of lm-eval hide the method from type checkers.
        return super()._loglikelihood_tokens(  # pyright: ignore[reportAttributeAccessIssue]
            requests, disable_tqdm=disable_tqdm, override_bs=override_bs
        )


def _sampling(options: Mapping[str, Any]) -> Sampling:
    if not options.get("do_sample") or not options.get("temperature"):
        return GREEDY
    return Sampling(
        temperature=float(options["temperature"]),
        **{name: options[name] for name in ("top_k", "top_p", "min_p") if options.get(name)},
    )


def evaluate_tasks(
    model: LanguageModel,
    tokenizer: Tokenizer,
    names: Sequence[str],
    *,
    folder: Path,
    fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    find_shared: FindShared | None = None,
) -> dict[str, TaskScore]:
    """Evaluate a network on tasks.

    Args:
        model: The network, in evaluation mode.
        tokenizer: The tokenizer of the network.
        names: Names from ``LOCAL_TASKS``.
        folder: The folder of the local copies.
        fewshot: Solved examples before each question; by default that of the task.
        limit: The maximum number of questions per task, the first ones.
        batch_size: Requests per batch.
        find_shared: Called once with all questions and their correct answers, to detect
            contamination.

    Raises:
        UsageError: for an unknown task, a missing file, a tokenizer that cannot encode every text,
            or too few examples.
        DamagedError: if a file is damaged.
    """
    require_any_text(tokenizer)
    with be_quiet():
        asked = {name: configure_task(name, folder, fewshot=fewshot) for name in names}
        lm = cast("Any", NetworkLM)(model, tokenizer, batch_size=batch_size)
        shared = {} if find_shared is None else _find_shared_questions(asked, limit, find_shared)
        return {
            name: _evaluate_task(lm, name, one, limit, shared.get(name))
            for name, one in asked.items()
        }


def require_any_text(tokenizer: Tokenizer) -> None:
    """Check that a tokenizer can encode every text.

    Raises:
        UsageError: if it cannot.
    """
    if isinstance(tokenizer, CharacterTokenizer):
        raise UsageError(
            f"expected a tokenizer for any text, got one of {tokenizer.vocabulary} characters; "
            "tasks need a byte-level or BPE tokenizer"
        )


def _find_shared_questions(
    asked: Mapping[str, ConfiguredTask], limit: int | None, find_shared: FindShared
) -> dict[str, list[bool]]:
    texts = {
        name: [question_text(one.task, document) for document in [*one.task.eval_docs][:limit]]
        for name, one in asked.items()
    }
    found = iter(find_shared([*chain.from_iterable(texts.values())]))
    return {name: [next(found) for _ in questions] for name, questions in texts.items()}


def question_text(task: Any, document: Mapping[str, Any]) -> str:
    """Return a question with its correct answer in lm-eval's words, without its labels.

    Args:
        task: The task of lm-eval.
        document: One of its documents.
    """
    requests: Any = task.construct_requests(
        document, task.fewshot_context(document, 0), metadata=(task.config.task, 0, 1)
    )
    if task.OUTPUT_TYPE == "multiple_choice":
        # If the choices are in the question, doc_to_text returns the index of the right one.
        right = task.doc_to_text if task.multiple_input else task.doc_to_target
        requests = requests[right(document)]
    return _LABELS.sub("", "".join(requests.args))


def configure_task(name: str, folder: Path, *, fewshot: int | None = None) -> ConfiguredTask:
    """Return a task with lm-eval's prompts on the local copy of its data.

    Args:
        name: A name from ``LOCAL_TASKS``.
        folder: The folder of the local copies.
        fewshot: Solved examples before each question; by default that of the task.

    Raises:
        UsageError: for an unknown task, a missing file, or too few examples.
        DamagedError: if a file is damaged.
    """
    if name not in LOCAL_TASKS:
        raise UsageError(f"expected a task, got {name!r}; choices: {', '.join(LOCAL_TASKS)}")
    local = LOCAL_TASKS[name]
    rows = read_rows(name, folder)
    shots = local.usual_shots if fewshot is None else fewshot
    available = len(rows.evaluated) - 1 if rows.shots is None else len(rows.shots)
    if not 0 <= shots <= available:
        raise UsageError(
            f"expected 0 to {available} solved examples for {name} ({rows.shots_file}), got {shots}"
        )
    return ConfiguredTask(_configure(local.config, rows, shots, local.overrides or {}), rows, shots)


def _configure(config: str, rows: LocalRows, shots: int, overrides: Mapping[str, Any]) -> Any:
    """Return the task of lm-eval's own file on other data."""
    splits = {_SPLIT: rows.evaluated}
    if rows.shots is not None:
        splits[_SHOTS] = rows.shots

    def make_dataset(**_kwargs: Any) -> Any:
        # In memory: no download, no cache on disk.
        found = {name: datasets.Dataset.from_list(part) for name, part in splits.items()}
        return datasets.DatasetDict(cast("Any", found))

    # If questions and examples come from the same test split, lm-eval excludes the question from
    # its examples.
    found = load_yaml(str(files("lm_eval") / config)) | {
        "custom_dataset": make_dataset,
        "training_split": None,
        "validation_split": None,
        "test_split": _SPLIT,
        "fewshot_split": _SPLIT if rows.shots is None else _SHOTS,
        "num_fewshot": shots,
        **overrides,
    }
    task = ConfigurableTask(config={name: found[name] for name in found if name != "tag"})
    task.set_fewshot_seed(seed=SHOT_SEED)
    return task


def _evaluate_task(
    lm: NetworkLM,
    name: str,
    asked: ConfiguredTask,
    limit: int | None,
    shared: Sequence[bool] | None,
) -> TaskScore:
    task = asked.task
    results = cast(
        "Any",
        evaluate(lm, {"tasks": {name: task}}, limit=limit, bootstrap_iters=0, log_samples=True),
    )
    samples: list[dict[str, Any]] = results["samples"][name]
    has_choices = task.OUTPUT_TYPE == "multiple_choice"

    def measure(metric: str, some: Sequence[dict[str, Any]]) -> Accuracy | None:
        if not some or metric not in some[0]:
            return None
        choices = [len(task.doc_to_choice(one["doc"])) for one in some] if has_choices else None
        return measure_accuracy([float(one[metric]) for one in some], choices)

    contamination = None
    if shared is not None:
        clean = [one for one in samples if not shared[one["doc_id"]]]
        contamination = Contamination(
            questions=len(samples),
            shared=len(samples) - len(clean),
            accuracy=measure("acc", clean),
            normalised=measure("acc_norm", clean),
        )
    accuracy = measure("acc", samples)
    if accuracy is None:
        raise UsageError(f"expected a task that is scored by accuracy, got {name}")
    return TaskScore(
        task=task.config.task,
        documents=len(samples),
        evaluated=asked.rows.evaluated_file,
        fewshot=asked.fewshot,
        shots_from=asked.rows.shots_file if asked.fewshot else None,
        accuracy=accuracy,
        normalised=measure("acc_norm", samples),
        perplexity=results["results"][name].get("perplexity,none"),
        cut_prompts=lm.truncated_share(name) or 0.0,
        version=str(task.VERSION),
        contamination=contamination,
    )


def _make_stand_in() -> PreTrainedTokenizerFast:
    """Return the tokenizer that lm-eval requires but never calls: ``NetworkLM`` encodes itself."""
    library = LibraryModel(WordLevel({_UNKNOWN: 0}, unk_token=_UNKNOWN))
    names = dict.fromkeys(("unk_token", "pad_token", "eos_token"), _UNKNOWN)
    return PreTrainedTokenizerFast(tokenizer_object=library, **names)


@contextmanager
def be_quiet() -> Generator[None]:
    """Restrict lm-eval to logging errors, and to progress bars on a terminal."""
    logger, module = logging.getLogger("lm_eval"), cast("Any", lm_eval.api.task)
    before, bar = logger.level, module.tqdm
    logger.setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        module.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        logger.setLevel(before)
        module.tqdm = bar
