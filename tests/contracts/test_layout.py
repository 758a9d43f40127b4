"""Masks come in the types that tokenizers give; anything else is refused in a sentence."""

import pytest
import torch

from qkvary.nn.attention import Attention
from qkvary.nn.layout import Layout
from tests.contracts.variant_cases import make_config, padding_mask, random_input


def test_a_mask_of_zeros_and_ones_is_a_mask() -> None:
    layer, x = Attention(make_config("Q-K=V", causal=True)).double(), random_input(11)
    mask = padding_mask()
    assert torch.equal(layer(x, attention_mask=mask), layer(x, attention_mask=mask.long()))


def test_a_mask_of_floats_is_refused() -> None:
    with pytest.raises(ValueError, match="expected attention_mask of booleans or of zeros and on"):
        Layout(new_tokens=3, attention_mask=torch.ones(2, 3))


@pytest.mark.parametrize("name", ["attention_mask", "positions", "document_ids"])
def test_a_vector_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"expected {name} of shape \[rows, 3\] .*, got \[3\]"):
        Layout(new_tokens=3, **{name: torch.ones(3, dtype=torch.long)})


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
@pytest.mark.parametrize("label", ["QKV", "Q-GQA-2", "Q-MQA", "(Q=K-V)+", "MQA@linear"])
def test_nothing_in_nothing_out(label: str, kernel: str) -> None:
    layer = Attention(make_config(label, causal=True, kernel=kernel)).double()
    x = random_input(13)
    assert layer(x[:0]).shape == x[:0].shape


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
@pytest.mark.parametrize(
    "label", ["QKV", "Q-K=V@rotary", "(Q=K-V)+", "Q=K-V@alibi", "Q-K=V@linear"]
)
def test_rows_without_a_visible_key_stay_finite_under_autocast(label: str, kernel: str) -> None:
    layer = Attention(make_config(label, causal=True, kernel=kernel))
    x = random_input(17).float()
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    mask[0] = False
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            assert layer(x, attention_mask=mask).isfinite().all()
