"""What a network says when it is asked, for watching how it learns."""

from __future__ import annotations

from torch import nn

from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.decoding import complete, make_cache
from qkvary.inference.requests import Request, Sampling
from qkvary.nn.decoder import Decoder

SAMPLE_TOKENS = 64
SAMPLING = Sampling(temperature=0.8, top_k=40)


class Sampler:
    """Lets a network continue one and the same prompt whenever it is called."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: str = "", *, most: int | None = None, seed: int = 0
    ) -> None:
        """Turn the prompt into tokens.

        Args:
            tokenizer: Of the network's tokens.
            prompt: What to continue; a new document where it is empty.
            most: Tokens that the network reads.
            seed: Of the random numbers, which are its own.

        Raises:
            ValueError: if the prompt cannot be said in the tokenizer's tokens, or is too long.
        """
        tokens = tuple(tokenizer.encode(prompt)) if prompt else ()
        if not tokens and tokenizer.separator is not None:
            tokens = (tokenizer.separator,)
        if not tokens:
            raise ValueError("expected a prompt, got none; no token begins a document here")
        if most is not None and len(tokens) > most:
            raise ValueError(
                f"expected a prompt of at most the {most:,} tokens of a row, got {len(tokens):,}"
            )
        self._tokenizer, self._prompt, self._seed = tokenizer, prompt, seed
        self._tokens = tokens

    def __call__(self, network: nn.Module) -> str:
        """The prompt and what the network makes of it."""
        if not isinstance(network, Decoder):
            raise TypeError(f"expected a network that decodes, got {type(network).__name__}")
        room = network.config.max_tokens + 1 - len(self._tokens)
        request = Request(
            prompt=self._tokens,
            max_new_tokens=max(0, min(SAMPLE_TOKENS, room)),
            sampling=SAMPLING,
            stop_tokens=self._tokenizer.ends,
            seed=self._seed,
        )
        # The layers compute it, as nothing is worth a timing here.
        answers = complete(
            network,
            [request],
            tokenizer=self._tokenizer,
            new_cache=lambda tokens: make_cache(network, tokens, kernel="layer"),
        )
        return self._prompt + answers[0].text
