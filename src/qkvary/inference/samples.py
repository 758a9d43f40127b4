"""Samples text from a network, to show how the network learns."""

from __future__ import annotations

from torch import nn

from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.decoding import complete, make_cache
from qkvary.inference.requests import Request, Sampling, encode_prompt
from qkvary.nn.decoder import Decoder

SAMPLE_TOKENS = 64


class TextSampler:
    """Samples a continuation of the same prompt at every call."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: str = "",
        *,
        most: int | None = None,
        tokens: int = SAMPLE_TOKENS,
        seed: int = 0,
    ) -> None:
        encoded = encode_prompt(tokenizer, prompt)
        if most is not None and len(encoded) > most:
            raise ValueError(
                f"expected a prompt of at most {most:,} tokens, the length of a row, got "
                f"{len(encoded):,}"
            )
        self._tokenizer, self._prompt, self._seed = tokenizer, prompt, seed
        self._encoded, self._most = encoded, tokens

    def __call__(self, network: nn.Module) -> str:
        """Return the prompt with the network's continuation."""
        if not isinstance(network, Decoder):
            raise TypeError(f"expected a Decoder network, got {type(network).__name__}")
        room = network.config.max_tokens + 1 - len(self._encoded)
        request = Request(
            prompt=self._encoded,
            max_new_tokens=max(0, min(self._most, room)),
            sampling=Sampling(temperature=0.8, top_k=40),
            stop_tokens=self._tokenizer.ends,
            seed=self._seed,
        )
        # Building kernels or capturing a graph does not pay off for so few tokens.
        answers = complete(
            network,
            [request],
            tokenizer=self._tokenizer,
            new_cache=lambda tokens: make_cache(network, tokens, kernel="layer"),
        )
        return self._prompt + answers[0].text
