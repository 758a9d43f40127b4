"""The reduction form equals plain loops; compiled too, where the marker asks for it."""

import pytest
import torch

from qkvary.nn.decoding import folded
from qkvary.nn.decoding.decode import decode_attention
from tests.nn.decoding.cases import GATES, attend_stored, distance, draw


def check(dtype: torch.dtype, heads: int, *, is_masked: bool) -> None:
    query = draw(2, heads, 1, 16, seed=1, dtype=dtype)
    key = draw(2, 2, 75, 16, seed=2, dtype=dtype)
    valid = torch.rand(2, 75, generator=torch.Generator().manual_seed(3)) > 0.3
    real = valid if is_masked else None
    expected = attend_stored(query, key, key, scale=0.3, valid=real)
    result = decode_attention(query, key, key, scale=0.3, valid=real, kernel="compiled")
    assert distance(result, expected) < GATES[dtype]


@pytest.mark.parametrize("dtype", list(GATES))
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("is_masked", [True, False])
def test_the_form_itself(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, heads: int, is_masked: bool
) -> None:
    monkeypatch.setattr(folded, "find_compiler", lambda: "a compiler")
    monkeypatch.setattr(folded, "_reductions", lambda: folded.reduce_products)
    check(dtype, heads, is_masked=is_masked)


def test_many_rows_and_no_compiler_are_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    key = draw(1, 1, 5, 8, seed=4)
    many = draw(1, 17, 1, 8, seed=5)
    assert torch.equal(
        decode_attention(many, key, key, scale=1.0, kernel="compiled"),
        decode_attention(many, key, key, scale=1.0, kernel="folded"),
    )
    monkeypatch.setattr(folded, "find_compiler", lambda: None)
    few = many[:, :2]
    assert torch.equal(
        decode_attention(few, key, key, scale=1.0, kernel="compiled"),
        decode_attention(few, key, key, scale=1.0, kernel="folded"),
    )


# The compiler of torch imports what torch itself calls deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.compile
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_masked", [True, False])
def test_compiled(dtype: torch.dtype, is_masked: bool) -> None:
    check(dtype, 6, is_masked=is_masked)
