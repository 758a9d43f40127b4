"""Section 6: queries are removed in front of routed experts as in front of one network."""

from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.contracts.variant_cases import distance
from tests.conversions.networks import spread

WIDTH, HEADS, INNER, EXPERTS, ACTIVE, CLASSES = 6, 2, 7, 5, 2, 11


class Block(NamedTuple):
    """Attention with a skip around it, and experts without one; no norms."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    router: Tensor
    first: Tensor
    """The first matrices of the experts, ``[experts, width, inner]``."""
    second: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        query, key, value = (
            (x @ weight).view(len(x), HEADS, -1).transpose(0, 1)
            for weight in (self.query, self.key, self.value)
        )
        hidden = torch.full((len(x), len(x)), -torch.inf).triu(1)
        weights = (query @ key.mT / 3 + hidden).softmax(dim=-1)
        x = x + (weights @ value).transpose(0, 1).flatten(1) @ self.output
        chosen = (x @ self.router).topk(ACTIVE, dim=-1)
        rows = zip(x, chosen.values.softmax(dim=-1), chosen.indices, strict=True)
        return torch.stack([self.route(*row) for row in rows])

    def route(self, token: Tensor, gates: Tensor, experts: Tensor) -> Tensor:
        """Return the gated sum of the chosen experts' outputs for a token."""
        inner = torch.relu(token @ self.first[experts])
        return (gates[:, None, None] * (inner[:, None] @ self.second[experts])).sum(dim=(0, 1))


def draw_block(seed: int) -> Block:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / 2

    return Block(
        query=spread(WIDTH, 5.0, seed),
        key=draw(WIDTH, WIDTH),
        value=draw(WIDTH, WIDTH),
        output=draw(WIDTH, WIDTH),
        router=draw(WIDTH, EXPERTS),
        first=draw(EXPERTS, WIDTH, INNER),
        second=draw(EXPERTS, INNER, WIDTH),
    )


@given(seed=st.integers(0, 99))
def test_a_network_with_experts_needs_no_query(seed: int) -> None:
    blocks = [draw_block(seed), draw_block(seed + 100)]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, WIDTH, generator=generator, dtype=torch.float64)
    head = torch.randn(WIDTH, CLASSES, generator=generator, dtype=torch.float64)
    expected, found = x, x @ blocks[0].query
    # Each block reads its input in the basis of its query and writes that of the next block.
    bases = [block.query for block in blocks] + [torch.eye(WIDTH, dtype=torch.float64)]
    for block, own, following in zip(blocks, bases[:-1], bases[1:], strict=True):
        back = torch.linalg.inv(own)
        reduced = Block(
            query=torch.eye(WIDTH, dtype=torch.float64),
            key=back @ block.key,
            value=back @ block.value,
            output=block.output @ own,
            router=back @ block.router,
            first=back @ block.first,
            second=block.second @ following,
        )
        expected, found = block(expected), reduced(found)
    assert distance(found @ head, expected @ head) < 1e-10
