"""Continue prompts with a language model: greedy, sampled, or by beam search."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from qkvary.api.arguments import options, verb
from qkvary.api.options import (
    Checkpoint,
    CheckpointTokenizer,
    NetworkOptions,
    open_checkpoint,
    say_nothing,
)
from qkvary.api.results import Result
from qkvary.arch.caches import CacheLayout, DecodeKernel
from qkvary.costs.formats import parse_storage
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.requests import (
    Completion,
    Event,
    Request,
    Sampling,
    collect,
    group_requests,
    make_requests,
)
from qkvary.inference.streaming import REPLACEMENT, count_replaced
from qkvary.reports.generation import generation_report
from qkvary.reports.report import ReportFormat
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import StrPath
from qkvary.text.names import count
from qkvary.text.numbers import CountFromZero

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.inference.beams import Beam
    from qkvary.inference.decoding import CacheMaker

BATCH = 16
"""The maximum number of prompts in a batch."""

ShowText = Callable[[int, str, bool], None]
"""Called with the index of a prompt, a new piece of its text, and whether the text ends here."""
OpenTexts = Callable[[Sequence[str]], ShowText]
"""Called with the prompts once all arguments are checked; returns the function that shows the
texts."""


def _show_nothing(_prompts: Sequence[str]) -> ShowText:
    return lambda _index, _text, _ends: None


class _Answer:
    """Generated text that can be saved like any other result."""

    __slots__ = ()
    result: Result[tuple[Completion, ...]]

    def to_dict(self) -> dict[str, Any]:
        """Return ``result`` as plain data."""
        return self.result.to_dict()

    def save(
        self, target: StrPath, formats: Sequence[ReportFormat] | None = None
    ) -> tuple[Path, ...]:
        """Write the report of ``result``, as ``Result.save`` does."""
        return self.result.save(target, formats)


class Text(_Answer, str):
    """The text generated for a prompt; ``result`` has its tokens, and their log-probabilities."""

    __slots__ = ("result",)


class Texts(_Answer, list[Text]):
    """The texts generated for several prompts; ``result`` has their tokens."""


@options
class Choosing:
    """Options of sampling."""

    temperature: float | None = None
    """Divisor of the logits; 0 takes the most probable token. If not given: 0, or 1 with --top-k,
    --top-p or --min-p."""
    top_k: int | None = None
    """Sample from the k most probable tokens."""
    top_p: float | None = None
    """Sample from the fewest tokens whose probabilities add up to this."""
    min_p: float | None = None
    """Drop tokens less probable than this share of the highest probability."""
    repetition_penalty: float = 1.0
    """Penalty for tokens that occurred before; 1 for none."""
    seed: int = 0
    """Seed of the random numbers."""
    stop: tuple[str, ...] = ()
    """End before this text (can be repeated)."""
    logprobs: bool = False
    """Print the log-probability of each token (in nats, before penalty, temperature and
    filters)."""
    beams: int | None = None
    """Beam search with this many beams."""
    length_penalty: float = 1.0
    """With --beams: a beam's log-probability is divided by its length to this power."""

    def sampling(self) -> Sampling:
        """Return the sampling settings.

        The temperature defaults to 1 if top-k, top-p or min-p is set, and otherwise to 0.
        """
        default = 0.0 if self.top_k is self.top_p is self.min_p is None else 1.0
        return Sampling(
            temperature=default if self.temperature is None else self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


@options
class Decoding(NetworkOptions):
    """The device and batching of the network, and its cache."""

    deterministic_batch: bool = False
    """Compute each prompt separately, so that no bit depends on the others."""
    layout: CacheLayout | None = None
    """Layout of the cache: the tensors that it stores. The smallest if not given."""
    storage: str = "preallocated"
    """Storage of the cache: preallocated, growing, or quantised, such as int8, int8-b32,
    int4-g32-rot (see bench quantized). Quantised caches may change the text."""
    kernel: DecodeKernel = "auto"
    """Decoding kernel: its name, or auto to choose by device and shape."""

    def cache_maker(self, loaded: "LoadedModel") -> "CacheMaker":
        """Return a function that makes a cache for a number of tokens."""
        from qkvary.inference.decoding import make_cache
        from qkvary.nn.decoding.decode import pinned

        pinned(self.kernel)
        storage = parse_storage(self.storage)
        return lambda tokens: make_cache(
            loaded.network, tokens, layout=self.layout, storage=storage, kernel=self.kernel
        )

    def notice(self, loaded: "LoadedModel") -> str | None:
        """Return a notice if kernels must be compiled before the first token."""
        from qkvary.nn.decoding.decode import pinned
        from qkvary.nn.decoding.native import notice

        # The kernels read caches of tokens, not states.
        reads_cache = any(not one.variant.keeps_state for one in loaded.network.config.layers)
        wanted = reads_cache and pinned(self.kernel) in ("auto", "native")
        return notice() if wanted else None


CHOOSING, DECODING = Choosing(), Decoding()


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
    choosing: Choosing = CHOOSING,
    decoding: Decoding = DECODING,
    tokenizer: CheckpointTokenizer = None,
    open_texts: OpenTexts = _show_nothing,
    say: Callable[[str], None] = say_nothing,
) -> Text | Texts:
    """Continue prompts with a language model: greedy, sampled, or by beam search.

    The same call gives the same text on the same machine. Other prompts in a batch can change an
    answer through rounding, unless batches are deterministic.

    Args:
        model: The checkpoint, or what ``qk.load`` returned.
        prompt: A text to continue, or several, which are decoded in batches.
        tokens: Maximum new tokens. If not given, as many as the model has positions for, at most
            256.
        choosing: The choice of tokens.
        decoding: The device, batching and cache.
        tokenizer: The tokenizer to use if the checkpoint has none.
        open_texts: Shows texts as they are generated.
        say: Shows a sentence before the first token.

    Returns:
        The new text, without the prompt; for several prompts, a list of new texts.

    Raises:
        ValueError: if there is no such checkpoint, it has no tokenizer, or a prompt or a number is
            out of its range.
        DamagedError: if the checkpoint is damaged.
    """
    if decoding.deterministic_batch and choosing.beams is not None:
        raise UsageError("expected --deterministic-batch without --beams, got both")
    sampling = choosing.sampling()
    loaded, _ = open_checkpoint(model, tokenizer, decoding, speaks=True)
    own = cast("Tokenizer", loaded.tokenizer)
    prompts = list(prompt) if isinstance(prompt, list | tuple) else [cast("str", prompt)]
    requests = make_requests(
        own,
        prompts,
        max_tokens=loaded.network.config.max_tokens,
        tokens=tokens,
        sampling=sampling,
        stop=choosing.stop,
        seed=choosing.seed,
        logprobs=choosing.logprobs,
    )
    notice = decoding.notice(loaded)

    def announce() -> None:
        # The notice about kernels to compile waits until all arguments are checked.
        if notice is not None:
            say(notice)

    compute = _sample if choosing.beams is None else _search
    show = partial(open_texts, prompts)
    answers, beams = compute(loaded, requests, choosing, decoding, announce, show)
    report = generation_report(own, prompts, requests, answers, beams)
    replaced = sum(count_replaced(own, one.text, one.tokens) for one in answers)
    warning = (
        f"the model wrote bytes that are not UTF-8: {REPLACEMENT} stands for them in "
        f"{count(replaced, 'place')}"
    )
    texts = Texts(map(Text, (answer.text for answer in answers)))
    found = texts if isinstance(prompt, list | tuple) else texts[0]
    found.result = Result(tuple(answers), report, notices=(warning,) * bool(replaced))
    return found


