"""Continue prompts with a language model: greedy, sampled, or by beam search."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from qkvary.arch.caches import CacheLayout, CacheStorage, DecodeKernel
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.cli._options import Checkpoint, Device, Json, NetworkDtype, convert_count
from qkvary.cli._output import console, print_json, printable
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.requests import (
    Completion,
    Event,
    Request,
    Sampling,
    collect,
    group_requests,
)
from qkvary.inference.streaming import detokenize
from qkvary.reports.terminal import print_rows
from qkvary.storage.errors import UsageError

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.inference.beams import Beam
    from qkvary.inference.decoding import CacheMaker

USUAL_TOKENS = 256
"""New tokens where nobody says how many, if the model has places for them."""
BATCH = 16
"""Prompts that are answered at once at most."""


Prompt = Annotated[
    str, Parameter(name="prompt", help="A text to continue. Several are answered together.")
]
Tokens = Annotated[
    int | None,
    Parameter(
        name="--tokens",
        converter=convert_count,
        help="New tokens at most. As many as the model has places for, up to 256, if not given.",
    ),
]
Stop = Annotated[
    tuple[str, ...],
    Parameter(
        name="--stop", negative=(), help="End before this text; repeat it for several of them."
    ),
]
Logprobs = Annotated[
    bool,
    Parameter(
        name="--logprobs",
        negative=(),
        help="Say how probable each token was (nats, before it is penalised, scaled or filtered).",
    ),
]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """How tokens are chosen."""

    temperature: Annotated[
        float | None,
        Parameter(
            name="--temperature",
            help="Divide logits by it; 0 takes the most probable token. 0, or 1 with a filter.",
        ),
    ] = None
    top_k: Annotated[
        int | None, Parameter(name="--top-k", help="Choose among the k most probable tokens.")
    ] = None
    top_p: Annotated[
        float | None,
        Parameter(name="--top-p", help="Choose among the fewest that hold this probability."),
    ] = None
    min_p: Annotated[
        float | None,
        Parameter(name="--min-p", help="Leave out less than this share of the most probable."),
    ] = None
    repetition_penalty: Annotated[
        float,
        Parameter(name="--repetition-penalty", help="Above 1: less of what there was already."),
    ] = 1.0
    seed: Annotated[int, Parameter(name="--seed", help="Of the random numbers.")] = 0
    beams: Annotated[
        int | None,
        Parameter(name="--beams", help="Search so many continuations at a time for the best."),
    ] = None
    length_penalty: Annotated[
        float,
        Parameter(name="--length-penalty", help="With --beams: power of the length in the score."),
    ] = 1.0

    def sampling(self) -> Sampling:
        """The settings; a filter without a temperature means to sample."""
        filters = (self.top_k, self.top_p, self.min_p)
        usual = 0.0 if all(one is None for one in filters) else 1.0
        return Sampling(
            temperature=usual if self.temperature is None else self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Where and how the network computes."""

    device: Device = "cpu"
    dtype: NetworkDtype = None
    deterministic_batch: Annotated[
        bool,
        Parameter(
            name="--deterministic-batch",
            negative=(),
            help="Compute each of several prompts by itself: no bit depends on the others.",
        ),
    ] = False


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Caching:
    """What is kept of the tokens, and what computes with it."""

    layout: Annotated[
        CacheLayout | None,
        Parameter(name="--layout", help="What is kept of a token; the least if not given."),
    ] = None
    storage: Annotated[
        CacheStorage,
        Parameter(name="--storage", help="Where it is kept; few bits change the text."),
    ] = "preallocated"
    kernel: Annotated[
        DecodeKernel,
        Parameter(name="--kernel", help="What computes: the fastest here, or one by name."),
    ] = "auto"

    def maker(self, loaded: "LoadedModel") -> "CacheMaker":
        """Makes the cache for so many tokens."""
        from qkvary.inference.decoding import make_cache

        return lambda tokens: make_cache(
            loaded.network, tokens, layout=self.layout, storage=self.storage, kernel=self.kernel
        )

    def announce(self) -> None:
        """Say why the first token takes its time, where it does.

        Raises:
            ValueError: for a kernel that there is not, in the environment.
        """
        from qkvary.nn.decoding.choice import pinned
        from qkvary.nn.decoding.native import notice

        kernel = pinned(self.kernel)
        said = notice() if kernel in ("auto", "native") else None
        if said is not None:
            console(sys.stderr).print(printable(said), markup=False, soft_wrap=True)


