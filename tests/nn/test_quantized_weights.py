"""8-bit weights: how far numbers and losses move, what is kept, and what is refused."""

import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.quantized_weights import GROUP, find_numbers, quantize_weights
from tests.contracts.variant_cases import randomize
from tests.small_networks import small_config


def make(*, tied: bool) -> LanguageModel:
    """A network whose rows end within a group of weights that share a scale."""
    config = small_config(
        "Q-K[d/4]=V",
        d_model=68,
        num_heads=4,
        d_ff=131,
        activation="swiglu",
        vocabulary=29,
        positions="learned",
        tied_head=tied,
    )
    model = LanguageModel(config).eval()
    randomize(model, seed=3)
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_a_weight_moves_by_half_a_step_at_most(tied: bool) -> None:
    model = make(tied=tied)
    before = {
        (id(one.module), one.name): one.stored.detach().double().clone()
        for one in find_numbers(model)
    }
    quantize_weights(model)
    kept = list(find_numbers(model))
    assert sum(one.scales is not None for one in kept) == 1 + 2 * 7
    for one in kept:
        own = before[id(one.module), one.name]
        found = getattr(one.module, one.name).detach().double()
        if one.scales is None:
            assert torch.equal(found, own)
            continue
        for first in range(0, own.shape[1], GROUP):
            group = own[:, first : first + GROUP]
            half = group.abs().amax(dim=1, keepdim=True) / 127 / 2
            off = (found[:, first : first + GROUP] - group).abs()
            # A scale and a product are rounded to 24 bits.
            assert (off <= half * (1 + 2**-15)).all()
        assert one.stored.dtype == torch.int8
        assert one.stored.shape == own.shape


@pytest.mark.parametrize("name", ["tiny", "tiny-k"])
def test_the_networks_of_the_package_say_the_same(name: str) -> None:
    """Losses and divergences on a text that both continue well, measured, with room for a third."""
    loaded = load_checkpoint(name)
    assert loaded.tokenizer is not None
    text = (
        "Once upon a time there was a little girl named Lily. She loved to play outside in the "
        "park. One day she saw a big red ball. She wanted to play with it, but it was too high."
    )
    tokens = torch.tensor([loaded.tokenizer.encode(text)])
    with torch.inference_mode():
        exact = loaded.network(tokens).double().log_softmax(dim=-1)[0]
        quantize_weights(loaded.network)
        rounded = loaded.network(tokens).double().log_softmax(dim=-1)[0]
    divergence = (exact.exp() * (exact - rounded)).sum(dim=-1)
    assert 0 < divergence.median() < 1e-3
    right = tokens[0, 1:, None]
    change = (exact[:-1].gather(1, right) - rounded[:-1].gather(1, right)).mean()
    assert abs(change) < 1e-2
