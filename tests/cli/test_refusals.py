"""Input that makes no sense: one sentence, exit code 2, and nothing is written or measured.

A row for what a verb refuses by itself; what the type of an option refuses stands once.
"""

import json
import shlex
import sys
from pathlib import Path

import pytest

from decoding.cache_quality import QualityMeter
from qkvary.checkpoints.models import save_model
from qkvary.data.tokenizers import CharacterTokenizer
from tests.cli.conftest import CHARACTERS
from tests.conftest import Typed
from tests.contracts.test_commands import STUDY_FILE
from tests.conversions.networks import make_network

REFUSED = {
    "analyze": {
        "text --text text": "expected a checkpoint of a known format",
        "bytes --text none": "expected a file or folder of documents, got",
        "bytes --text short": "expected a text of at least",
        "bytes --text text --context 161": "expected a context of 2 to",
        "bytes --text text --context 1": "expected a context of 2 to",
        "bytes --text text --seed -1": "at least 0 for seed, got -1",
        "bytes": "--text",
    },
    "bench decode": {
        "--out text/x.json": "/text, got a file",
        "--dtype fp8": "expected --dtype to be one of float64, float32, bfloat16, float16, got",
        "--layout sources,spilt": "expected --layout to be one of sources, rotated, split",
        "--kernel fast": "expected --kernel to be one of layer, auto",
        "--storage int9": "expected a storage such as int8-g64",
        "--context 2": "expected contexts with room for a prompt before 2 new tokens",
        "lm-10m --d-model 8": "expected the name of a network without sizes, got both",
        "--read no-such.json": "no-such.json: No such file or directory",
        "bytes --read one.json": "expected --read without a model or variants",
    },
    "bench quantized": {
        "own --text latin --context 4": "latin, which is not at byte 4",
        "own --text text --context 4,0": "expected windows of at least 1 token, got 0",
        "own --text text --context 4,18": "expected windows of at most 17 tokens, got 18",
        "own --text text --context 4,999": "expected a text of more than 999 tokens",
        "narrow --text text --context 4 --storage int8-g3,int8-b8": "fit a window of 4 tokens, got",
    },
    "claims": {
        "postr-3": "did you mean poster-3?",
        "--document postr": "did you mean poster?",
        "--verdict true": "does-not-hold",
        "--studies nowhere": "expected a folder of reports for --studies, got nowhere",
        "--studies .": "expected tables of studies (STUDY/tables/*.csv) in . for --studies",
        "--check nowhere.json": "nowhere.json",
        "--check nowhere.json --document poster": "expected no claims or filters with --check",
    },
    "convert": {
        "own": "expected --rewrite or --to, got neither",
        "own --to latent --rewrite gauge": "expected --rewrite or --to, got both",
        "own --rewrite gauge --data text": "only with --to, got them with --rewrite",
        "own --rewrite gauge --tokens 32768": "(--data, --tokens, ...) only with --to, got them",
        "own --rewrite identity-quer": "did you mean identity-query",
        "normless --rewrite identity-value --layer 3": "expected a layer from 1 to 2",
        "own --rewrite gauge --out tasks": "it is not overwritten",
        "tiny --rewrite identity-query": "expected a network without norms, got rmsnorm",
        "tiny --rewrite gauge --out ./tiny": "path differs from the checkpoint's name, got tiny",
        "own --data text --to latnt --cache 50%": "did you mean latent",
        "own --data text --to latent": "expected exactly one of --cache (such as 50%) and --byt",
        "own --data text --to latent --cache 50": "got '50'; did you mean 50%?",
        "own --data text --to latent --cache 150%": "or 0.1, got '150%'",
        "own --data text --to latent --cache 100%": "above 0 and below 100%, got 100%",
        "own --data text --to latent --cache 50% --heal-tokens 9": "expected --out with",
        "own --data text --to grouped --cache 50% --layers auto": "choices: latent, shared",
        "own --to latent --cache 50%": "expected a text (--data) for fitting the smaller cache",
    },
    "cost": {
        "nonsense": "got 'nonsense'; named sizes: lm-10m, gpt2, ",
        "gpt-2": "did you mean",
        "gpt2 --variant Q-KK": "did you mean",
        "gpt2 --variant Q-K=V,MQA": "Q-K=V,MQA'; to give several variants, put spaces between them",
        "gpt2 --variant": "requires at least 1",
        "gpt2 --dtype int5": "expected one of the formats fp32, bf16",
        "gpt2 --context 0": "context: expected at least 1, got 0",
        "gpt2 --context 1e9": "context: expected a whole number",
        "t5-small --encoder-tokens 0": "encoder_tokens: expected at least 1",
        "": "requires an argument",
    },
    "data prepare": {
        "text --tokenizer bytes --out text/x": "/text, got a file",
        "nowhere.txt": "name of a corpus, got nowhere.txt, which does not exist",
        "text --workers 0": "expected at least one worker, got 0",
        "text --held-out 2": "expected a share between 0 and 1 to hold out, got 2.0",
        "text --tokenizer bytes --out tasks": "expected an empty folder",
        "hf:a": "expected hf:owner/name",
    },
    "evaluate": {
        "rotary --data text --out text/x.json": "/text, got a file",
        "rotary --data text --out pages.json": "--out with a file, got the folder pages.json",
        "rotary --data text --stride 34": "a stride from 1 to the context of 33",
        "rotary --data text --lengths 4M": "a document of more than 4194304",
        "learned --data sand --context 99": "the learned positions of this network",
        "bytes --tasks mmlu --against x": "only tasks with local files with --against",
        "bytes --tasks piqa --task-data text": "expected the file piqa_validation.jsonl",
        "bytes --tasks piqa --against x": "expected a prepared set, got x",
        "bytes --data text --against x": "expected --tasks with options such as --fewshot",
        "bytes --tasks piqa --fewshot -1": "fewshot: expected at least 0, got -1",
    },
    "export": {
        "rotary --out new --to gguf": "expected --out with a file NAME.gguf for --to",
        "learned --out new.gguf --to gguf": "GPT-2 can express, got one with the norm placement",
        "rotary --out folder.gguf --to gguf": "expected a file at",
        "rotary --out new --weights f16": "expected --weights only with --to gguf",
        "rotary --out new.gguf --to gguf --tokenizer bytes": "which has its own",
        "rotary --out new --to gpt2": "GPT-2 can express, got one with rotary positions; choi",
        "rotary --out new --to deepseek": "of --to for this network: llama, hf, transformers",
        "rotary --out learned": "it is not overwritten",
    },
    "generate": {
        "ab12 a": "a run in another folder is named FOLDER/ab12",
        "nowhere a": "expected a checkpoint, got",
        "mute a": "mute has no tokenizer: give one with --tokenizer",
        "own a --tokenizer bytes": "no --tokenizer with own, which has its own, got bytes",
        "mute a --tokenizer large.json": "expected a tokenizer of at most ",
        "mute a --tokenizer none": "expected a tokenizer, got 'none'; choices: gpt2, bytes",
        "mute a --tokenizer rotary/tok307.bin": " bytes after 13 pieces",
        "own ''": "expected a prompt, got none",
        "own xyz": "expected one of the 13 characters of this model, got 'x'",
        "own aaaaaaaaaaaaaaaaaa": "expected a prompt of at most 17 tokens, got 18",
        "own a --tokens 18": "17 new tokens after a prompt of 1, got 18; the network ",
        "own a --temperature nan": "expected temperature finite and at least 0, got nan",
        "own a --top-k 0": "expected a whole number of at least 1 for top_k, got 0",
        "own a --stop ''": "expected stop strings of 1 to 1024 characters, got 0",
        "own a --beams 2 --top-k 3": "expected a greedy request without",
        "own a --beams 2 --deterministic-batch": "without --beams, got both",
        "own a --device gpu": "expected a device such as cpu, cuda, cuda:1 or mps",
    },
    "plan": {
        "gpt2 --gpu t4 --out text": "/text, got a file",
        "300M": "expected a gpu such as a100-40gb, or a memory size such as 24GiB, got neither",
        "300M --gpu a100-40": "did you mean a100-40gb?",
        "300M --memory 24G": "expected memory such as 24GiB",
        "300M --gpu t4 --bandwidth fast": "expected a bandwidth such as 900GB/s",
        "300M --gpu t4 --flops 12": "expected a speed of matrix arithmetic such as 121TFLOPS",
        "300M --gpu t4 --price nan": "expected a price of at least 0, got nan",
        "300M --gpu t4 --reserve 100%": "expected a reserve in [0, 1), got 1.0",
        "300M --gpu t4 --goal training --utilization 0": "a utilization in (0, 1]",
        "300M --gpu t4 --dtype bf16,,int8": "expected one of the formats",
        "300M --gpu t4 --task poem": '"causal", "set", "image"',
    },
    "published": {
        "tabel-8": "did you mean three-projections-table-8?",
        "table-1": "which may be key-value-table-1, query-identity-table-1 or",
    },
    "report quickstart": {
        "--to text/x": "/text, got a file",
        "--out text": "/text, got a file",
    },
    "study quickstart": {
        "--out text": "/text, got a file",
    },
    "doctor": {
        "--out text": "/text, got a file",
    },
    "study mine.py --dry-run": {
        "--executor rya": 'Choose from: "local", "ray", "slurm". Did you mean "ray"?',
        "--executor ray --workers 2": "expected no workers with executor ray, got 2",
        "--partition short": "expected executor slurm with partition, got local",
        "--executor slurm --gpu-share 0.5": "expected executor ray with gpu_share, got slurm",
        "--executor slurm --slurm account": "slurm: expected NAME=VALUE, such as account=name",
        "--executor slurm --minutes 0": "minutes must be at least 1, got 0",
        "--executor ray --gpu-share 0": "gpu_share must be above 0 and at most 1, got 0",
        "--executor ray --gpu-share 1.5": "gpu_share must be above 0 and at most 1, got 1.5",
    },
    "train": {
        "lm-10m --data text --tokenizer bytes --steps 1 --out text/x": "/text, got a file",
        "lm-10n --data text": "did you mean lm-10m?",
        "lm-10m --data text --steps 2 --batch-size 4 --micro-batch-size 9": "most the 4 rows",
        "lm-10m --data text --steps -5": "steps: expected at least 1, got -5",
        "lm-10m --data text --minutes 0": "expected a number of minutes above 0, got 0",
    },
    "variants": {"--d-model 10 --num-heads 3": "divisible by num_heads"},
}

