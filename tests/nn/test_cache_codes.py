"""Codes, scales and the rotation: bounds on what is lost, bits side by side, orthogonal rows."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkvary.nn.cache_codes import (
    check_finite,
    dequantize_blocks,
    dequantize_tokens,
    quantize_blocks,
    quantize_tokens,
    rotate,
    rotate_back,
    rotation,
    unpack,
)
from tests.conftest import examples
from tests.reference.quantized import half_step

BITS = (8, 4, 3, 2)
SLACK = 1 + Fraction(1, 2**20)
"""The scale is a number of 32 bits."""
SPACING = Fraction(1, 2**149)
"""Of the smallest scales there are."""
ADVERSARIAL = {
    "normal": lambda x: x,
    "outlier": lambda x: torch.where(torch.arange(x.shape[-1]) == 2, 1e4 * x, x),
    "zeros": torch.zeros_like,
    "denormal": lambda x: x * 1e-41,
    "least": lambda x: x.sign() * 2.0**-149,
    "constant": lambda x: torch.full_like(x, 0.37),
    "spike": lambda x: torch.where(torch.arange(x.shape[-1]) == 4, 1e30, torch.zeros_like(x)),
    "large": lambda x: x * 2.0**115,
    "negative": lambda x: -x.abs() - 1.0,
    # Quotients half way between two codes, where rounding in 32 bits goes wrong.
    "halves": lambda x: torch.cat(
        (torch.ones_like(x[..., :1]), (x[..., 1:] * 40).round().add(0.5) / 127), dim=-1
    ),
}


def entries(seed: int, *, tokens: int = 6, width: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, tokens, width, generator=generator)


def as_fractions(codes: Tensor, scales: Tensor) -> list[Fraction]:
    """What codes stand for, as real numbers."""
    return [
        Fraction(int(code)) * Fraction(scale)
        for code, scale in zip(codes.flatten().tolist(), scales.flatten().tolist(), strict=True)
    ]


def assert_within_half_a_step(numbers: Tensor, found: list[Fraction], bits: int) -> None:
    allowed = half_step(numbers.flatten().tolist(), bits) * SLACK + SPACING
    for number, stands_for in zip(numbers.flatten().tolist(), found, strict=True):
        assert abs(Fraction(number) - stands_for) <= allowed


@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("bits", BITS)
@examples(4)
@given(
    seed=st.integers(0, 10_000),
    group=st.integers(1, 9),
    width=st.integers(5, 11),
    wide=st.booleans(),
)
def test_no_number_is_further_off_than_half_a_step_of_its_token(
    kind: str, bits: int, seed: int, group: int, width: int, wide: bool
) -> None:
    x = ADVERSARIAL[kind](entries(seed, tokens=2, width=width))
    x = x.double() if wide else x
    codes, scales = quantize_tokens(x, bits, group)
    signed = unpack(codes, bits, width)
    for head in range(2):
        for token in range(2):
            for number, start in enumerate(range(0, width, group)):
                where = (0, head, token, slice(start, start + group))
                scale = scales[0, head, token, number].expand(len(x[where]))
                assert_within_half_a_step(x[where], as_fractions(signed[where], scale), bits)


@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("bits", BITS)
@examples(4)
@given(seed=st.integers(0, 10_000), block=st.integers(1, 3), width=st.integers(5, 7))
def test_no_number_is_further_off_than_half_a_step_of_its_channel(
    kind: str, bits: int, seed: int, block: int, width: int
) -> None:
    x = ADVERSARIAL[kind](entries(seed, tokens=2 * block, width=width))
    codes, scales = quantize_blocks(x, bits, block)
    signed = unpack(codes, bits, width)
    for number in range(2):
        tokens = slice(number * block, (number + 1) * block)
        for channel in range(width):
            where = (0, 1, tokens, channel)
            scale = scales[0, 1, number, channel].expand(block)
            assert_within_half_a_step(x[where], as_fractions(signed[where], scale), bits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", BITS)
def test_what_is_read_is_code_times_scale(bits: int, dtype: torch.dtype) -> None:
    x = entries(3, tokens=6, width=10).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    for group in (1, 3, 5, 10, 64):
        codes, scales = quantize_tokens(x, bits, group)
        read = dequantize_tokens(codes, scales, bits, group, torch.empty(1, 2, 6, 10, dtype=wide))
        spread = scales.repeat_interleave(group, dim=-1)[..., :10].double()
        expected = unpack(codes, bits, 10).double() * spread
        torch.testing.assert_close(read.double(), expected, rtol=2.0**-24, atol=0)
    codes, scales = quantize_blocks(x, bits, 3)
    expected = unpack(codes, bits, 10).double() * scales.repeat_interleave(3, dim=2).double()
    for runs, rows in (([3, 3], slice(0, 6)), ([2, 3], slice(1, 6)), ([3, 1], slice(0, 4))):
        wanted = expected[:, :, rows]
        out = torch.empty_like(wanted, dtype=wide)
        read = dequantize_blocks(codes[:, :, rows], scales, bits, runs, out)
        torch.testing.assert_close(read.double(), wanted, rtol=2.0**-24, atol=0)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 12, 48, 64, 80])
def test_a_rotation_keeps_lengths_and_spreads_a_single_channel(width: int) -> None:
    matrix = rotation(width, torch.float64, torch.device("cpu"))
    assert torch.allclose(matrix @ matrix.mT, torch.eye(width, dtype=torch.float64), atol=1e-14)
    power = width & (width - 1) == 0
    # Of Hadamard all entries are alike; Hartley's are at most sqrt(2) times as large.
    most = float(matrix.abs().max()) * math.sqrt(width)
    assert most == pytest.approx(1.0) if power else most <= math.sqrt(2)
    # Equal channels are spread too, not gathered in one.
    gathered = float((torch.ones(width, dtype=torch.float64) @ matrix).abs().max())
    assert gathered <= 2.3


@examples(20)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 70))
def test_what_was_rotated_comes_back(seed: int, width: int) -> None:
    x = entries(seed, width=width)
    assert torch.allclose(rotate_back(rotate(x)), x.double(), atol=1e-13)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 2.0**120, -1e300])
def test_what_has_no_scale_is_refused(number: float) -> None:
    x = entries(1).double()
    check_finite([x, x * 1e30])
    x[0, 1, 2, 3] = number
    with pytest.raises(ValueError, match="expected finite entries in a quantised cache, got NaN"):
        check_finite([entries(2), x])
