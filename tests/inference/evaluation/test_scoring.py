"""Losses by token: equal to plain calls, and the same however the work is divided."""

import math

import numpy as np
import pytest
import torch

from qkvary.inference.evaluation.scoring import score_windows
from qkvary.inference.evaluation.windows import cut
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import (
    LABELS,
    make_language_model_config,
    randomize,
    variant_values,
)

GATES = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 5e-3}
SPANS = np.array([[0, 31], [31, 33], [33, 34], [34, 71]])
CONTEXT = 11


def toy(label: str = "Q-K=V", dtype: torch.dtype = torch.float64) -> LanguageModel:
    model = LanguageModel(make_language_model_config(label)).double().eval()
    randomize(model, seed=29)
    return model.to(dtype)


def tokens() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 13, 71)


def score(model: LanguageModel, stride: int = CONTEXT, batch_size: int = 4) -> np.ndarray:
    windows = cut(SPANS, context=CONTEXT, stride=stride)
    return score_windows(model, tokens(), windows, batch_size=batch_size)


@pytest.mark.parametrize("stride", [1, 4, 11])
def test_losses_are_those_of_plain_calls(stride: int) -> None:
    model, text = toy(), tokens()
    windows = cut(SPANS, context=CONTEXT, stride=stride)
    found = score(model, stride)
    expected = np.full(len(text), np.nan)
    for start, length, known in zip(windows.starts, windows.lengths, windows.known, strict=True):
        row = torch.from_numpy(text[start : start + length])
        logits = model(row[None])[0].log_softmax(dim=-1)
        for offset in range(known, length):
            place = start + offset + 1
            expected[place] = -logits[offset, text[place]].item()
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isnan(found[SPANS[:, 0]]).all()
    assert np.isnan(found).sum() == len(SPANS)


@pytest.mark.parametrize("dtype", GATES, ids=str)
@pytest.mark.parametrize("label", ["Q-K=V@w3", "QKV@rotary@w3", "I-K-V@alibi@w3"])
def test_the_stride_changes_rounding_only_within_the_visible_window(
    label: str, dtype: torch.dtype
) -> None:
    """Two layers with windows of 3 see 5 tokens: from strides up to 7 every target has them."""
    model = toy(label, dtype)
    expected = math.exp(np.nanmean(score(model, stride=1)))
    for stride in (2, 5, 7):
        found = math.exp(np.nanmean(score(model, stride)))
        assert found == pytest.approx(expected, rel=GATES[dtype]), stride
    if dtype == torch.float64:
        assert math.exp(np.nanmean(score(model))) != pytest.approx(expected, rel=1e-6)


@variant_values("label", LABELS)
def test_padding_is_not_visible(label: str) -> None:
    model = toy(label)
    np.testing.assert_allclose(
        score(model, 4, batch_size=100), score(model, 4, batch_size=1), rtol=1e-10
    )


def test_tokens_that_cannot_be_scored_are_rejected() -> None:
    def fail(tokens: np.ndarray, model: LanguageModel) -> None:
        windows = cut(np.array([[0, len(tokens)]]), context=len(tokens), stride=len(tokens))
        score_windows(model, tokens, windows, batch_size=1)

    with pytest.raises(ValueError, match="expected a model in evaluation mode"):
        fail(tokens()[:9], toy().train())
    with pytest.raises(ValueError, match="expected windows of at most 17 tokens, got 18"):
        fail(tokens()[:19], toy())
    with pytest.raises(ValueError, match=r"expected tokens below 13, .* got 13: the text was enc"):
        fail(np.array([1, 13]), toy())
