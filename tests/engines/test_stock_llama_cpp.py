"""Stock llama.cpp runs what is exported: equal logits, tokens, texts, and a cache without V.

``QKVARY_LLAMA_CPP`` names an environment that has it; else it is built (minutes): ``-m engine``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.models import LoadedModel
from qkvary.inference.decoding import generate
from qkvary.nn.language_model import LanguageModel
from tests.checkpoints.gguf.test_vocabularies import LETTERS, TOKENIZERS
from tests.contracts import test_families_load as families
from tests.contracts.parsed import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

RUN = ROOT / "benchmarks" / "engines" / "run.py"
TEXTS = (
    "",
    "Once upon a time, there was a café.",
    " two  spaces \n\n x\n",
    "don't THEY'LL 1234567 3.14",
    "naïve 日本語 😀 e\u0301",
    "a\tb\r\nc <|x|> z...!?  \n \n  end",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("QKVARY_LLAMA_CPP")
    return Path(given) if given else tmp_path_factory.mktemp("llama.cpp") / "env"


@pytest.fixture(scope="module")
def lines(environment: Path) -> list[dict[str, object]]:
    call = [sys.executable, str(RUN), "--env", str(environment), "--quick", "--rounds", "1"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_logits_and_greedy_tokens_are_equal(lines: list[dict[str, object]]) -> None:
    found = [line for line in lines if line["case"] == "logits and greedy tokens"]
    assert [line["variant"] for line in found] == ["QKV", "Q-K=V", "Q-MQA", "MLA"]
    assert all(line["sound"] is True for line in found)


def test_the_cache_of_a_portable_network_holds_no_value(lines: list[dict[str, object]]) -> None:
    said = {line["variant"]: str(line.get("llama_cpp_says")) for line in lines if "context" in line}
    assert all("V (f32):    0.00 MiB" in said[name] for name in ("Q-K=V", "Q-MQA", "MLA"))
    assert "V (f32):    0.00 MiB" not in said["QKV"]


def ask(environment: Path, model: LoadedModel, folder: Path, **call: object) -> dict[str, Any]:
    """Export a network, load it in llama.cpp, and return its answer."""
    export_gguf(model, folder / "a.gguf")
    done = subprocess.run(
        [str(environment / "bin" / "python"), str(RUN.with_name("llama_cpp_worker.py"))],
        input=json.dumps({"path": str(folder / "a.gguf"), "threads": 1, **call}),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("name", [*TOKENIZERS, "tiny"])
def test_texts_have_equal_tokens(name: str, environment: Path, tmp_path: Path) -> None:
    tokenizer = load_checkpoint("tiny").tokenizer if name == "tiny" else TOKENIZERS[name]
    assert tokenizer is not None
    letters = LETTERS.get(name)
    texts = list(TEXTS) if letters is None else ["", letters, letters[::-1] * 2]
    sizes: dict[str, Any] = {"d_model": 8, "num_heads": 2, "num_layers": 1, "max_tokens": 64}
    model = LoadedModel(LanguageModel(vocabulary=tokenizer.vocabulary, **sizes), tokenizer)
    found = ask(environment, model, tmp_path, prompt=[0], new=0, texts=texts, logits=False)
    assert found["texts"] == [tokenizer.encode(text) for text in texts]


FAMILIES = {
    "llama-4": 1e-5,
    "qwen2-2": 1e-5,
    "qwen3-0": 1e-5,
    "smollm3-2": 1e-5,
    "phi3-2": 1e-5,
    "olmo2-0": 1e-5,
    "stablelm-0": 1e-5,
    # llama.cpp computes GELU by a table of half precision.
    "gemma-0": 3e-3,
    "gemma2-2": 3e-3,
    "gemma3_text-2": 3e-3,
    "gpt_neox-0": 3e-3,
    "starcoder2-0": 3e-3,
}
"""A case of each family that is loaded, with the largest difference of logits."""


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("name", FAMILIES)
def test_families_have_equal_logits_and_tokens(
    name: str, environment: Path, tmp_path: Path
) -> None:
    family, _, index = name.rpartition("-")
    loaded = families.load(tmp_path, family, int(index))
    prompt = families.draw_tokens()[0, : families.PROMPT].tolist()
    call = {"prompt": prompt, "new": 30, "texts": [], "logits": True, "weights": "f32"}
    found = ask(environment, loaded, tmp_path, **call)
    with torch.no_grad():
        expected = loaded.network(torch.tensor([prompt]))[0]
    assert families.distance(torch.tensor(found["logits"]), expected) < FAMILIES[name]
    assert found["tokens"] == list(generate(loaded.network, [prompt], max_new_tokens=30)[0])