NOT_INSTALLED = {
    "evaluate bytes --tasks piqa": "lm_eval is not installed: run pip install 'qkvary[eval]'",
    "plan 300M --gpu t4 --out page": "vl_convert is not installed: ",
    "study mine.py --executor ray": "ray is not installed: run pip install 'qkvary[cluster]'",
    "study mine.py --executor slurm": "submitit is not installed: run pip install 'qkvary[cl",
    "study mine.py --log trackio": "trackio is not installed: run pip install 'qkvary[track]'",
    "study mine.py --log wandb": "wandb is not installed: run pip install wandb",
}


@pytest.fixture(scope="module")
def files(places: Path) -> Path:
    """Networks of every kind, texts, tasks and a study."""
    network = make_network("Q-K=V", positions="sinusoidal").float()
    save_model(places / "normless", network, CHARACTERS)
    large = CharacterTokenizer("".join(map(chr, range(1000, 2000))), has_separator=True)
    (places / "large.json").write_text(json.dumps(large.describe()))
    (places / "pages.json").mkdir()
    (places / "folder.gguf").mkdir()
    (places / "short").write_text("abc", "utf-8")
    (places / "latin").write_bytes("abc é".encode("latin-1"))
    (places / "mine.py").write_text(STUDY_FILE, "utf-8")
    return places


def refuse(command: str, message: str, typed: Typed) -> None:
    before = sorted(Path.cwd().rglob("*"))
    printed, errors = typed.both(*shlex.split(command), code=2)
    assert printed == ""
    (said,) = errors.splitlines()
    assert said.startswith("qkvary: ")
    assert message in said
    assert "%%" not in said
    assert len(said) < 600
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.fixture
def here(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path))
    monkeypatch.setenv("QKVARY_DATA", str(files))
    # A study is imported.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(QualityMeter, "measure", pytest.fail)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("command", "message"),
    [(f"{verb} {words}", said) for verb, rows in REFUSED.items() for words, said in rows.items()],
)
def test_one_sentence_and_nothing_written(command: str, message: str, typed: Typed) -> None:
    refuse(command, message, typed)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("command", "message"), NOT_INSTALLED.items())
def test_a_package_that_is_missing_is_named_with_its_extra(
    command: str, message: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkvary.storage.packages.find_spec", lambda _name: None)
    refuse(command, message, typed)
