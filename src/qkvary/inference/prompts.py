"""Requests made of texts, with the settings that are usual. Torch-free."""

from collections.abc import Sequence

from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.requests import GREEDY, Request, Sampling
from qkvary.storage.errors import UsageError

DEFAULT_TOKENS = 256
"""The default number of new tokens, if the network has positions for them."""


def choose_sampling(
    temperature: float | None = None,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
) -> Sampling:
    """Return the settings of sampling; a filter alone implies a temperature of 1."""
    default = 0.0 if top_k is top_p is min_p is None else 1.0
    return Sampling(
        temperature=default if temperature is None else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )


def encode_prompt(tokenizer: Tokenizer, text: object) -> tuple[int, ...]:
    """Return the tokens of a prompt; an empty one becomes the token that begins texts."""
    if not isinstance(text, str):
        raise UsageError(f"expected a text for a prompt, got {text!r}"[:200])
    tokens = tuple(tokenizer.encode(text))
    if not tokens and tokenizer.separator is not None:
        # In training, each document follows the separator of the previous one.
        tokens = (tokenizer.separator,)
    if not tokens:
        raise UsageError("expected a prompt, got none; this model has no token to begin with")
    return tokens


def make_requests(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_tokens: int,
    tokens: int | None = None,
    sampling: Sampling = GREEDY,
    stop: tuple[str, ...] = (),
    seed: int = 0,
    logprobs: bool = False,
) -> list[Request]:
    """Return the requests to continue texts, by ``tokens`` tokens each.

    The default is as many as the model has positions for, up to 256.
    """
    requests: list[Request] = []
    for text in texts:
        prompt = encode_prompt(tokenizer, text)
        room = min(DEFAULT_TOKENS, max(0, max_tokens + 1 - len(prompt)))
        requests.append(
            Request(
                prompt=prompt,
                max_new_tokens=room if tokens is None else tokens,
                sampling=sampling,
                stop=stop,
                stop_tokens=tokenizer.ends,
                seed=seed,
                logprobs=logprobs,
            )
        )
    return requests