Answers = tuple[list[Completion], "list[list[Beam]]"]


def _sample(
    loaded: "LoadedModel",
    requests: Sequence[Request],
    _choosing: Choosing,
    decoding: Decoding,
    announce: Callable[[], None],
    open_texts: Callable[[], ShowText],
) -> Answers:
    from qkvary.inference.decoding import stream

    new_cache, limit = decoding.cache_maker(loaded), loaded.network.config.max_tokens
    # Creating the streams refuses requests that do not fit.
    streams = [
        (
            group.start,
            stream(
                loaded.network,
                [requests[index] for index in group],
                tokenizer=loaded.tokenizer,
                new_cache=new_cache,
                deterministic_batch=decoding.deterministic_batch,
            ),
        )
        for group in group_requests(requests, max_tokens=limit, batch_size=BATCH)
    ]
    announce()
    show, events = open_texts(), dict[int, list[Event]]()
    for first, coming in streams:
        for event in coming:
            index = first + event.request
            events.setdefault(index, []).append(event)
            show(index, event.text, event.finish is not None)
    return [collect(events[index]) for index in sorted(events)], []


def _search(
    loaded: "LoadedModel",
    requests: Sequence[Request],
    choosing: Choosing,
    decoding: Decoding,
    announce: Callable[[], None],
    open_texts: Callable[[], ShowText],
) -> Answers:
    from qkvary.inference.beams import check_beams, search

    beams = choosing.beams or 0
    check_beams(beams)
    new_cache = decoding.cache_maker(loaded)
    announce()
    found = [
        search(
            loaded.network,
            request,
            beams=beams,
            length_penalty=choosing.length_penalty,
            tokenizer=loaded.tokenizer,
            new_cache=new_cache,
        )
        for request in requests
    ]
    show = open_texts()
    for index, (best, *_) in enumerate(found):
        show(index, best.text, True)
    answers = [
        Completion(tokens=best.tokens, text=best.text, logprobs=None, finish=best.finish)
        for best, *_ in found
    ]
    return answers, found
