"""Paths are text or paths everywhere, labels are variants, and a wrong type is one sentence."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

import qkvary as qk
from qkvary.arch.attention import AttentionConfig
from qkvary.arch.variants import Variant
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import save_model
from qkvary.data.labelled_texts import load_labelled_texts
from qkvary.data.model_configs import resolve_model
from qkvary.data.own_images import describe_images
from qkvary.data.prepared import open_prepared
from qkvary.data.prepared_sets import prepare_source
from qkvary.data.tokenizer_files import load_tokenizer, name_tokenizer
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.studies.catalog import load_study
from qkvary.studies.running.store import Store
from tests.studies.made_up import make_setting

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


@pytest.mark.parametrize("kind", [str, Path, PurePosixPath])
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
NOBODY = "~nobody-of-this-name/x"
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
    (
        lambda: LAYER(X[..., :7]),
        r"expected x of floats \[batch, tokens, 8\], got torch.float32 \[1, 3, 7\]",
    ),
    (lambda: MODEL([1]), r"expected integers \[batch, tokens\], got list"),
    (lambda: MODEL(IDS, cache=3), r"such as KVCache\(model\.config\.layers\), got int"),
    (lambda: qk.KVCache(LAYER.config), r"such as model\.config\.layers or \[layer\.config\], got"),
    (lambda: qk.generate(3, "a"), "expected the name or path of a checkpoint"),
    (lambda: qk.generate((MODEL,), "a"), r"a network with its tokenizer .*, got \(LanguageModel\)"),
    (lambda: qk.convert(("a", None), "gauge"), r"got \(str, NoneType\)"),
    (lambda: qk.convert("tiny", "gauge", seed=2**63), "at most 9223372036854775807 for seed"),
    (
        lambda: qk.generate("tiny", 3),
        "prompt: expected one or several, each a text, got 3",
    ),
    (
        lambda: qk.generate("tiny", "a", stop=3),
        "stop: expected one or several, each a text, got 3",
    ),
    (lambda: qk.generate((MODEL, None), "a"), "a checkpoint with a tokenizer, got one without"),
    (lambda: qk.evaluate("tiny", 3), "data: expected one or several, each a path, got 3"),
    (lambda: qk.evaluate("tiny"), "got neither"),
    (lambda: qk.evaluate("tiny", []), "got neither"),
    (lambda: qk.evaluate("tiny", __file__, split="dev"), "train, validation, test, got 'dev'"),
    (lambda: qk.evaluate((MODEL, None), __file__), "checkpoint with a tokenizer, or a prepared"),
    (lambda: qk.evaluate("tiny", tasks=()), "got neither"),
    (lambda: qk.evaluate("tiny", tasks="piqa", limit=0), "limit: expected at least 1, got 0"),
    (lambda: qk.cost("300M", batch=None), "batch: expected a whole number such as '32k', got None"),
    (lambda: qk.evaluate("tiny", __file__, paper="no"), "paper: expected True or False, got 'no'"),
    (lambda: qk.plan("300M", gpu="t4", price="1"), "price: expected a number, got '1'"),
    (lambda: qk.plan("300M", gpu="t4", goal="trainings"), r"serving, training, .*mean training\?"),
    (
        lambda: qk.claims(verdict="true"),
        "verdict: expected one or several, each one of holds, .*, got 'tr",
    ),
    (lambda: qk.claims(3), "claims: expected a text, got 3"),
    (lambda: qk.export("tiny", "x", to="gguff"), r"to: expected one of .*did you mean gguf\?"),
    (lambda: qk.status("train-" + "a" * 300), "expected a training in the store"),
    (lambda: qk.status("train x on y.py"), "expected a training in the store"),
    (lambda: qk.status("train-nope.py"), "expected a Python file NAME.py with a STUDY"),
    (lambda: qk.plan("gpt2", gpu="t4", reserve=None), "such as 10% or 0.1, got None"),
    (lambda: qk.status(seeds=3), "expected the name of a study with --seeds, --task and"),
    (
        lambda: qk.study("quickstart", slurm=3),
        "slurm: expected one or several, each a text",
    ),
    (lambda: qk.train("lm-10m", terminal=3), "terminal: expected a value of Terminal, got 3"),
    (lambda: qk.report(3), "expected the name of a study or the path of its file, got 3"),
    (lambda: qk.train("lm-10m", options=3), "options: expected a value of TrainingOptions, got 3"),
    (
        lambda: qk.train("lm-10m", options=qk.TrainingOptions(minutes="1")),
        "minutes: expected a number, got '1'",
    ),
    (lambda: qk.train("lm-1m", data=NOBODY), f"expected a path, got {NOBODY}"),
    (lambda: load_tokenizer(NOBODY), f"expected a tokenizer, got {NOBODY}: "),
    (lambda: name_tokenizer(NOBODY), f"expected a tokenizer, got {NOBODY}: "),
    (
        lambda: qk.generate((MODEL, None), "a", tokenizer=NOBODY),
        f"expected a tokenizer, got {NOBODY}: ",
    ),
    (lambda: describe_images(NOBODY), f"expected a folder of images, got {NOBODY}: "),
    (lambda: load_labelled_texts(NOBODY), f"expected a folder of texts, got {NOBODY}: "),
    (lambda: qk.evaluate("tiny", tasks="piqa", task_data=3), "task_data: expected a path, got 3"),
    (lambda: qk.Attention(d_model=8), "expected d_model, num_heads, got no num_heads"),
    (lambda: qk.Attention(8), "expected AttentionConfig or the keywords d_model, num_heads"),
    (lambda: qk.LanguageModel("lm-10"), "expected the name of a network, got 'lm-10'; did"),
    (lambda: qk.LanguageModel("lm-10m", d_model=8), "expected a configuration or sizes"),
    (lambda: qk.cost(3), "expected a model as its name, its path, a configuration"),
    (lambda: qk.cost("300M", 3), "expected a variant or its label such as 'Q-K=V', got 3"),
    (lambda: qk.cost("300M", context=1.5), "expected a whole number such as"),
    (lambda: qk.plan("300M", gpu="t4", users=True), "expected a whole number"),
    (lambda: qk.variants(model="300M", d_model=8), "expected either a model or the sizes"),
    (lambda: qk.variants(model="deepseek-v2-lite"), "whose layers project to queries"),
    (lambda: qk.study("quickstrt"), r"did you mean quickstart\?"),
    (lambda: qk.cost("gpt2", context=2**40 + 1), "a whole number of at most 1,099,511,627,776"),
    (lambda: qk.study(3), "expected the name of a study or the path of its file, got 3"),
    (lambda: qk.Study(**NO_STUDY, settings=3, variants=(), seeds=(0,)), "a list of settings"),
    (lambda: qk.Study(**NO_STUDY, settings=(), variants="QKV", seeds=(0,)), "a list of labels"),
    (lambda: qk.Study(**NO_STUDY, settings=(), variants=(), seeds=0), "a list of whole numbers"),
    (lambda: qk.Study(**NO_STUDY, settings=[3], variants=(), seeds=[0]), "got a list with 3"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_type_is_one_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_is_clear_is_accepted(tmp_path: Path) -> None:
    """Numbers of libraries, a path where a text is expected, and one value where several are."""
    asked = {"out": tmp_path, "variants": "Q-K=V"}
    found = qk.status("quickstart", seeds=[np.int64(3)], **asked).to_dict()
    assert found == qk.status("quickstart", seeds=3, **asked).to_dict()
    assert found == qk.status("quickstart", seeds=torch.tensor([3]), **asked).to_dict()
    assert found == qk.status(study="quickstart", seeds=(one for one in [3]), **asked).to_dict()
    labels = np.array(["MQA", "Q-K=V"])
    assert qk.cost("300M", labels).to_dict() == qk.cost("300M", list(labels)).to_dict()
    one, same = (qk.cost("300M", context=kind(64), batch=kind(2)) for kind in (int, np.int32))
    assert one.to_dict() == same.to_dict()
    in_list, in_array = (
        qk.evaluate("tiny", __file__, tokens=99, paper=False, joined=joined, lengths=lengths)
        for joined, lengths in ((True, [8, 16]), (np.bool_(1), np.array([8, 16])))
    )
    assert in_array.to_dict() == in_list.to_dict()
    assert qk.generate("tiny", "a", tokens=2.0, seed=torch.tensor(3))
    assert qk.status("quickstart", seeds=["3"], device=torch.device("cpu"), dtype=torch.float32)
    words = {"document": "poster", "verdict": "holds", "search": "cache"}
    assert qk.claims(**words).value == qk.claims(**{key: [one] for key, one in words.items()}).value
    with pytest.raises(ValueError, match=r"which has its own, got nowhere\.json"):
        qk.load("tiny", tokenizer=Path("nowhere.json"))