DEFAULT_CHOOSING = Choosing()
DEFAULT_CACHING = Caching()
DEFAULT_RUNNING = Running()


def command(
    checkpoint: Checkpoint,
    /,
    *prompts: Prompt,
    tokens: Tokens = None,
    choosing: Choosing = DEFAULT_CHOOSING,
    stop: Stop = (),
    logprobs: Logprobs = False,
    caching: Caching = DEFAULT_CACHING,
    running: Running = DEFAULT_RUNNING,
    json_output: Json = False,
) -> None:
    """Continue prompts with a language model: greedy, sampled, or by beam search.

    Texts are printed as they come, one after the other. The same command gives the same text on the
    same machine, and a prompt the same text whatever other prompts there are.
    """
    if running.deterministic_batch and choosing.beams is not None:
        raise UsageError("expected --deterministic-batch without --beams, got both")
    sampling = choosing.sampling()
    loaded = load_checkpoint(checkpoint).to(running.device, running.dtype)
    if loaded.tokenizer is None:
        raise UsageError(f"expected a checkpoint with a tokenizer, got {checkpoint} without one")
    texts = prompts or ("",)
    asked = [
        Request(
            prompt=encoded,
            max_new_tokens=_count_tokens(loaded, encoded) if tokens is None else tokens,
            sampling=sampling,
            stop=stop,
            stop_tokens=loaded.tokenizer.ends,
            seed=choosing.seed,
            logprobs=logprobs,
        )
        for encoded in (_encode(loaded.tokenizer, text) for text in texts)
    ]
    caching.announce()
    new_cache = caching.maker(loaded)
    if choosing.beams is not None:
        found = [_search(loaded, request, choosing.beams, choosing, new_cache) for request in asked]
        _print_found(texts, asked, found, json_output=json_output)
        return
    streams = _open_streams(loaded, asked, running, new_cache)
    teller = None if json_output else _Teller(console(), texts)
    answers = [collect(events) for events in _follow(streams, teller)]
    if teller is None:
        _print_documents([_to_document(*one) for one in zip(asked, answers, texts, strict=True)])
        return
    for request, answer in zip(asked, answers, strict=True):
        if answer.logprobs is not None:
            _print_logprobs(teller.screen, loaded.tokenizer, request, answer)


def _encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    encoded = tokenizer.encode(text)
    if not encoded:
        raise UsageError("expected a prompt, got none; this model has no token that begins a text")
    return tuple(encoded)


def _count_tokens(loaded: "LoadedModel", encoded: Sequence[int]) -> int:
    """New tokens where nobody says how many."""
    return min(USUAL_TOKENS, max(0, loaded.network.config.max_tokens + 1 - len(encoded)))


class _Teller:
    """Shows texts in their order, the first that has not ended as it comes."""

    def __init__(self, screen: Console, prompts: Sequence[str]) -> None:
        self.screen = screen
        self._waiting = list(prompts)
        self._ended = [False] * len(prompts)
        self._current = 0

    def tell(self, request: int, text: str, *, ends: bool) -> None:
        """Take what is new of a text and show what comes next."""
        self._waiting[request] += text
        self._ended[request] |= ends
        while self._current < len(self._waiting):
            _show(self.screen, self._waiting[self._current])
            self._waiting[self._current] = ""
            if not self._ended[self._current]:
                return
            self._current += 1
            _show(self.screen, "\n" if self._current == len(self._waiting) else "\n\n")


