"""A model that gives scripted tokens, for tests of decoding."""

from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig


class Scripted:
    """Row r chooses ``scripts[r][n]`` at step n by a wide margin; after the end, token 0."""

    training = False

    def __init__(self, scripts: list[list[int]], *, vocabulary: int = 256) -> None:
        layer = AttentionConfig(d_model=2, num_heads=1, causal=True)
        self.config = SimpleNamespace(vocabulary=vocabulary, max_tokens=1000, layers=(layer,))
        self.embedding = torch.zeros(vocabulary, 2)
        self.scripts, self.steps = scripts, 0

    def parameters(self) -> Iterator[Tensor]:
        yield self.embedding

    def features(self, tokens: Tensor, **_call: object) -> Tensor:
        if tokens.shape[0] < len(self.scripts):
            # Rows have left: those are there that said what was said last.
            left = iter(self.scripts)
            self.scripts = [
                next(script for script in left if script[self.steps - 1 :][:1] == [said])
                for said in tokens[:, -1].tolist()
            ]
        return torch.zeros(tokens.shape[0], tokens.shape[1], 1)

    def head(self, features: Tensor) -> Tensor:
        logits = torch.zeros(*features.shape[:-1], self.config.vocabulary)
        for row, script in enumerate(self.scripts):
            logits[row, ..., script[self.steps] if self.steps < len(script) else 0] = 9.0
        self.steps += 1
        return logits

    def __call__(self, tokens: Tensor, **call: object) -> Tensor:
        return self.head(self.features(tokens, **call))
