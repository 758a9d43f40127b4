"""What a token must not see does not change it by one bit: future, padding, other documents."""

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import Kernel
from qkvary.nn.attention import Attention
from qkvary.nn.encoder import Encoder
from tests.contracts.variant_cases import (
    DECISIVE,
    EVERY_LABEL,
    GATE,
    LABELS,
    STRIDE,
    TOKENS,
    WINDOW,
    distance,
    make_config,
    make_encoder_config,
    random_input,
    randomize,
    variant_pairs,
)

KERNELS = ("explicit", "sdpa")


def changed(x: Tensor, index: int) -> Tensor:
    """The same input with other content at one token."""
    result = x.clone()
    result[:, index] = random_input(79)[: len(x), index].to(x.dtype)
    return result


@variant_pairs("label, kernel", LABELS, KERNELS)
def test_the_future_does_not_change_the_past(label: str, kernel: Kernel) -> None:
    layer = Attention(make_config(label, causal=True, kernel=kernel))
    randomize(layer, seed=83)
    x = random_input(89).float()
    with torch.no_grad():
        before = layer(x)
        for index in (1, 4, TOKENS - 1):
            after = layer(changed(x, index))
            assert torch.equal(after[:, :index], before[:, :index])
            assert not torch.equal(after[:, index], before[:, index])


WINDOWED = [label for label in LABELS if "@w3" in label and "@s2" not in label]
STRIDED = [label for label in LABELS if "@s2" in label]


@pytest.mark.parametrize("label", WINDOWED)
def test_a_window_ends(label: str) -> None:
    for causal in (True, False):
        layer = Attention(make_config(label, causal=causal))
        randomize(layer, seed=83)
        x = random_input(89).float()
        with torch.no_grad():
            before, after = layer(x), layer(changed(x, 3))
        far = [i for i in range(TOKENS) if i - 3 >= WINDOW or 3 - i >= WINDOW]
        near = list(range(3, 3 + WINDOW))
        assert torch.equal(after[:, far], before[:, far])
        assert all(not torch.equal(after[:, i], before[:, i]) for i in near)


@pytest.mark.parametrize("label", STRIDED)
def test_a_stride_has_gaps(label: str) -> None:
    window = WINDOW if "@w3" in label else 1
    for causal in (True, False):
        layer = Attention(make_config(label, causal=causal))
        randomize(layer, seed=83)
        x = random_input(89).float()
        with torch.no_grad():
            before, after = layer(x), layer(changed(x, 1))
        for i in range(1 if causal else 0, TOKENS):
            hidden = (i - 1) % STRIDE != 0 and abs(i - 1) >= window
            # What a normalised diagonal divides by goes by the same distances.
            assert torch.equal(after[:, i], before[:, i]) == hidden


@variant_pairs("label", EVERY_LABEL)
def test_left_padding_changes_nothing(label: str) -> None:
    for causal in (True, False):
        layer = Attention(make_config(label, causal=causal)).double()
        randomize(layer, seed=83)
        x = random_input(89)
        mask = torch.ones(len(x), TOKENS, dtype=torch.bool)
        mask[:, :2] = False
        with torch.no_grad():
            found = layer(x, attention_mask=mask)[:, 2:]
            assert distance(found, layer(x[:, 2:])) < GATE


@variant_pairs("label, causal", EVERY_LABEL, (True, False))
def test_packed_documents_are_computed_as_if_alone(label: str, causal: bool) -> None:
    layer = Attention(make_config(label, causal=causal)).double()
    randomize(layer, seed=83)
    x = random_input(89)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1]).expand(len(x), -1)
    with torch.no_grad():
        found = layer(x, document_ids=ids)
        alone = torch.cat([layer(x[:, :3]), layer(x[:, 3:])], dim=1)
    assert distance(found, alone) < GATE


@pytest.mark.parametrize("label", DECISIVE)
def test_a_batch_is_computed_row_by_row(label: str) -> None:
    encoder = Encoder(make_encoder_config(label)).double()
    randomize(encoder, seed=83)
    tokens = torch.arange(3 * TOKENS).view(3, TOKENS) % 13
    with torch.no_grad():
        rows = [encoder(tokens[index : index + 1]) for index in range(3)]
        assert distance(torch.cat(rows), encoder(tokens)) < GATE


def test_too_long_a_sequence_is_refused() -> None:
    encoder = Encoder(make_encoder_config("QKV"))
    with pytest.raises(ValueError, match="expected at most 17 tokens, got 0 cached and 18 new"):
        encoder(torch.zeros(2, 18, dtype=torch.long))
