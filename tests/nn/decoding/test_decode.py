"""Every kernel equals plain loops in float64, whatever the shapes, types, masks and strides."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkvary.nn.decoding.decode import decode_attention
from tests.conftest import examples
from tests.nn.decoding.cases import (
    GATES,
    HERE,
    KERNELS,
    attend_stored,
    distance,
    draw,
    kernels_for,
)
from tests.pairwise import pairwise

DTYPES = list(GATES)


@st.composite
def calls(draws: st.DrawFn) -> dict[str, object]:
    """Sizes, types and what is special about a call."""
    kv_heads = draws(st.sampled_from([1, 2, 3]))
    return {
        "batch": draws(st.integers(1, 3)),
        "kv_heads": kv_heads,
        "heads": kv_heads * draws(st.sampled_from([1, 2, 3, 5, 8, 16, 17])),
        "queries": draws(st.sampled_from([1, 1, 1, 2, 5])),
        "tokens": draws(st.sampled_from([1, 2, 7, 15, 16, 17, 61, 64, 65, 97, 131])),
        "dim": draws(st.sampled_from([1, 2, 7, 13, 16, 31, 32, 48, 64, 67, 129])),
        "value_dim": draws(st.sampled_from([None, None, 1, 5, 16, 32, 64, 83])),
        "dtype": draws(st.sampled_from(DTYPES)),
        "is_masked": draws(st.booleans()),
        "is_biased": draws(st.booleans()),
        "seed": draws(st.integers(0, 2**31)),
    }


@examples(25)
@given(call=calls())
def test_every_kernel_equals_plain_loops(call: dict[str, object]) -> None:
    check(**call)  # type: ignore[arg-type]


def check(
    *,
    batch: int,
    kv_heads: int,
    heads: int,
    queries: int,
    tokens: int,
    dim: int,
    value_dim: int | None,
    dtype: torch.dtype,
    is_masked: bool,
    is_biased: bool,
    seed: int,
    device: str = "cpu",
) -> None:
    queries = min(queries, tokens)
    query = draw(batch, heads, queries, dim, seed=seed, dtype=dtype)
    key = draw(batch, kv_heads, tokens, dim, seed=seed + 1, dtype=dtype)
    value = key
    if value_dim is not None:
        value = draw(batch, kv_heads, tokens, value_dim, seed=seed + 2, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    valid = torch.rand(batch, tokens, generator=generator) > 0.4 if is_masked else None
    scale = dim**-0.5
    bias = None
    if is_biased:
        bias = draw(batch, heads, queries, tokens, seed=seed + 3, dtype=torch.float32)
    expected = attend_stored(query, key, value, scale=scale, valid=valid, bias=bias)
    query, key = query.to(device), key.to(device)
    value = key if value_dim is None else value.to(device)
    valid = None if valid is None else valid.to(device)
    bias = None if bias is None else bias.to(device)
    for kernel in kernels_for(dtype, device):
        result = decode_attention(
            query, key, value, scale=scale, valid=valid, kernel=kernel, bias=bias
        ).cpu()
        assert result.dtype == dtype
        assert result.shape == expected.shape
        assert distance(result, expected) < GATES[dtype], kernel


@pairwise(
    "kernel, dtype, shape",
    itertools.product(KERNELS, [torch.float32, torch.bfloat16], [(3, 3), (4, 1)]),
    ids=str,
)
def test_thousands_of_keys_in_many_blocks(
    kernel: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    heads, kv_heads = shape
    query = draw(1, heads, 1, 32, seed=1, dtype=dtype, spread=2.0)
    key = draw(1, kv_heads, 3001, 32, seed=2, dtype=dtype)
    expected = attend_stored(query, key, key, scale=0.3)
    result = decode_attention(query, key, key, scale=0.3, kernel=kernel)
    assert distance(result, expected) < GATES[dtype]


@pairwise(
    "kernel, dtype, heads",
    itertools.product(KERNELS, [torch.float32, torch.bfloat16], [2, 10]),
    ids=str,
)
def test_a_slice_of_a_longer_buffer_is_read_where_it_lies(
    kernel: str, dtype: torch.dtype, heads: int
) -> None:
    """Strides between rows, heads and tokens; what lies around is not touched."""
    buffer = torch.full((3, 150, 2, 40), torch.nan, dtype=dtype)
    key, query = (
        draw(3, 2, 131, 32, seed=3, dtype=dtype),
        draw(3, heads, 1, 32, seed=4, dtype=dtype),
    )
    place = buffer.transpose(1, 2)[:, :, 8:139, 5:37]
    place.copy_(key)
    expected = attend_stored(query, key, key, scale=0.2)
    result = decode_attention(query, place, place, scale=0.2, kernel=kernel)
    assert distance(result, expected) < GATES[dtype]


@pairwise(
    "kernel, dtype, heads",
    itertools.product(KERNELS, [torch.float32, torch.float16, torch.bfloat16], [1, 6]),
    ids=str,
)
def test_extreme_scores_are_numbers(kernel: str, dtype: torch.dtype, heads: int) -> None:
    """One key takes all weight, or all keys the same; halves overflow, and nothing is NaN."""
    query = torch.full((1, heads, 1, 32), 900.0, dtype=dtype)
    key = torch.full((1, 1, 70, 32), -800.0, dtype=dtype)
    key[:, :, 13] = 800.0
    result = decode_attention(query, key, key, scale=1.0, kernel=kernel)
    torch.testing.assert_close(result, torch.full_like(result, 800.0))
    same = decode_attention(query, key[:, :, 14:], key[:, :, 14:], scale=1.0, kernel=kernel)
    torch.testing.assert_close(same, torch.full_like(same, -800.0))


@pairwise("kernel, dtype, heads", itertools.product(KERNELS, DTYPES, [2, 6]), ids=str)
def test_a_row_that_sees_nothing_gets_zeros(kernel: str, dtype: torch.dtype, heads: int) -> None:
    query, key = draw(2, heads, 1, 16, seed=7, dtype=dtype), draw(2, 2, 83, 16, seed=8, dtype=dtype)
    valid = torch.ones(2, 83, dtype=torch.bool)
    valid[1] = False
    result = decode_attention(query, key, key, scale=0.25, valid=valid, kernel=kernel)
    assert torch.equal(result[1], torch.zeros_like(result[1]))
    assert (
        distance(result, attend_stored(query, key, key, scale=0.25, valid=valid)) < (GATES[dtype])
    )


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize("heads", [2, 14])
def test_two_threads_give_what_one_gives(kernel: str, heads: int) -> None:
    query, key = draw(2, heads, 1, 32, seed=15), draw(2, 2, 2500, 32, seed=16)
    one = decode_attention(query, key, key, scale=0.2, kernel=kernel)
    torch.set_num_threads(2)
    try:
        two = decode_attention(query, key, key, scale=0.2, kernel=kernel)
    finally:
        torch.set_num_threads(1)
    assert distance(two, one) < 1e-5
    if kernel == "native":
        assert torch.equal(one, two)


@pairwise(
    "kernel, heads, tokens, dims",
    itertools.product(
        [name for name in KERNELS if name == "native"],
        [2, 3, 5, 9, 16, 17, 33],
        [1, 63, 64, 65, 130, 1025],
        [(32, 32), (64, 96), (160, 64)],
    ),
    ids=str,
)
def test_many_rows_of_halves_are_near(
    kernel: str, heads: int, tokens: int, dims: tuple[int, int]
) -> None:
    """Nearer than the gate: matrix units round the weights, and nothing else."""
    dim, value_dim = dims
    query = draw(1, heads, 1, dim, seed=21, dtype=torch.bfloat16)
    key = draw(1, 1, tokens, dim, seed=22, dtype=torch.bfloat16)
    value = draw(1, 1, tokens, value_dim, seed=23, dtype=torch.bfloat16)
    valid = torch.rand(1, tokens, generator=torch.Generator().manual_seed(24)) > 0.2
    numbers = (part.double() for part in (query, key, value))
    expected = decode_attention(*numbers, scale=dim**-0.5, valid=valid, kernel="matmul")
    result = decode_attention(query, key, value, scale=dim**-0.5, valid=valid, kernel=kernel)
    assert distance(result, expected) < 0.02


CODES = torch.ones(1, 2, 5, 8).to(torch.int8)
REFUSED: list[dict[str, object]] = [
    {"key": torch.ones(1, 2, 5, 7)},
    {"key": torch.ones(1, 3, 5, 8)},
    {"key": torch.ones(2, 2, 5, 8)},
    {"key": CODES},
    {"value": torch.ones(1, 2, 6, 8)},
    {"value": torch.ones(1, 2, 5, 8).half()},
    {"query": CODES[:, :, :1].repeat(1, 2, 1, 1)},
    {"query": torch.ones(1, 4, 6, 8)},
    {"query": torch.ones(1, 4, 1, 8, requires_grad=True)},
    {"bias": torch.ones(1, 4, 1, 4)},
]


@pytest.mark.parametrize("changed", REFUSED)
def test_what_does_not_fit_is_refused(changed: dict[str, object]) -> None:
    fitting: dict[str, object] = {
        "query": torch.ones(1, 4, 1, 8),
        "key": torch.ones(1, 2, 5, 8),
        "value": torch.ones(1, 2, 5, 8),
        "scale": 1.0,
    }
    given_key = changed.get("key")
    if given_key is not None:
        fitting["value"] = given_key
    with pytest.raises(ValueError, match=r"expected tensors (of one|without)"):
        decode_attention(**{**fitting, **changed})  # type: ignore[arg-type]
