"""Continue prompts with a language model: greedy, sampled, or by beam search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, overload

from qkvary.api.arguments import verb
from qkvary.api.options import (
    SILENT,
    Checkpoint,
    CheckpointTokenizer,
    NetworkOptions,
    Terminal,
    open_checkpoint,
)
from qkvary.api.results import Result
from qkvary.arch.caches import CacheLayout, DecodeKernel
from qkvary.costs.formats import parse_options
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.requests import (
    DEFAULT_TOKENS,
    Completion,
    Event,
    Request,
    Sampling,
    collect,
    encode_prompt,
    group_requests,
)
from qkvary.reports.generation import generation_report
from qkvary.storage.errors import UsageError
from qkvary.text.numbers import CountFromZero

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.inference.beams import Beam
    from qkvary.inference.decoding import CacheMaker

BATCH = 16
"""The maximum number of prompts in a batch."""


class Text(str):
    """The text generated for a prompt; ``result`` has its tokens, and their log-probabilities."""

    __slots__ = ("result",)
    result: Result[tuple[Completion, ...]]


class Texts(list[Text]):
    """The texts generated for several prompts; ``result`` has their tokens."""

    result: Result[tuple[Completion, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Options for the seed, the end of each text, log-probabilities and beam search."""

    seed: int = 0
    """Seed of the random numbers."""
    stop: tuple[str, ...] = ()
    """End each answer before this text (can be repeated)."""
    logprobs: bool = False
    """Print the log-probability of each token (in nats, before penalty, temperature and
    filters)."""
    beams: int | None = None
    """Beam search with this many beams."""
    length_penalty: float = 1.0
    """With --beams: a beam's log-probability is divided by its length to this power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding(NetworkOptions):
    """Options for the device, the batching and the cache of the network."""

    deterministic_batch: bool = False
    """Compute each prompt separately, so that other prompts do not change a single bit."""
    layout: CacheLayout | None = None
    """Layout of the cache: the tensors that it stores. The smallest if not given."""
    storage: str = "preallocated"
    """Storage of the cache: preallocated, growing, or quantised, such as int8, int8-b32,
    int4-g32-rot (see bench quantized). Quantised caches may change the text."""
    kernel: DecodeKernel = "auto"
    """Decoding kernel: its name, or auto to choose by device and shape."""


SAMPLING, ANSWERING, DECODING = Sampling(), Answering(), Decoding()


@overload
def generate(model: Checkpoint, prompt: str = "", **options: Any) -> Text: ...
@overload
def generate(model: Checkpoint, prompt: list[str] | tuple[str, ...], **options: Any) -> Texts: ...
@verb
def generate(
    model: Checkpoint,
    prompt: str | Sequence[str] = "",
    *,
    tokens: CountFromZero | None = None,
    sampling: Sampling = SAMPLING,
    answering: Answering = ANSWERING,
    decoding: Decoding = DECODING,
    tokenizer: CheckpointTokenizer = None,
    terminal: Terminal = SILENT,
) -> Text | Texts:
    """Continue prompts with a language model: greedy, sampled, or by beam search.

    The same call gives the same text on the same machine. The other prompts in a batch can change a
    text through rounding; ``deterministic_batch`` prevents this.

    Args:
        model: The checkpoint, or what ``qk.load`` returned.
        prompt: A text to continue, or several, which are decoded in batches.
        tokens: Maximum new tokens. If not given, as many as the model's context has room for, at
            most 256.
        sampling: The choice of tokens.
        answering: The seed, the end of the texts, and beam search.
        decoding: The device, batching and cache.
        tokenizer: The tokenizer to use if the checkpoint has none.
        terminal: Shows the texts as they are generated.

    Returns:
        The new text, without the prompt; for several prompts, a list of new texts.

    Raises:
        ValueError: if there is no such checkpoint, it has no tokenizer, or a prompt or a number is
            out of its range.
        DamagedError: if the checkpoint is damaged.
    """
    if decoding.deterministic_batch and answering.beams is not None:
        raise UsageError("expected --deterministic-batch without --beams, got both")
    loaded, _ = open_checkpoint(model, tokenizer, decoding, speaks=True)
    own = cast("Tokenizer", loaded.tokenizer)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    requests: list[Request] = []
    for text in prompts:
        encoded = encode_prompt(own, text)
        room = max(0, loaded.network.config.max_tokens + 1 - len(encoded))
        request = Request(
            prompt=encoded,
            max_new_tokens=min(DEFAULT_TOKENS, room) if tokens is None else tokens,
            sampling=replace(sampling, temperature=sampling.divisor),
            stop=answering.stop,
            stop_tokens=own.ends,
            seed=answering.seed,
            logprobs=answering.logprobs,
        )
        requests.append(request)
    new_cache = _cache_maker(loaded, decoding, terminal)
    if answering.beams is None:
        answers, found = _sample(loaded, requests, prompts, new_cache, decoding, terminal), []
    else:
        found = _search(loaded, requests, new_cache, answering)
        answers = [
            Completion(tokens=best.tokens, text=best.text, logprobs=None, finish=best.finish)
            for best, *_ in found
        ]
        show = terminal.open_texts(prompts)
        for index, answer in enumerate(answers):
            show(index, answer.text, True)
    report = generation_report(own, prompts, requests, answers, found)
    texts = Texts(Text(answer.text) for answer in answers)
    generated = texts[0] if isinstance(prompt, str) else texts
    generated.result = Result(tuple(answers), report)
    return generated


def _cache_maker(loaded: "LoadedModel", decoding: Decoding, terminal: Terminal) -> "CacheMaker":
    """Return a function that makes a cache; tell the user if kernels must be compiled first."""
    from qkvary.inference.decoding import make_cache
    from qkvary.nn.decoding.decode import pinned
    from qkvary.nn.decoding.native import notice

    storage, kernel = parse_options(decoding.storage), decoding.kernel
    # The kernels read caches of tokens, not states.
    reads_cache = any(not one.variant.keeps_state for one in loaded.network.config.layers)
    if pinned(kernel) in ("auto", "native") and reads_cache and (said := notice()) is not None:
        terminal.say(said)
    return lambda tokens: make_cache(
        loaded.network, tokens, layout=decoding.layout, storage=storage, kernel=kernel
    )


def _sample(
    loaded: "LoadedModel",
    requests: Sequence[Request],
    prompts: Sequence[str],
    new_cache: "CacheMaker",
    decoding: Decoding,
    terminal: Terminal,
) -> list[Completion]:
    from qkvary.inference.decoding import stream

    limit = loaded.network.config.max_tokens
    groups = group_requests(requests, max_tokens=limit, batch_size=BATCH)
    # Creating the streams refuses requests that do not fit.
    streams = [
        stream(
            loaded.network,
            [requests[index] for index in group],
            tokenizer=loaded.tokenizer,
            new_cache=new_cache,
            deterministic_batch=decoding.deterministic_batch,
        )
        for group in groups
    ]
    show = terminal.open_texts(prompts)
    events: list[list[Event]] = [[] for _ in requests]
    for group, coming in zip(groups, streams, strict=True):
        for event in coming:
            index = group[event.request]
            events[index].append(event)
            show(index, event.text, event.finish is not None)
    return list(map(collect, events))


def _search(
    loaded: "LoadedModel",
    requests: Sequence[Request],
    new_cache: "CacheMaker",
    answering: Answering,
) -> "list[list[Beam]]":
    from qkvary.inference.beams import search

    return [
        search(
            loaded.network,
            request,
            beams=answering.beams or 0,
            length_penalty=answering.length_penalty,
            tokenizer=loaded.tokenizer,
            new_cache=new_cache,
        )
        for request in requests
    ]
