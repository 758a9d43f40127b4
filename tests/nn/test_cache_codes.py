"""Codes, scales and the rotation: bounds on what is lost, bits side by side, orthogonal rows."""

import math
from collections.abc import Sequence

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

BITS = (8, 4, 3, 2)
SLACK = 1 + 2.0**-20
"""The scale is a 32-bit number."""
SPACING = 2.0**-149
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


@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("bits", BITS)
@examples(4)
@given(
    seed=st.integers(0, 10_000),
    group=st.integers(1, 9),
    width=st.integers(5, 11),
    block=st.integers(1, 3),
    wide=st.booleans(),
)
def test_no_number_is_further_off_than_half_a_step(
    kind: str, bits: int, seed: int, group: int, width: int, block: int, wide: bool
) -> None:
    """The step is that of the numbers that share a scale: some of a token, or of a channel."""
    x = ADVERSARIAL[kind](entries(seed, tokens=2 * block, width=width))
    x = x.double() if wide else x
    codes, scales = quantize_tokens(x, bits, group)
    check_half_steps(x.split(group, -1), unpack(codes, bits, width).split(group, -1), scales, bits)
    codes, scales = quantize_blocks(x.float(), bits, block)
    signed = unpack(codes, bits, width).mT.split(block, -1)
    check_half_steps(x.float().mT.split(block, -1), signed, scales.mT, bits)


def check_half_steps(
    numbers: Sequence[Tensor], codes: Sequence[Tensor], scales: Tensor, bits: int
) -> None:
    """In double precision, in which a code times a 32-bit scale is exact."""
    for group, code, scale in zip(numbers, codes, scales.double().unbind(-1), strict=True):
        largest = group.double().abs().amax(dim=-1, keepdim=True)
        allowed = largest / (2 ** (bits - 1) - 1) / 2 * SLACK + SPACING
        assert ((group - code.double() * scale[..., None]).abs() <= allowed).all()


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
