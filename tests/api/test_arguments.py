"""Paths are text or paths everywhere, labels are variants, and a wrong type is one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import qkvary as qk
from qkvary.arch.attention import AttentionConfig
from qkvary.arch.variants import Variant
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import save_model
from qkvary.data.model_configs import resolve_model
from qkvary.data.prepared import open_prepared
from qkvary.data.prepared_sets import prepare_source
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.studies.catalog import load_study
from qkvary.studies.running.store import Store
from tests.studies.made_up import make_setting


class Place:
    """A path of the standard library's protocol alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


MINE = "from qkvary.papers.ours.studies.quickstart import STUDY\n"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, a text, its prepared set, and a file with a study."""
    folder = tmp_path_factory.mktemp("places")
    model = qk.LanguageModel(
        d_model=16, num_heads=2, num_layers=1, vocabulary=257, max_tokens=12, variant="MQA"
    )
    save_model(folder / "model", model.eval(), ByteTokenizer(has_separator=True))
    (folder / "text.txt").write_text("the cat sat on the mat. " * 9)
    prepare_source(str(folder / "text.txt"), "bytes", out=folder / "set")
    (folder / "mine.py").write_text(MINE)
    return folder


@pytest.mark.parametrize("kind", [str, Path, Place])
def test_a_path_is_text_or_a_path(
    places: Path, tmp_path: Path, kind: Callable[[Path], Any]
) -> None:
    model, text = kind(places / "model"), kind(places / "text.txt")
    loaded = load_checkpoint(model)
    assert qk.load(model).network.config == loaded.network.config
    assert qk.generate(model, "a", tokens=2) == qk.generate(loaded, "a", tokens=2)
    whole = qk.evaluate(model, text, tokens=20, paper=False).to_dict()["text"]
    assert qk.evaluate(loaded, [text], tokens=20, paper=False).to_dict()["text"] == whole
    assert resolve_model(model) == resolve_model(str(places / "model"))
    assert qk.cost(model).to_dict() == qk.cost(str(places / "model")).to_dict()
    assert open_prepared(kind(places / "set")).name == "text"
    assert load_study(kind(places / "mine.py")).name == "quickstart"
    assert Store(kind(tmp_path / "runs")).path == tmp_path / "runs"
    (page,) = qk.cost("lm-10m").save(kind(tmp_path / "page.html"))
    assert page.is_file()
    save_model(kind(tmp_path / "copy"), loaded.network)
    export_folder(loaded, kind(tmp_path / "export"))
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "copy", "export"}


def test_a_label_is_a_variant() -> None:
    config = AttentionConfig(d_model=8, num_heads=2, variant="Q-K=V")  # type: ignore[arg-type]
    assert isinstance(config.variant, Variant)
    assert config == qk.Attention(d_model=8, num_heads=2, variant="Q-K=V").config
    made = qk.Study(
        name="s",
        question="",
        description="",
        settings=[make_setting("a")],  # type: ignore[arg-type]
        variants=(config.variant, "QKV"),  # type: ignore[arg-type]
        seeds=[0],  # type: ignore[arg-type]
    )
    assert made.variants == ("Q-K=V", "QKV")
    assert hash(made) == hash(made)


LAYER = qk.Attention(d_model=8, num_heads=2, causal=True)
MODEL = qk.LanguageModel(d_model=8, num_heads=2, num_layers=1, vocabulary=5, max_tokens=9)
X, IDS = torch.zeros(1, 3, 8), torch.zeros(1, 3, dtype=torch.long)
NO_STUDY: dict[str, Any] = {"name": "s", "question": "", "description": ""}
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: AttentionConfig(d_model=8, num_heads=2, variant=3), "expected a variant or its label"),
    (lambda: AttentionConfig(d_model="8", num_heads=2), "a whole number for d_model, got '8'"),
    (lambda: AttentionConfig(d_model=8, num_heads=2, causal=1), "True or False for causal, got 1"),
    (lambda: AttentionConfig(d_model=8, num_heads=True), "a whole number for num_heads, got True"),
    (
        lambda: LAYER(X, cache=qk.KVCache([LAYER.config])),
        r"such as cache\.layers\[0\] of a KVCache",
    ),
    (lambda: LAYER([1]), r"expected x of floats \[batch, tokens, 8\], got list"),
    (lambda: LAYER(X[..., :7]), r"expected x of shape \[batch, tokens, 8\], got \[1, 3, 7\]"),
    (lambda: MODEL([1]), r"expected integers \[batch, tokens\], got list"),
    (lambda: MODEL(IDS, cache=3), r"such as KVCache\(model\.config\.layers\), got int"),
    (lambda: qk.KVCache(LAYER.config), r"such as model\.config\.layers or \[layer\.config\], got"),
    (lambda: qk.generate(3, "a"), "expected the name or path of a checkpoint"),
    (lambda: qk.generate((MODEL,), "a"), r"a network with its tokenizer .*, got \(LanguageModel\)"),
    (lambda: qk.convert(("a", None), "gauge"), r"got \(str, NoneType\)"),
    (lambda: qk.convert("tiny", 3), "expected the name of a rewrite, got 3"),
    (lambda: qk.convert("tiny", "gauge", layer="3"), "at least 1 for layer, got '3'"),
    (lambda: qk.convert("tiny", "gauge", seed=2**63), "at most 9223372036854775807 for seed"),
    (lambda: qk.generate("tiny", 3), "expected a text for a prompt, got 3"),
    (lambda: qk.generate("tiny", "a", stop=3), "expected texts for stop, got 3"),
    (lambda: qk.generate((MODEL, None), "a"), "a checkpoint with a tokenizer, got one without"),
    (lambda: qk.evaluate("tiny", 3), "expected a file or folder of texts, got 3"),
    (lambda: qk.evaluate("tiny"), "got neither"),
    (lambda: qk.evaluate("tiny", []), "expected a text to score, got none"),
    (lambda: qk.evaluate("tiny", __file__, split="dev"), "train, validation, test, got 'dev'"),
    (lambda: qk.evaluate((MODEL, None), __file__), "checkpoint with a tokenizer, or a prepared"),
    (lambda: qk.evaluate("tiny", tasks=()), "expected tasks, got none"),
    (lambda: qk.evaluate("tiny", tasks="piqa", limit=0), "a limit of at least 1, got 0"),
    (lambda: qk.evaluate("tiny", tasks="piqa", task_data=3), "a folder of task files, got 3"),
    (lambda: qk.Attention(d_model=8), "expected d_model, num_heads, got no num_heads"),
    (lambda: qk.Attention(8), "expected an AttentionConfig, or d_model, num_heads by name"),
    (lambda: qk.LanguageModel("lm-10"), "expected a network, got 'lm-10'; did you mean"),
    (lambda: qk.LanguageModel("lm-10m", d_model=8), "expected a configuration or sizes"),
    (lambda: qk.cost(3), "expected a model as its name, its path, a configuration"),
    (lambda: qk.cost("300M", 3), "expected a variant or its label such as 'Q-K=V', got 3"),
    (lambda: qk.cost("300M", context=1.5), "expected a whole number such as"),
    (lambda: qk.plan("300M", gpu="t4", goal="fame"), "goal to be one of serving, training, got"),
    (lambda: qk.plan("300M", gpu="t4", users=True), "expected a whole number"),
    (lambda: qk.variants(model="300M", d_model=8), "expected a model or sizes of a layer"),
    (lambda: qk.variants(model="deepseek-v2-lite"), "whose layers project to queries"),
    (lambda: qk.run_study("quickstrt"), r"did you mean quickstart\?"),
    (lambda: qk.load(3), "expected the name or path of a checkpoint, got 3"),
    (lambda: qk.cost("gpt2", context=2**40 + 1), "a whole number of at most 1,099,511,627,776"),
    (lambda: qk.plan("gpt2", gpu=4), "expected one of the devices"),
    (lambda: qk.run_study(3), "expected the name of a study or the path of its file, got 3"),
    (lambda: qk.run_study("quickstart", seeds=range(10**12)), "at most 1,000 seeds"),
    (lambda: qk.Study(**NO_STUDY, settings=3, variants=(), seeds=(0,)), "a list of settings"),
    (lambda: qk.Study(**NO_STUDY, settings=(), variants="QKV", seeds=(0,)), "a list of labels"),
    (lambda: qk.Study(**NO_STUDY, settings=(), variants=(), seeds=0), "a list of whole numbers"),
    (lambda: qk.Study(**NO_STUDY, settings=[3], variants=(), seeds=[0]), "got one with 3"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_type_is_one_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
