"""The kernel of a call follows a rule or is pinned."""

import pytest
import torch

from qkvary.nn.decoding import choice
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
    assert choice.choose(make(), name) == name
    monkeypatch.setenv("QKVARY_DECODE_KERNEL", name)
    assert choice.choose(make()) == name
    assert choice.choose(make(), "matmul") == "matmul"


def test_the_kernel_made_for_the_device_is_the_default() -> None:
    assert choice.choose(make()) == ("native" if "native" in HERE else "folded")
    assert choice.choose(make(torch.float64)) == "folded"
    assert choice.choose(make(torch.float64), "native") == "folded"


@pytest.mark.parametrize("name", ["fastest", "compiled"])
def test_kernels_of_earlier_versions_are_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ValueError, match=f"got '{name}'; choices: auto, layer, folded, matmul, "):
        choice.choose(make(), name)
