"""Continue prompts with a language model: greedy, sampled, or by beam search."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from qkvary.arch.caches import CacheLayout, DecodeKernel
from qkvary.checkpoints.catalog import load_checkpoint, require_tokenizer
from qkvary.cli._options import (
    Checkpoint,
    CheckpointTokenizer,
    Json,
    NetworkOptions,
    counted,
    options,
)
from qkvary.cli._output import console, print_json, printable
from qkvary.cli._streams import print_error
from qkvary.costs.formats import parse_storage
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.prompts import choose_sampling, make_requests
from qkvary.inference.requests import (
    Completion,
    Event,
    Request,
    Sampling,
    collect,
    group_requests,
)
from qkvary.inference.streaming import REPLACEMENT, count_replaced, detokenize
from qkvary.reports.tables import Field, number, pick, tabulate, word
from qkvary.reports.terminal import print_table
from qkvary.storage.errors import UsageError
from qkvary.text.names import count

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.inference.beams import Beam
    from qkvary.inference.decoding import CacheMaker

BATCH = 16
"""The maximum number of prompts in a batch."""


Prompt = Annotated[
    str, Parameter(name="prompt", help="A text to continue. Several are answered together.")
]
Tokens = Annotated[
    int | None,
    counted("Maximum new tokens. As many as the model has positions for, up to 256, if not given."),
]
Stop = Annotated[tuple[str, ...], Parameter(help="End before this text; repeat it for more.")]
Logprobs = Annotated[
    bool,
    Parameter(
        help="Print the log-probability of each token (nats, before penalty, scaling and filters)."
    ),
]


@options
class Choosing:
    """The choice of tokens."""

    temperature: Annotated[
        float | None,
        Parameter(
            help="Divide logits by it; 0 takes the most probable token. 0, or 1 with a filter."
        ),
    ] = None
    top_k: Annotated[int | None, Parameter(help="Choose among the k most probable tokens.")] = None
    top_p: Annotated[
        float | None, Parameter(help="Choose among the fewest tokens of this probability.")
    ] = None
    min_p: Annotated[
        float | None, Parameter(help="Drop tokens below this share of the highest probability.")
    ] = None
    repetition_penalty: Annotated[
        float, Parameter(help="Above 1: penalise tokens seen before.")
    ] = 1.0
    seed: Annotated[int, Parameter(help="Seed of the random numbers.")] = 0
    beams: Annotated[int | None, Parameter(help="Beam search with this many beams.")] = None
    length_penalty: Annotated[
        float, Parameter(help="With --beams: exponent of length in the score.")
    ] = 1.0

    def sampling(self) -> Sampling:
        """Return the sampling settings."""
        return choose_sampling(
            self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


@options
class Running(NetworkOptions):
    """The device and batching of the network."""

    deterministic_batch: Annotated[
        bool,
        Parameter(help="Compute each prompt separately, so that no bit depends on the others."),
    ] = False


@options
class Caching:
    """The contents, storage and kernel of the cache."""

    layout: Annotated[
        CacheLayout | None, Parameter(help="Contents of the cache; the smallest if not given.")
    ] = None
    storage: Annotated[
        str,
        Parameter(
            help="Storage of the cache: preallocated, growing, or codes such as int8, int8-b32, "
            "int4-g32-rot, as bench quantized measures them; few bits change the text."
        ),
    ] = "preallocated"
    kernel: Annotated[
        DecodeKernel,
        Parameter(help="The kernel: by device and shape (auto), by a timing (fastest), or one."),
    ] = "auto"

    def maker(self, loaded: "LoadedModel") -> "CacheMaker":
        """Return a function that makes a cache for a number of tokens.

        Raises:
            ValueError: for an unknown kernel in the environment.
        """
        from qkvary.inference.decoding import make_cache
        from qkvary.nn.decoding.choice import pinned

        pinned(self.kernel)
        storage = parse_storage(self.storage)
        return lambda tokens: make_cache(
            loaded.network, tokens, layout=self.layout, storage=storage, kernel=self.kernel
        )

    def announce(self, loaded: "LoadedModel") -> None:
        """Print a notice if the first token waits for a compilation."""
        from qkvary.nn.decoding.choice import pinned
        from qkvary.nn.decoding.native import notice

        # A state is no cache that a kernel reads.
        reads_cache = any(not one.variant.keeps_state for one in loaded.network.config.layers)
        wanted = reads_cache and pinned(self.kernel) in ("auto", "fastest", "native")
        text = notice() if wanted else None
        if text is not None:
            console(sys.stderr).print(printable(text), markup=False, soft_wrap=True)


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
    tokenizer: CheckpointTokenizer = None,
    json_output: Json = False,
) -> None:
    """Continue prompts with a language model: greedy, sampled, or by beam search.

    Texts are printed as they are generated, in order. The same command gives the same text on the
    same machine. Other prompts change an answer by rounding at most: --deterministic-batch rules
    that out.
    """
    if running.deterministic_batch and choosing.beams is not None:
        raise UsageError("expected --deterministic-batch without --beams, got both")
    sampling = choosing.sampling()
    loaded, own = require_tokenizer(load_checkpoint(checkpoint), checkpoint, tokenizer)
    loaded = loaded.to(running.device, running.dtype, running.weights)
    texts = prompts or ("",)
    requests = make_requests(
        own,
        texts,
        max_tokens=loaded.network.config.max_tokens,
        tokens=tokens,
        sampling=sampling,
        stop=stop,
        seed=choosing.seed,
        logprobs=logprobs,
    )
    new_cache = caching.maker(loaded)
    if choosing.beams is not None:
        from qkvary.inference.beams import check_beams, search

        check_beams(choosing.beams)
        caching.announce(loaded)
        found = [
            search(
                loaded.network,
                request,
                beams=choosing.beams,
                length_penalty=choosing.length_penalty,
                tokenizer=loaded.tokenizer,
                new_cache=new_cache,
            )
            for request in requests
        ]
        _print_found(texts, requests, found, json_output=json_output)
        _warn_of_bytes(own, [beams[0] for beams in found])
        return
    streams = _open_streams(loaded, requests, running, new_cache)
    # Nothing is refused from here on, and no text is shown yet.
    caching.announce(loaded)
    output = None if json_output else _OrderedOutput(console(), texts)
    answers = [collect(events) for events in _decode(streams, output)]
    _warn_of_bytes(own, answers)
    if output is None:
        _print_documents([_to_document(*one) for one in zip(requests, answers, texts, strict=True)])
        return
    for request, answer in zip(requests, answers, strict=True):
        if answer.logprobs is not None:
            _print_logprobs(output.screen, own, request, answer)


class _OrderedOutput:
    """Prints concurrent texts in order, the first unfinished one as it is generated."""

    def __init__(self, screen: Console, prompts: Sequence[str]) -> None:
        self.screen = screen
        self._waiting = list(prompts)
        self._ended = [False] * len(prompts)
        self._current = 0

    def add(self, request: int, text: str, *, ends: bool) -> None:
        """Add to a text, and print what is next in order."""
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
    loaded: "LoadedModel", requests: Sequence[Request], running: Running, new_cache: "CacheMaker"
) -> list[tuple[int, Iterator[Event]]]:
    """Return the events of each batch of requests, with the index of its first request.

    Refuses requests that do not fit before anything is computed.
    """
    from qkvary.inference.decoding import stream

    limit = loaded.network.config.max_tokens
    return [
        (
            group.start,
            stream(
                loaded.network,
                [requests[index] for index in group],
                tokenizer=loaded.tokenizer,
                new_cache=new_cache,
                deterministic_batch=running.deterministic_batch,
            ),
        )
        for group in group_requests(requests, max_tokens=limit, batch_size=BATCH)
    ]


def _decode(
    streams: Sequence[tuple[int, Iterator[Event]]], output: _OrderedOutput | None
) -> list[list[Event]]:
    """Decode, and print texts as they are generated if there is an output."""
    events: dict[int, list[Event]] = {}
    if output is not None:
        output.add(0, "", ends=False)
    for first, coming in streams:
        for event in coming:
            number = first + event.request
            events.setdefault(number, []).append(event)
            if output is not None:
                output.add(number, event.text, ends=event.finish is not None)
    return [events[number] for number in sorted(events)]


def _print_found(
    texts: Sequence[str],
    requests: Sequence[Request],
    found: "Sequence[list[Beam]]",
    *,
    json_output: bool,
) -> None:
    """Print the best beam of every prompt, and all beams if requested."""
    if json_output:
        documents: list[dict[str, Any]] = []
        for text, request, beams in zip(texts, requests, found, strict=True):
            best = beams[0]
            answer = Completion(
                tokens=best.tokens, text=best.text, logprobs=None, finish=best.finish
            )
            documents.append({**_to_document(request, answer, text), "beams": beams})
        _print_documents(documents)
        return
    screen = console()
    output = _OrderedOutput(screen, texts)
    for index, beams in enumerate(found):
        output.add(index, beams[0].text, ends=True)
    for request, beams in zip(requests, found, strict=True):
        if request.logprobs:
            _print_beams(screen, beams)


def _print_documents(documents: Sequence[dict[str, Any]]) -> None:
    """Print one answer as it is, several as a list."""
    print_json(documents[0] if len(documents) == 1 else {"answers": documents})


def _show(screen: Console, text: str) -> None:
    """Write a model's text without its control characters."""
    screen.file.write("\t".join(printable(part) for part in text.split("\t")))
    screen.file.flush()


