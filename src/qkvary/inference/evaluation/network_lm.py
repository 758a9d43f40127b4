"""Adapts a network to lm-eval's model interface, and counts truncated prompts.

This module does not depend on the tasks. It needs the extra ``eval``.
"""

import itertools
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

from lm_eval.api import model as models
from lm_eval.api import task as tasks
from lm_eval.models import huggingface
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer as LibraryModel
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from qkvary.checkpoints.huggingface.causal import QKVForCausalLM
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.decoding import stream
from qkvary.inference.requests import Request, Sampling
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from qkvary.text.progress_line import Progress, ignore

_REMEMBERED = 64
"""Number of texts whose tokens are cached, because all choices of a question share a prompt."""
_LONGEST_ANSWER = 256
"""Maximum tokens of a generated answer if the task sets none; lm-eval's default."""
_UNKNOWN = "<unk>"


class NetworkLM(HFLM):
    """Subclass of lm-eval's ``HFLM`` that runs a network of qkvary with its own tokenizer."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, *, batch_size: int) -> None:
        self._network, self._words = model, tokenizer
        self._encode: Callable[[str], list[int]] = lru_cache(_REMEMBERED)(tokenizer.encode)
        self._begin = tokenizer.beginning
        begin = tokenizer.separator if self._begin is None else self._begin
        self._prefix = 0 if begin is None else begin
        self._limit = model.config.max_tokens
        self._names: list[str] = []
        """The task of each current request."""
        self._cut: dict[str, list[bool]] = {}
        """For each task, a list that tells which prompts were truncated."""
        # lm-eval requires a tokenizer, but never calls it: this class encodes.
        library = LibraryModel(WordLevel({_UNKNOWN: 0}, unk_token=_UNKNOWN))
        names = dict.fromkeys(("unk_token", "pad_token", "eos_token"), _UNKNOWN)
        options: dict[str, Any] = {
            "pretrained": QKVForCausalLM.wrap(model),
            "tokenizer": PreTrainedTokenizerFast(tokenizer_object=library, **names),
            "max_length": self._limit,
            "batch_size": batch_size,
            "prefix_token_id": self._prefix,
        }
        super().__init__(**options)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_kwargs: Any
    ) -> list[int]:
        """Return the tokens of a text, encoded as for training."""
        found = self._encode(string)
        starts = add_special_tokens is False and found[:1] == [self._begin]
        return found[1:] if starts else list(found)

    def generate_until(self, requests: list[Any], **_options: Any) -> list[str]:
        """Continue prompts one by one; a prompt that is too long is truncated on the left."""
        answers: list[str] = []
        bar = cast("Any", huggingface).tqdm(total=len(requests))
        for request in requests:
            bar.update()
            context, options = request.args
            until = options.get("until") or []
            stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
            longest = int(options.get("max_gen_toks", _LONGEST_ANSWER))
            room = self._limit - longest
            if room < 1:
                raise UsageError(
                    f"expected answers of less than {self._limit:,} tokens for this network, got "
                    f"up to {longest:,} in {request.task_name}"
                )
            prompt = self.tok_encode(context)
            self._cut.setdefault(request.task_name, []).append(len(prompt) > room)
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
        """Return the log-likelihoods of requests, and count each task's truncated prompts."""
        self._names = [request.task_name for request in requests]
        try:
            return cast("Any", super()).loglikelihood(requests, disable_tqdm=disable_tqdm)
        finally:
            self._names = []

    def truncated_share(self, task: str) -> float | None:
        """Return the share of a task's prompts that were truncated; None if it has no prompts."""
        cut = self._cut.get(task)
        return None if not cut else sum(cut) / len(cut)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> Any:
        """Return log-likelihoods, and count the prompts that lm-eval truncates on the left."""
        # Windows of a rolling text belong to no task, and are not cut.
        names = self._names or [""] * len(requests)
        for name, (_, context, answer) in zip(names, requests, strict=True):
            if not 0 < len(answer) <= self._limit:
                raise UsageError(
                    f"expected answers of 1 to {self._limit:,} tokens for this network, got "
                    f"{len(answer):,} in {name or 'a task'}: leave that task out of "
                    "--tasks, or evaluate a network with more positions"
                )
            self._cut.setdefault(name, []).append(len(context) + len(answer) > self._limit + 1)
        # Decorators of lm-eval hide the method from type checkers.
        return super()._loglikelihood_tokens(  # pyright: ignore[reportAttributeAccessIssue]
            requests, disable_tqdm=disable_tqdm, override_bs=override_bs
        )


def _sampling(options: Mapping[str, Any]) -> Sampling:
    if not options.get("do_sample") or not options.get("temperature"):
        return Sampling()
    return Sampling(
        temperature=float(options["temperature"]),
        **{name: options[name] for name in ("top_k", "top_p", "min_p") if options.get(name)},
    )


@contextmanager
def be_quiet(on_progress: Progress = ignore) -> Generator[None]:
    """Let lm-eval log only errors, and report its progress to ``on_progress``."""
    logger, modules = logging.getLogger("lm_eval"), cast("Any", (tasks, models, huggingface))
    before, bar = logger.level, modules[0].tqdm

    def show(*given: Any, **options: Any) -> Any:
        made, done = bar(*given, **options | {"disable": True}), itertools.count(1)
        if total := options.get("total"):
            made.update = lambda _number=1: on_progress(next(done), total)
        return made

    logger.setLevel(logging.ERROR)
    for module in modules:
        module.tqdm = show
    try:
        yield
    finally:
        logger.setLevel(before)
        for module in modules:
            module.tqdm = bar