def _open_streams(
    loaded: "LoadedModel", asked: Sequence[Request], running: Running, new_cache: "CacheMaker"
) -> list[tuple[int, Iterator[Event]]]:
    """Events of as many requests at once as fit, with the number of the first of them.

    Refuses what does not fit before anything is computed.
    """
    from qkvary.inference.decoding import stream

    limit = loaded.network.config.max_tokens
    return [
        (
            group.start,
            stream(
                loaded.network,
                [asked[index] for index in group],
                tokenizer=loaded.tokenizer,
                new_cache=new_cache,
                deterministic_batch=running.deterministic_batch,
            ),
        )
        for group in group_requests(asked, max_tokens=limit, batch_size=BATCH)
    ]


def _follow(
    streams: Sequence[tuple[int, Iterator[Event]]], teller: _Teller | None
) -> list[list[Event]]:
    """Decode, and show texts as they come where there is somebody who tells them."""
    events: dict[int, list[Event]] = {}
    if teller is not None:
        teller.tell(0, "", ends=False)
    for first, coming in streams:
        for event in coming:
            number = first + event.request
            events.setdefault(number, []).append(event)
            if teller is not None:
                teller.tell(number, event.text, ends=event.finish is not None)
    return [events[number] for number in sorted(events)]


def _search(
    loaded: "LoadedModel", request: Request, beams: int, choosing: Choosing, new_cache: "CacheMaker"
) -> "list[Beam]":
    from qkvary.inference.beams import search

    return search(
        loaded.network,
        request,
        beams=beams,
        length_penalty=choosing.length_penalty,
        tokenizer=loaded.tokenizer,
        new_cache=new_cache,
    )


def _print_found(
    texts: Sequence[str],
    asked: Sequence[Request],
    found: "Sequence[list[Beam]]",
    *,
    json_output: bool,
) -> None:
    """The best beam of every prompt, and all of them where they are asked for."""
    if json_output:
        documents: list[dict[str, Any]] = []
        for text, request, beams in zip(texts, asked, found, strict=True):
            best = beams[0]
            answer = Completion(
                tokens=best.tokens, text=best.text, logprobs=None, finish=best.finish
            )
            documents.append({**_to_document(request, answer, text), "beams": beams})
        _print_documents(documents)
        return
    screen = console()
    teller = _Teller(screen, texts)
    for number, beams in enumerate(found):
        teller.tell(number, beams[0].text, ends=True)
    for request, beams in zip(asked, found, strict=True):
        if request.logprobs:
            _print_beams(screen, beams)


def _print_documents(documents: Sequence[dict[str, Any]]) -> None:
    """One answer as it is, several as a list."""
    print_json(documents[0] if len(documents) == 1 else {"answers": documents})


def _show(screen: Console, text: str) -> None:
    """Write text of a model: it must not command the terminal."""
    screen.file.write("\t".join(printable(part) for part in text.split("\t")))
    screen.file.flush()


def _to_document(request: Request, answer: Completion, prompt: str) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "prompt_tokens": request.prompt,
        "text": answer.text,
        "tokens": answer.tokens,
        "finish": answer.finish,
        "logprobs": answer.logprobs,
        "sampling": request.sampling,
        "stop": request.stop,
        "seed": request.seed,
    }


def _print_logprobs(
    screen: Console, tokenizer: Tokenizer, request: Request, answer: Completion
) -> None:
    before = [request.prompt[-1], *answer.tokens]
    rows = [
        (str(token), repr(detokenize(tokenizer, [token], after=after)), f"{logprob:.4f}")
        for token, after, logprob in zip(
            answer.tokens, before[: len(answer.tokens)], answer.logprobs or (), strict=True
        )
    ]
    columns = (("token", "right"), ("text", "left"), ("log-probability", "right"))
    print_rows(screen, columns, rows)


def _print_beams(screen: Console, beams: "list[Beam]") -> None:
    rows = [
        (f"{beam.score:.4f}", f"{beam.logprob:.4f}", str(len(beam.tokens)), repr(beam.text))
        for beam in beams
    ]
    columns = (
        ("score", "right"),
        ("log-probability", "right"),
        ("tokens", "right"),
        ("text", "left"),
    )
    print_rows(screen, columns, rows)
