"""What the native kernel alone has: rows that stay as they are, and a choice of what is fetched."""

import ctypes
import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from qkvary.nn.decoding import native
from qkvary.nn.decoding.build import find_compiler
from qkvary.nn.decoding.decode import decode_attention
from tests.nn.decoding.cases import attend_stored, distance, draw
from tests.pairwise import pairwise

if find_compiler() is None:
    # To have none is normal: there is no such kernel then, and torch's forms are tested elsewhere.
    pytest.skip("the native kernel needs a C++ compiler", allow_module_level=True)

# Rounding to the type of the result, and the products of pairs of bfloat16.
NEAR = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}
REACHES = (0, 1, 2)
WORTH = (1, 2, 65_536, 64)
"""Of float32: as many bytes as let the kernel try what to fetch."""


@pytest.fixture
def _choice() -> Iterator[None]:
    """Leaves the choice to the calls that come."""
    yield
    pin(-1)


def pin(reach: int) -> None:
    library().qkvary_pin_reach(reach)


def chosen() -> int:
    """Return the reach chosen for stored tokens, or -1 while they are tried."""
    return int(library().qkvary_reach(0))


def library() -> ctypes.CDLL:
    found = native.library()
    assert found is not None
    return found


@pytest.mark.usefixtures("_choice")
@pairwise(
    "rows, dtype, is_interleaved, is_shared",
    itertools.product([1, 4, 16], [torch.float32, torch.bfloat16], [False, True], [False, True]),
    ids=str,
)
def test_what_is_fetched_changes_no_result(
    rows: int, dtype: torch.dtype, is_interleaved: bool, is_shared: bool
) -> None:
    """Runs of bytes, and heads that stand between each other's tokens."""
    query = draw(1, 3 * rows, 1, 64, seed=31, dtype=dtype)
    key = stored(draw(1, 3, 1200, 64, seed=32, dtype=dtype), is_interleaved)
    value = key if is_shared else stored(draw(1, 3, 1200, 64, seed=33, dtype=dtype), is_interleaved)
    results = []
    for reach in REACHES:
        pin(reach)
        assert chosen() == reach
        results.append(decode_attention(query, key, value, scale=0.2, kernel="native"))
    assert all(torch.equal(results[0], other) for other in results[1:])
    expected = attend_stored(query, key, value, scale=0.2)
    assert distance(results[0], expected) < NEAR[dtype]


def stored(entries: Tensor, is_interleaved: bool) -> Tensor:
    return entries.transpose(1, 2).contiguous().transpose(1, 2) if is_interleaved else entries


@pytest.mark.usefixtures("_choice")
def test_the_first_calls_over_much_memory_choose_what_is_fetched() -> None:
    query, key = draw(1, 2, 1, 64, seed=34), torch.randn(*WORTH)
    pin(-1)
    few = decode_attention(query, key[:, :, :4096], key[:, :, :4096], scale=0.1, kernel="native")
    first = decode_attention(query, key, key, scale=0.1, kernel="native")
    assert chosen() == -1
    for _ in range(47):
        assert chosen() == -1
        assert torch.equal(first, decode_attention(query, key, key, scale=0.1, kernel="native"))
    assert chosen() in REACHES
    again = decode_attention(query, key[:, :, :4096], key[:, :, :4096], scale=0.1, kernel="native")
    assert torch.equal(few, again)