def _to_document(request: Request, answer: Completion, prompt: str) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "prompt_tokens": request.prompt,
        **pick(answer, "text tokens finish logprobs"),
        **pick(request, "sampling stop seed"),
    }


def _warn_of_bytes(tokenizer: Tokenizer, answers: "Sequence[Completion | Beam]") -> None:
    """Say on the error stream that a model wrote bytes that are not text."""
    replaced = sum(count_replaced(tokenizer, one.text, one.tokens) for one in answers)
    if replaced:
        print_error(
            f"the model wrote bytes that are not UTF-8: {REPLACEMENT} stands for them in "
            f"{count(replaced, 'place')}"
        )


def _print_logprobs(
    screen: Console, tokenizer: Tokenizer, request: Request, answer: Completion
) -> None:
    before = [request.prompt[-1], *answer.tokens]
    rows = [
        {"token": token, "text": repr(detokenize(tokenizer, [token], after=after)), "log": logprob}
        for token, after, logprob in zip(
            answer.tokens, before[: len(answer.tokens)], answer.logprobs or (), strict=True
        )
    ]
    _print_table(
        screen,
        rows,
        number("token"),
        word("text"),
        number("log", "log-probability", "{:.4f}".format),
    )


def _print_beams(screen: Console, beams: "list[Beam]") -> None:
    _print_table(
        screen,
        beams,
        number("score", write="{:.4f}".format),
        number("logprob", "log-probability", "{:.4f}".format),
        number("tokens", write=lambda tokens: str(len(tokens))),
        word("text", write=repr),
    )


def _print_table(screen: Console, rows: Sequence[object], *fields: Field) -> None:
    print_table(screen, tabulate("tokens", "", rows, *fields, main=True))
