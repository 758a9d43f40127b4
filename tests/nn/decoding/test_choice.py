"""The kernel of a call follows a rule or is pinned."""

import pytest
import torch

from qkvary.nn.decoding import decode
from qkvary.nn.decoding.problem import Decoding
from tests.nn.decoding.cases import HERE, KERNELS, draw


def make(dtype: torch.dtype = torch.float32) -> Decoding:
    key = draw(1, 2, 40, 16, seed=1, dtype=dtype)
    query = draw(1, 4, 1, 16, seed=2, dtype=dtype)
    return Decoding(query=query, key=key, value=key, scale=0.25)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_pinned_by_the_environment_or_the_argument(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert decode.choose(make(), name) == name
    monkeypatch.setenv("QKVARY_DECODE_KERNEL", name)
    assert decode.choose(make()) == name
    assert decode.choose(make(), "matmul") == "matmul"


def test_the_kernel_made_for_the_device_is_the_default() -> None:
    assert decode.choose(make()) == ("native" if "native" in HERE else "folded")
    assert decode.choose(make(torch.float64)) == "folded"
    assert decode.choose(make(torch.float64), "native") == "folded"


def test_an_unknown_kernel_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="got 'fast'; choices: auto, layer, folded, matmul, "):
        decode.choose(make(), "fast")
