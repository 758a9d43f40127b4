"""The public names as an editor sees them: pyright checks this file, and a test runs it."""

from collections.abc import Sequence
from pathlib import Path
from typing import assert_type

import torch

import qkvary as qk
from qkvary.api.generate import Text, Texts
from qkvary.checkpoints.models import LoadedModel, save_model
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.papers.key_value.protocols import synthetic_network, synthetic_training
from qkvary.tasks.config import SequenceTaskConfig


def use_names(folder: Path) -> None:
    """Use the names that need no study, as their documentation says."""
    layer = qk.Attention(d_model=20, num_heads=5, variant="Q-K=V", causal=True)
    assert_type(layer.config.d_model, int)
    assert layer(torch.randn(2, 3, 20)).shape == (2, 3, 20)

    model = qk.LanguageModel(
        d_model=20, num_heads=5, num_layers=2, vocabulary=257, max_tokens=31, variant="Q-MQA"
    )
    cache = qk.KVCache(model.config.layers)
    model.eval()(torch.zeros(1, 3, dtype=torch.long), cache=cache)
    assert_type(cache.nbytes, int)

    save_model(folder, model, ByteTokenizer())
    loaded = assert_type(qk.load(folder), LoadedModel)
    assert_type(qk.generate(loaded, "a", tokens=2), Text)
    assert_type(qk.generate(folder, ["a", "b"], tokens=2), Texts)

    text = folder.parent / "text.txt"
    text.write_text("the cat sat on the mat. " * 11, "utf-8")
    analysis = qk.analyze(loaded, text, tokens="100", context=31)
    assert_type(analysis.value.layers[0].forecast, float)
    assert analysis.to_pandas("attention")["layer"].tolist() == [1, 2]
    assert analysis.to_dict()["checkpoint"] == "the given network"

    rows = qk.cost(model, variants="MQA").value.rows
    assert_type(rows[0].weight_bytes, int)
    assert qk.cost("lm-300m").to_dict()["model"] == "lm-300m"
    assert_type(qk.plan("lm-300m", gpu="t4").value.notes, tuple[str, ...])
    made = qk.convert(loaded, "gauge", seed=3).value
    assert_type(made.network, qk.LanguageModel)
    assert qk.variants(["Q-K=V", "MQA"]).value[1].num_kv_heads == 1
    assert_type(define_study().settings, Sequence[qk.Setting])


def define_study() -> qk.Study:
    """Define a study with lists, as the notebook of the documentation does."""
    setting = qk.Setting(
        name="reverse",
        task=SequenceTaskConfig(name="reverse", length=7, train_examples=640),
        network=synthetic_network(d_model=16, num_layers=1, num_heads=2, length=7, dropout=0.0),
        training=synthetic_training(steps=20, batch_size=16, evaluate_every=10),
    )
    return qk.Study(
        name="reverse",
        question="Does sharing hide how to reverse seven digits?",
        description="An example.",
        settings=[setting],
        variants=["QKV", "Q-K=V"],
        seeds=[0, 1],
    )
