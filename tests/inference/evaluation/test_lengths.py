"""Length extrapolation: the limit is raised, the function stays."""

import dataclasses

import numpy as np
import pytest
import torch

from qkvary.data.tokenizers import ByteTokenizer
from qkvary.inference.evaluation.lengths import lengthen, score_lengths
from qkvary.inference.evaluation.perplexity import Protocol
from qkvary.inference.evaluation.texts import Text, make_text
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from tests.contracts.variant_cases import make_language_model_config, randomize

FREE = (
    ("QKV@rotary", "none"),
    ("Q-K=V@alibi", "none"),
    ("Q-K=V@relative", "none"),
    ("I-K=V", "sinusoidal"),
    ("QKV", "none"),
    ("(Q=K-V)+", "none"),
    ("QKV@rotary@w3", "none"),
)
PROTOCOL = Protocol(context=17, stride=17, batch_size=2)


def toy(label: str, positions: str, max_tokens: int = 17) -> LanguageModel:
    config = make_language_model_config(label, positions=positions)
    config = dataclasses.replace(config, max_tokens=max_tokens, vocabulary=256)
    model = LanguageModel(config).double().eval()
    randomize(model, seed=11)
    return model


def text() -> Text:
    generator = np.random.default_rng(0)
    documents = ("".join(map(chr, generator.integers(97, 123, size))) for size in (120, 30, 200))
    return make_text(ByteTokenizer(), list(documents))


@pytest.mark.parametrize(("label", "positions"), FREE)
def test_a_lengthened_network_equals_one_built_so(label: str, positions: str) -> None:
    model, longer = toy(label, positions), toy(label, positions, max_tokens=64)
    lifted = lengthen(model, 64)
    tokens = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(1))
    assert torch.equal(lifted(tokens), longer(tokens))
    assert torch.equal(lifted(tokens[:, :17]), model(tokens[:, :17]))
    assert {one.data_ptr() for one in lifted.parameters()} == {
        one.data_ptr() for one in model.parameters()
    }
    assert not lifted.training
    with pytest.raises(ValueError, match="expected at most 17 tokens"):
        model(tokens)


def test_learned_positions_are_limited() -> None:
    model = toy("QKV", "learned")
    assert lengthen(model, 17) is model
    with pytest.raises(UsageError, match="expected at most 17 tokens, got 18: the learned"):
        lengthen(model, 18)
    with pytest.raises(UsageError, match="expected at most 17 tokens, got 34"):
        score_lengths(model, text(), [17, 34], PROTOCOL)


def test_every_length_scores_the_same_tokens() -> None:
    rows = score_lengths(toy("QKV@rotary", "none"), text(), [5, 17, 34], PROTOCOL)
    assert [row.length for row in rows] == [5, 17, 34]
    assert [row.beyond for row in rows] == [False, False, True]
    # 119 and 199 targets hold 3 and 5 windows of 34.
    assert {row.score.tokens for row in rows} == {8 * 34}
    assert {row.score.documents for row in rows} == {2}
    assert len({row.score.loss for row in rows}) == 3


def test_buckets_are_means_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkvary.inference.evaluation.lengths.FIRST_BUCKET", 8)
    model = toy("Q-K=V@rotary", "none")
    (row,) = score_lengths(model, text(), [34], PROTOCOL)
    assert [(one.first, one.last) for one in row.buckets] == [
        (0, 7),
        (8, 15),
        (16, 23),
        (24, 31),
        (32, 33),
    ]
    total = sum(one.loss * one.tokens for one in row.buckets)
    assert total / row.score.tokens == pytest.approx(row.score.loss, rel=1e-12)
    lifted, places = lengthen(model, 34), text()
    found: list[float] = []
    for first, end in places.spans().tolist():
        for start in range(first, end - 34, 34):
            window = torch.from_numpy(places.tokens[start : start + 35])
            logits = lifted(window[None, :-1])[0].log_softmax(-1)
            found += [-logits[at, window[at + 1]].item() for at in range(8, 16)]
    assert row.buckets[1].loss == pytest.approx(sum(found) / len(found), rel=1e-12)
    assert row.buckets[1].tokens == len(found)
