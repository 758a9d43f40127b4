"""Batched decoding of requests to tokens and text, with one cache per batch.

Prompts are padded on the left, so that the newest tokens of all rows are in the same column. A
finished row continues as padding until half of the batch is finished; then the finished rows are
dropped. The iterator contains all state.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.arch.caches import CacheLayout, CacheOptions, DecodeKernel
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.requests import Completion, Event, Finish, Request, collect, group_requests
from qkvary.inference.sampling import Sampler, log_probabilities
from qkvary.inference.stepping import Stepper
from qkvary.inference.streaming import TextStream
from qkvary.nn.cache import KVCache
from qkvary.nn.cache_layouts import needs_slice
from qkvary.nn.decoder import Decoder, device_of
from qkvary.nn.threads import use_threads
from qkvary.storage.errors import DivergedError

CacheMaker = Callable[[int], KVCache]
"""Makes an empty cache for a batch, given the maximum number of tokens that it will hold."""
DEFAULT_CHUNK = 512
"""Prompt tokens per forward pass."""
PADDING = 0
"""The token at padded positions. Padded positions are masked."""
FEW_LOGITS = 2**19
"""Maximum number of logits that are checked and sampled in one thread."""


def stream(
    model: Decoder,
    requests: Sequence[Request],
    *,
    tokenizer: Tokenizer | None = None,
    chunk: int = DEFAULT_CHUNK,
    new_cache: CacheMaker | None = None,
    deterministic_batch: bool = False,
) -> Iterator[Event]:
    """Decode requests as one batch and yield events, token by token.

    Args:
        model: The network, in evaluation mode.
        requests: The requests.
        tokenizer: Turns tokens into text. Without a tokenizer, events contain no text.
        chunk: The number of prompt tokens per forward pass.
        new_cache: A function that makes the cache. The default is ``make_cache``, with room for the
            longest answer.
        deterministic_batch: Decode every row alone with its own cache, so that an answer is bitwise
            independent of the rest of the batch.

    Raises:
        ValueError: if a request does not fit the network, the requests do not fit one batch, or
            stop strings are given without a tokenizer.
        DivergedError: if the network gives logits that are not finite.
    """
    check_requests(model, requests, tokenizer)
    if not deterministic_batch:
        return _decode(model, requests, tokenizer, chunk, new_cache)
    return _interleave([_decode(model, [one], tokenizer, chunk, new_cache) for one in requests])


def complete(
    model: Decoder,
    requests: Sequence[Request],
    *,
    tokenizer: Tokenizer | None = None,
    chunk: int = DEFAULT_CHUNK,
    new_cache: CacheMaker | None = None,
    batch_size: int = 16,
    deterministic_batch: bool = False,
) -> list[Completion]:
    """Decode requests in batches and return whole answers in the order of the requests.

    See ``stream`` for the arguments and errors. A batch has at most ``batch_size`` requests.
    """
    answers: list[Completion] = []
    for group in group_requests(
        requests, max_tokens=model.config.max_tokens, batch_size=batch_size
    ):
        some = [requests[index] for index in group]
        events: list[list[Event]] = [[] for _ in some]
        for event in stream(
            model,
            some,
            tokenizer=tokenizer,
            chunk=chunk,
            new_cache=new_cache,
            deterministic_batch=deterministic_batch,
        ):
            events[event.request].append(event)
        answers += [collect(own) for own in events]
    return answers


def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_tokens: Collection[int] = (),
    new_cache: CacheMaker | None = None,
) -> list[tuple[int, ...]]:
    """Return greedy continuations of prompts, decoded as one batch.

    Every prompt must have at least one token. An answer ends before a stop token. The other
    arguments and the errors are those of ``stream``.
    """
    requests = [
        Request(prompt=tuple(prompt), max_new_tokens=max_new_tokens, stop_tokens=tuple(stop_tokens))
        for prompt in prompts
    ]
    # A training wrapper such as DDP only has ``forward``.
    network = getattr(model, "module", model)
    answers = complete(network, requests, new_cache=new_cache, batch_size=max(1, len(requests)))
    return [answer.tokens for answer in answers]


def make_cache(
    model: Decoder,
    max_tokens: int,
    *,
    layout: CacheLayout | None = None,
    storage: CacheOptions | None = None,
    kernel: DecodeKernel = "auto",
) -> KVCache:
    """Make a cache that stores shared projections once.

    By default, the memory of the cache is preallocated. The default layout stores rotated keys, or
    unrotated keys if they take fewer bytes.
    """
    layers = model.config.layers
    if layout is None:
        layout = "sources" if any(needs_slice(layer) for layer in layers) else "rotated"
    storage = storage or CacheOptions(storage="preallocated")
    options = dataclasses.replace(storage, layout=layout, kernel=kernel)
    return KVCache(layers, max_tokens=max_tokens, options=options)


def prefill(
    model: Decoder,
    tokens: Int[Tensor, "rows tokens"],
    *,
    cache: KVCache,
    attention_mask: Bool[Tensor, "rows tokens"] | None = None,
    chunk: int = DEFAULT_CHUNK,
) -> Float[Tensor, "rows vocabulary"]:
    """Run prompts through the network in chunks and return the logits of the last column.

    The attention mask covers both cached and new tokens, and is True for real tokens.
    """
    *first, last = tokens.split(chunk, dim=1)
    for part in first:
        model.features(part, cache=cache, attention_mask=_crop_mask(attention_mask, part, cache))
    mask = _crop_mask(attention_mask, last, cache)
    return model.head(model.features(last, cache=cache, attention_mask=mask)[:, -1])


def check_finite(logits: Float[Tensor, "rows vocabulary"], number: int) -> None:
    """Raise a ``DivergedError`` unless all logits are finite."""
    # The largest magnitude is not finite if any logit is not; checking each takes twice as long.
    if logits.numel() and not torch.isfinite(logits.abs().max()):
        raise DivergedError(f"the model gave logits that are not finite at step {number}")


def one_thread_for(logits: Float[Tensor, "rows vocabulary"]) -> AbstractContextManager[None]:
    """Return a context in which torch uses one thread if there are few logits."""
    # Other threads of torch would spin after the work, and slow down those of the native step.
    return use_threads(1) if logits.numel() <= FEW_LOGITS else nullcontext()


def usable_vocabulary(model: Decoder, tokenizer: Tokenizer | None) -> int:
    """Return the number of tokens that may be chosen.

    The embedding may be padded with further rows.
    """
    return model.config.vocabulary if tokenizer is None else tokenizer.vocabulary


def pad_left(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"] | None]:
    """Return prompts as one tensor, and a mask of the real tokens, or ``None`` without padding."""
    width = max(map(len, prompts))
    rows = [[PADDING] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    tokens = torch.tensor(rows, dtype=torch.long, device=device)
    if min(map(len, prompts)) == width:
        return tokens, None
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return tokens, torch.arange(width, device=device) >= (width - lengths)[:, None]


def _crop_mask(mask: Tensor | None, new: Tensor, cache: KVCache) -> Tensor | None:
    return None if mask is None else mask[:, : cache.length + new.shape[1]]


@dataclass(slots=True)
class _Row:
    index: int
    request: Request
    tokenizer: Tokenizer | None
    text: TextStream
    count: int = 0
    previous: int | None = None
    finish: Finish | None = None

    def take(self, token: int, logprob: float | None) -> Event:
        """Add a token and return its event."""
        if token in self.request.stop_tokens:
            self.finish = "end"
            return self.event(None, None, self.text.finish())
        self.count += 1
        shown = ""
        if self.tokenizer is not None:
            shown = self.text.feed(self.tokenizer.piece(token, after=self.previous))
        self.previous = token
        if self.text.stopped:
            self.finish = "stop"
        elif self.count == self.request.max_new_tokens:
            shown += self.text.finish()
            self.finish = "stop" if self.text.stopped else "length"
        return self.event(token, logprob if self.request.logprobs else None, shown)

    def event(self, token: int | None, logprob: float | None, text: str) -> Event:
        return Event(
            request=self.index, token=token, logprob=logprob, text=text, finish=self.finish
        )


def check_requests(
    model: Decoder, requests: Sequence[Request], tokenizer: Tokenizer | None
) -> None:
    """Raise a ``ValueError`` unless a network can decode requests as one batch."""
    if model.training:
        raise ValueError("expected a model in evaluation mode, got a model in training mode")
    config = model.config
    for request in requests:
        request.check(config.vocabulary, config.max_tokens)
        if request.stop and tokenizer is None:
            raise ValueError("expected a tokenizer for stop strings, got none")
    limits = {"max_tokens": config.max_tokens, "batch_size": max(1, len(requests))}
    if len(group_requests(requests, **limits)) > 1:
        raise ValueError(
            f"expected requests that fit one batch of {config.max_tokens} tokens, got longer "
            "prompts and answers; decode them in several batches"
        )


def _interleave(streams: Sequence[Iterator[Event]]) -> Iterator[Event]:
    """Yield one event of each stream in turn; stream i has the events of request i."""
    live = dict(enumerate(streams))
    while live:
        for index, events in list(live.items()):
            event = next(events, None)
            if event is None:
                del live[index]
            else:
                yield dataclasses.replace(event, request=index)


def _decode(
    model: Decoder,
    requests: Sequence[Request],
    tokenizer: Tokenizer | None,
    chunk: int,
    new_cache: CacheMaker | None,
) -> Iterator[Event]:
    rows = [
        _Row(
            index=index,
            request=request,
            tokenizer=tokenizer,
            text=TextStream(request.stop),
            previous=request.prompt[-1],
        )
        for index, request in enumerate(requests)
    ]
    for row in rows:
        if row.request.max_new_tokens == 0:
            row.finish = "length"
            yield row.event(None, None, "")
    rows = [row for row in rows if row.finish is None]
    if not rows:
        return
    device = device_of(model)
    asked = [row.request for row in rows]
    longest = max(request.max_new_tokens for request in asked)
    spoken = usable_vocabulary(model, tokenizer)
    sampler = Sampler(asked, spoken, device)
    limit = max(len(request.prompt) for request in asked) + longest - 1
    cache = make_cache(model, limit) if new_cache is None else new_cache(limit)
    wants_logprobs = any(request.logprobs for request in asked)
    with torch.inference_mode():
        prompts, mask = pad_left([request.prompt for request in asked], device)
        if mask is not None:
            mask = torch.cat((mask, mask.new_ones(len(rows), longest)), dim=1)
        logits = prefill(model, prompts, cache=cache, attention_mask=mask, chunk=chunk)
        step = Stepper(model, cache)
    for number in range(longest):
        # The mode is set at every step, because the caller's code runs between steps.
        with torch.inference_mode(), one_thread_for(logits):
            check_finite(logits, number)
            tokens = sampler.choose(logits[:, :spoken])
            chosen = tokens.tolist()
            known = log_probabilities(logits, tokens) if wants_logprobs else [None] * len(rows)
        for row, token, logprob in zip(rows, chosen, known, strict=True):
            if row.finish is None:
                yield row.take(token, logprob)
        live = [place for place, row in enumerate(rows) if row.finish is None]
        if not live:
            return
        with torch.inference_mode():
            if 2 * len(live) <= len(rows):
                # Not earlier, because reordering copies the cache of the remaining rows.
                rows = [rows[place] for place in live]
                kept = torch.tensor(live, device=device)
                tokens, mask = tokens[kept], None if mask is None else mask[kept]
                cache.reorder(kept)
                sampler.keep(kept)
            seen = _crop_mask(mask, tokens[:, None], cache)
            logits = step(tokens, seen)
