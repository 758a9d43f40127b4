"""Continue a prompt with a language model: greedy, sampled, or by beam search."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token
from rich.console import Console

from qkvary.arch.caches import CacheLayout, CacheStorage, DecodeKernel
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.errors import UsageError
from qkvary.cli._options import Json, parse_count
from qkvary.cli._output import console, print_json, printable, table
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.catalog import (
    load_make_cache,
    load_search,
    load_stream,
    load_will_build,
)
from qkvary.inference.requests import Completion, Event, Request, Sampling, collect
from qkvary.inference.streaming import spell

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.inference.beams import Beam
    from qkvary.inference.decoding import CacheMaker

USUAL_TOKENS = 256
"""New tokens where nobody says how many, if the model has places for them."""


def _convert_tokens(_kind: object, tokens: Sequence[Token]) -> int:
    return parse_count(tokens[0].value)


Checkpoint = Annotated[
    Path,
    Parameter(help="A folder or file: our own, a llama2.c .bin, or a character model."),
]
Prompt = Annotated[str, Parameter(help="The text to continue.")]
Tokens = Annotated[
    int | None,
    Parameter(
        name="--tokens",
        converter=_convert_tokens,
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
    """Where and in which format the network computes."""

    device: Annotated[
        str, Parameter(name="--device", help="Where to compute: cpu, cuda, cuda:1, mps.")
    ] = "cpu"
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"] | None,
        Parameter(name="--dtype", help="Number format; as stored if not given."),
    ] = None


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Caching:
    """What is kept of the tokens, and what computes with it."""

    layout: Annotated[
        CacheLayout | None,
        Parameter(name="--layout", help="What is kept of a token; the least if not given."),
    ] = None
    storage: Annotated[
        CacheStorage, Parameter(name="--storage", help="Where it is kept; few bits change the text.")
    ] = "preallocated"
    kernel: Annotated[
        DecodeKernel,
        Parameter(name="--kernel", help="What computes: the fastest here, or one by name."),
    ] = "auto"

    def maker(self, loaded: "LoadedModel") -> "CacheMaker":
        """Makes the cache for so many tokens."""
        make = load_make_cache()
        choices = {"layout": self.layout, "storage": self.storage, "kernel": self.kernel}
        return lambda tokens: make(loaded.network, tokens, **choices)

    def announce(self) -> None:
        """Say why the first token takes its time, where it does."""
        if self.kernel in ("auto", "native") and load_will_build()():
            console(sys.stderr).print("building the native kernels, once for this machine")


DEFAULT_CHOOSING = Choosing()
DEFAULT_CACHING = Caching()
DEFAULT_RUNNING = Running()


def command(
    checkpoint: Checkpoint,
    prompt: Prompt = "",
    /,
    *,
    tokens: Tokens = None,
    choosing: Choosing = DEFAULT_CHOOSING,
    stop: Stop = (),
    logprobs: Logprobs = False,
    caching: Caching = DEFAULT_CACHING,
    running: Running = DEFAULT_RUNNING,
    json_output: Json = False,
) -> None:
    """Continue a prompt with a language model: greedy, sampled, or by beam search.

    The text is printed as it comes. The same command gives the same text on the same machine.
    """
    sampling = choosing.sampling()
    loaded = load_checkpoint(checkpoint).moved(running.device, running.dtype)
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        raise UsageError(f"expected a checkpoint with a tokenizer, got {checkpoint} without one")
    encoded = tokenizer.encode(prompt)
    if not encoded:
        raise UsageError("expected a prompt, got none; this model has no token that begins a text")
    room = max(0, loaded.network.config.max_tokens + 1 - len(encoded))
    request = Request(
        prompt=tuple(encoded),
        max_new_tokens=min(USUAL_TOKENS, room) if tokens is None else tokens,
        sampling=sampling,
        stop=stop,
        stop_tokens=tokenizer.ends,
        seed=choosing.seed,
        logprobs=logprobs,
    )
    caching.announce()
    new_cache = caching.maker(loaded)
    if choosing.beams is not None:
        _search(loaded, request, choosing, prompt, new_cache, json_output=json_output)
        return
    screen = None if json_output else console()
    events = _follow(loaded, request, prompt, new_cache, screen)
    answer = collect(events)
    if screen is None:
        print_json(_to_document(request, answer, prompt))
    elif answer.logprobs is not None:
        _print_logprobs(screen, tokenizer, request, answer)


def _follow(
    loaded: "LoadedModel",
    request: Request,
    prompt: str,
    new_cache: "CacheMaker",
    screen: Console | None,
) -> list[Event]:
    """Decode, and show the text as it comes where there is a screen."""
    events: list[Event] = []
    # Refuses what does not fit before anything is shown.
    coming = load_stream()(
        loaded.network, [request], tokenizer=loaded.tokenizer, new_cache=new_cache
    )
    if screen is not None:
        _show(screen, prompt)
    for event in coming:
        events.append(event)
        if screen is not None:
            _show(screen, event.text)
    if screen is not None:
        _show(screen, "\n")
    return events


def _search(
    loaded: "LoadedModel",
    request: Request,
    choosing: Choosing,
    prompt: str,
    new_cache: "CacheMaker",
    *,
    json_output: bool,
) -> None:
    beams = load_search()(
        loaded.network,
        request,
        beams=choosing.beams,
        length_penalty=choosing.length_penalty,
        tokenizer=loaded.tokenizer,
        new_cache=new_cache,
    )
    if json_output:
        best = beams[0]
        answer = Completion(tokens=best.tokens, text=best.text, logprobs=None, finish=best.finish)
        print_json({**_to_document(request, answer, prompt), "beams": beams})
        return
    screen = console()
    _show(screen, prompt + beams[0].text + "\n")
    if request.logprobs:
        _print_beams(screen, beams)


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
        (str(token), repr(spell(tokenizer, [token], after=after)), f"{logprob:.4f}")
        for token, after, logprob in zip(
            answer.tokens, before[: len(answer.tokens)], answer.logprobs or (), strict=True
        )
    ]
    columns = (("token", "right"), ("text", "left"), ("log-probability", "right"))
    screen.print(table(columns, rows))


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
    screen.print(table(columns, rows))
