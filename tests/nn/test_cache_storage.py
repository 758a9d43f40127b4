"""Codes and scales: bounds on what is lost, and independence of what comes later."""

import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkvary.nn.cache_storage import (
    GrowingStore,
    PreallocatedStore,
    QuantizedStore,
    dequantize,
    quantize,
)

BITS: tuple[Literal[8, 4], ...] = (8, 4)
ADVERSARIAL = {
    "outlier": lambda x: torch.where(torch.arange(x.shape[-1]) == 2, 1e4 * x, x),
    "zeros": torch.zeros_like,
    "denormal": lambda x: x * 1e-41,
    "constant": lambda x: torch.full_like(x, 0.37),
    "spike": lambda x: torch.where(torch.arange(x.shape[-1]) == 4, 1e30, torch.zeros_like(x)),
    "negative": lambda x: -x.abs() - 1.0,
}


def entries(seed: int, *, tokens: int = 5, width: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, tokens, width, generator=generator)


@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("bits", BITS)
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), group=st.integers(1, 9), width=st.integers(5, 11))
def test_no_number_is_further_off_than_half_a_step(
    kind: str, bits: Literal[8, 4], seed: int, group: int, width: int
) -> None:
    x = ADVERSARIAL[kind](entries(seed, width=width))
    codes, scales = quantize(x, bits, group)
    found = dequantize(codes, scales, bits, group, width)
    for start in range(0, width, group):
        part = x[..., start : start + group]
        step = part.abs().amax(dim=-1, keepdim=True).double() / (2 ** (bits - 1) - 1)
        error = (part.double() - found[..., start : start + group].double()).abs()
        # Denormal steps are themselves rounded to the spacing of denormal numbers.
        assert bool((error <= step / 2 * (1 + 2**-20) + 2**-149 * 2**bits).all())


def test_a_code_is_an_integer_between_the_limits() -> None:
    x = torch.tensor([[[[-1.0, 0.6, 1.0, 0.0]]]])
    codes, scales = quantize(x, 8, 4)
    assert codes.view(torch.int8).flatten().tolist() == [-127, 76, 127, 0]
    assert scales.item() == pytest.approx(1 / 127)
    codes, scales = quantize(x, 4, 4)
    assert codes.flatten().tolist() == [(-7 + 8) | ((4 + 8) << 4), (7 + 8) | ((0 + 8) << 4)]
    assert scales.item() == pytest.approx(1 / 7)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("residual", [0, 1, 3])
def test_codes_do_not_depend_on_how_tokens_arrive(bits: Literal[8, 4], residual: int) -> None:
    x = entries(3, tokens=9)
    whole = QuantizedStore(bits, group=4, residual=residual)
    whole.append(x, None)
    single = QuantizedStore(bits, group=4, residual=residual)
    for token in range(9):
        read = single.append(x[:, :, token : token + 1], None)
        assert read.shape[2] == token + 1
    for one, other in zip(
        (whole._codes, whole._scales, whole._newest),
        (single._codes, single._scales, single._newest),
        strict=True,
    ):
        if one._stored is not None or other._stored is not None:
            assert one._stored is not None
            assert other._stored is not None
            assert torch.equal(one._stored, other._stored)
    assert (whole.kept, whole._newest.kept) == (9, residual)


@pytest.mark.parametrize("make", [GrowingStore, lambda: PreallocatedStore(20)])
@settings(max_examples=30)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "drop", "reorder"]), st.integers(1, 3)), max_size=9
    )
)
def test_a_store_is_a_list_of_tokens(
    make: type[GrowingStore], steps: list[tuple[str, int]]
) -> None:
    store, plain = make(), torch.empty(2, 3, 0, 7)
    for number, (kind, count) in enumerate(steps):
        if kind == "append" and plain.shape[2] + count <= 20:
            new = entries(number, tokens=count)
            plain = torch.cat((plain, new), dim=2)
            assert torch.equal(store.append(new, None), plain)
        elif kind == "drop" and plain.shape[2] >= count:
            store.drop_last(count)
            plain = plain[:, :, : plain.shape[2] - count]
        elif kind == "reorder" and plain.shape[2]:
            rows = torch.tensor([count % 2, 0])
            store.reorder(rows)
            plain = plain[rows]
        assert store.kept == plain.shape[2]


def test_int8_loses_what_theory_says() -> None:
    """A uniform error of at most half a step has a deviation of step / sqrt(12)."""
    x = torch.rand(1, 1, 2000, 64, generator=torch.Generator().manual_seed(5)) * 2 - 1
    codes, scales = quantize(x, 8, 64)
    error = x - dequantize(codes, scales, 8, 64, 64)
    expected = float(scales.mean()) / math.sqrt(12)
    assert float(error.std()) == pytest.approx(expected, rel=0.02)
