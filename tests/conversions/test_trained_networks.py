"""A trained network: rewritten, it gives the same text."""

from pathlib import Path

import pytest
import torch

import qkvary as qk
from qkvary.arch.networks import BlockConfig
from qkvary.checkpoints.models import LoadedModel
from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.nn.language_model import LanguageModel
from tests.conversions.networks import convert, judge, labels
from tests.small_networks import small_config

TEXT = "the quick brown fox jumps over the lazy dog. "
TOKENIZER = CharacterTokenizer("".join(sorted(set(TEXT))))


def train(label: str, **fields: object) -> LanguageModel:
    """Train a network on one sentence until it knows it."""
    block = BlockConfig(d_ff=48, norm="none", skips="attention")
    sizes = {"vocabulary": TOKENIZER.vocabulary, "max_tokens": 32, "positions": "learned"}
    config = small_config(
        label, d_model=24, num_heads=2, bias=False, block=block, **(sizes | fields)
    )
    model = LanguageModel(config, seed=1)
    tokens = torch.tensor(TOKENIZER.encode(TEXT * 9))
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        starts = torch.randint(len(tokens) - 33, (8,), generator=generator)
        rows = torch.stack([tokens[start : start + 33] for start in starts.tolist()])
        loss = model(rows[:, :-1], targets=rows[:, 1:]) / rows[:, 1:].numel()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    # Of about 3.3 without training.
    assert float(loss.detach()) < 0.5
    return model.eval()


@pytest.mark.parametrize(
    ("label", "fields", "after"),
    [
        ("Q-K=V@rotary", {"positions": "none", "tied_head": False}, "I-K=V@rotary"),
        ("MQA", {"shared_blocks": True, "positions": "sinusoidal"}, "I-K-V/1"),
    ],
)
def test_the_same_text(label: str, fields: dict[str, object], after: str, tmp_path: Path) -> None:
    model = train(label, **fields)
    made = convert(model, "identity-query")
    assert labels(made.network) == [after] * 2
    assert judge(model.double(), made.network.double()) < 1e-3
    assert made.exact.relative < 1e-10
    assert made.stored.relative < 1e-3
    assert made.stored.changed == 0
    for prompt in ("the q", "jumps o"):
        first, second = (
            qk.generate(LoadedModel(one.float(), TOKENIZER), prompt, tokens=20)
            for one in (model, made.network)
        )
        assert first == second
    # Saved and read again it is the same network.
    written = LoadedModel(model.float(), TOKENIZER)
    qk.convert(written, "identity-query", out=tmp_path / "made")
    assert labels(qk.load(tmp_path / "made").network) == [after] * 2
