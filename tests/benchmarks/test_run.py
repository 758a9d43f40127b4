"""What a person types for a measurement of decoding, and what they are told."""

import json
import shlex
from pathlib import Path

import pytest

from decoding import measure as measurements
from decoding.records import DecodeQuestion, DecodeRecord, from_json, to_json
from qkvary.arch.named_networks import find_network
from qkvary.cli.main import main
from qkvary.reports.files import check_target
from tests.benchmarks.made_up import make_record
from tests.conftest import Runner
from tests.reference import llama2c

SMALL = shlex.split(
    "--d-model=16 --num-heads=2 --num-layers=2 --vocabulary=17 --context=12 --tokens=5 --rounds=2 "
    "--no-memory"
)
Asked = list[DecodeQuestion]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The questions of the test; they are answered by a record that was made up."""
    questions: Asked = []

    def measure(question: DecodeQuestion, **_: object) -> DecodeRecord:
        questions.append(question)
        return make_record()

    monkeypatch.setattr("decoding.measure.measure", measure)
    return questions


def test_a_measurement_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "decode"
    typed = ["bench", "decode", *SMALL, "--variant", "QKV", "Q-K=V", "--out", str(out)]
    assert main(typed) == 0
    printed = capsys.readouterr()
    for words in (
        "Speed: 1 answer of 12 tokens, float32",
        "x transformers",
        "Tokens per second of Q-K=V against QKV",
        "In float32 all runners gave the same tokens",
        f"written: {out / 'report.md'}",
    ):
        assert words in printed.out
    assert printed.err.startswith("speed at 12 tokens, batch 1, float32")
    record = from_json((out / "record.json").read_bytes(), where="here")
    assert [row.case.variant for row in record.speed[::4]] == ["QKV", "Q-K=V"]


def test_what_was_measured_is_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, page = tmp_path / "one.json", tmp_path / "one.html"
    path.write_bytes(to_json(make_record()))
    monkeypatch.setenv("COLUMNS", "240")
    assert main(["bench", "decode", "--read", str(path), "--out", str(page)]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    # TTFT, TPOT, tokens/s by both clocks, KiB by formula and as allocated, GB/s, ratios.
    for row in (
        "QKV cache 2.00 0.828 1,200 1,200 2,040.0 2,040.0 14.5 91 % 12.0 2.50 3.00",
        "QKV prefix again 24.0 9.94 100 100 – – – – – – –",
    ):
        assert row.split() in rows
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_json_has_the_record_and_what_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(to_json(make_record()))
    assert main(["bench", "decode", "--read", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert printed.err == ""
    assert document["schema_version"] == 1
    assert len(document["speeds"]) == len(document["speed"]) == 12
    assert document["speeds"][0]["over_prefix"]["value"] == pytest.approx(12.0)
    assert document["speeds"][0]["over_stock"]["transformers"]["value"] == pytest.approx(2.5)
    assert document["gaps"][0]["error"] == 0
    assert document["answers"]


def test_usual_question(asked: Asked) -> None:
    assert main(["bench", "decode", "--json"]) == 0
    (question,) = asked
    assert [one.layers[0].variant for one in question.networks] != []
    assert len(question.networks) == 4
    network = question.networks[0]
    assert (network.d_model, network.num_layers, network.vocabulary) == (256, 4, 512)
    assert (question.contexts, question.batches, question.dtypes) == ((256,), (1,), ("float32",))
    settings = question.settings
    assert (settings.new_tokens, settings.rounds, settings.threads) == (240, 7, 1)
    assert (settings.memory_context, settings.memory_chunk, settings.device) == (2**15, 128, "cpu")
    (cache,) = question.caches
    assert (cache.layout, cache.storage, cache.kernel) == (None, None, None)
    assert question.stock == ("transformers", "transformers-static")


def test_every_option_reaches_the_question(asked: Asked) -> None:
    typed = shlex.split(
        "--variants Q-K=V@rotary --context 512,4k --batch 1,8,1 --dtype bfloat16,float32 "
        "--layout rotated,split --storage growing,int4-g32 --kernel layer,native --tokens 99 "
        "--rounds 3 --threads 2 --memory-context 0 --no-transformers --seed 7 --num-heads 8"
    )
    assert main(["bench", "decode", "--json", *typed]) == 0
    (question,) = asked
    assert question.contexts == (512, 4096)
    assert question.batches == (1, 8)
    assert question.dtypes == ("bfloat16", "float32")
    assert len(question.caches) == 8
    assert {cache.layout for cache in question.caches} == {"rotated", "split"}
    assert {cache.kernel for cache in question.caches} == {"layer", "native"}
    storages = {cache.storage and cache.storage.storage for cache in question.caches}
    assert storages == {"growing", "int4"}
    settings = question.settings
    assert (settings.new_tokens, settings.rounds, settings.threads, settings.seed) == (99, 3, 2, 7)
    assert settings.memory_context == 0
    assert question.stock == ()
    assert question.networks[0].layers[0].num_heads == 8


def test_a_checkpoint_brings_its_sizes(tmp_path: Path, asked: Asked) -> None:
    llama2c.write_stand_in(tmp_path / "model")
    assert main(["bench", "decode", str(tmp_path / "model"), "--json"]) == 0
    (question,) = asked
    longest = llama2c.SIZES["seq_len"]
    assert question.contexts == (longest,)
    assert question.settings.memory_context == longest
    assert question.settings.new_tokens == longest - 16
    assert question.checkpoint == str(tmp_path / "model")
    assert question.networks[0].max_tokens == longest


def test_a_network_may_be_named(asked: Asked) -> None:
    typed = shlex.split("10M --variant QKV Q-MQA --context 64")
    assert main(["bench", "decode", *typed, "--json"]) == 0
    (question,) = asked
    assert question.checkpoint is None
    assert question.networks == (find_network("lm-10m", "QKV"), find_network("lm-10m", "Q-MQA"))


def test_a_checkpoint_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama2c.write_stand_in(tmp_path / "model")
    typed = ["bench", "decode", str(tmp_path / "model"), "--rounds=2", "--no-memory", "--json"]
    assert main(typed) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["case"]["variant"] for row in document["speed"]} == {"GQA-3@rotary"}
    assert {row["equal_tokens"] for row in document["speed"]} == {17}
    assert {row["runner"] for row in document["speed"]} >= {"cache", "transformers"}


def test_transformers_that_is_missing_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkvary.storage.packages.find_spec", lambda _: None)
    assert main(["bench", "decode", *SMALL, "--variant", "QKV"]) == 0
    printed = capsys.readouterr().out
    said = measurements.NEEDS_TRANSFORMERS
    assert printed.count(said) == 1
    assert "x transformers" not in printed


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--dtype", "fp8"], "expected --dtype out of float64, float32, bfloat16, float16, got"),
        (["--layout", "sources,spilt"], "expected --layout out of sources, rotated, split"),
        (["--kernel", "fast"], "expected --kernel out of layer, auto"),
        (["--storage", "int9"], "expected a storage such as int8-g64"),
        (["--context", "2"], "expected contexts with room for a prompt before 2 new tokens"),
        (["--context", "0"], "expected --context of at least 1, got 0"),
        (["--batch", "0"], "expected --batch of at least 1, got 0"),
        (["--batch", "x"], "expected a whole number such as 1024, 32k or 1M, got 'x'"),
        (["--tokens", "256"], "expected contexts with room for a prompt before 256 new tokens"),
        (["--seed", "9" * 23], "expected at most 9223372036854775807 for seed"),
        (["--rounds", "0"], "expected rounds of at least 1, got 0"),
        (["--variant", "Q=Q"], "Q=Q"),
        (["--d-model", "10", "--num-heads", "3"], "expected d_model divisible by num_heads"),
        (["lm-10m", "--d-model", "8"], "expected the name of a network without sizes, got both"),
        (["--out", "one.pdf"], "expected --out with a folder, or a file that ends in"),
        (["no-such-model"], "expected a checkpoint, got no-such-model"),
        (["--read", "no-such.json"], "no-such.json: No such file or directory"),
        (["model", "--read", "one.json"], "expected --read without a model or variants"),
        (["--device", "tpu"], "expected a device such as cpu, cuda, cuda:1 or mps, got 'tpu'"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(
    typed: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "decode", *typed]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("qkvary: ")
    assert message in said[-1]


@pytest.mark.parametrize(
    ("out", "code", "message"),
    [
        ("file/below", 2, "/file, got a file"),
        ("file/below/one.json", 2, "/file, got a file"),
        ("file", 2, "/file, got a file"),
        ("folder.html", 2, "expected --out with a file, got the folder "),
        ("/proc/one.json", 4, "cannot write /proc"),
        ("n" * 300, 4, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: Asked,
    capsys: pytest.CaptureFixture[str],
    out: str,
    code: int,
    message: str,
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.html").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "decode", "--out", str(tmp_path / out)]) == code
    assert message in capsys.readouterr().err
    assert asked == []


def test_a_place_that_can_be_is_not_made_before(tmp_path: Path) -> None:
    check_target(tmp_path / "one" / "two")
    check_target(tmp_path / "one" / "two.json")
    assert list(tmp_path.iterdir()) == []


def test_a_place_is_checked_before(tmp_path: Path, asked: Asked) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["bench", "decode", "--out", str(tmp_path / "file")]) == 2
    assert main(["bench", "decode", "--out", str(tmp_path / "one.pdf")]) == 2
    assert asked == []
    assert main(["bench", "decode", "--out", str(tmp_path / "one.json")]) == 0


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ["--variant", "QKV", "QKV@w8", "--storage", "int8-g64,int8-b32"],
            "expected blocks and residual that fit a window of 8 tokens, got blocks of 32",
        ),
        (["--device", "cuda:77"], "expected a device that this machine has, got 'cuda:77'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_rest_is(
    typed: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(*_: object, **__: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr(measurements, "answer_with_cache", measure)
    assert main(["bench", "decode", *SMALL, *typed]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said


def test_a_kernel_that_there_is_not_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QKVARY_DECODE_KERNEL", "junk")
    assert main(["bench", "decode", *SMALL]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "expected a kernel for decoding in QKVARY_DECODE_KERNEL, got 'junk'" in said


def test_sizes_and_contexts_of_a_checkpoint_are_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llama2c.write_stand_in(tmp_path / "model")
    for typed, message in (
        (["--d-model", "8"], "expected a checkpoint without --variant and sizes"),
        (["--variant", "QKV"], "expected a checkpoint without --variant and sizes"),
        (["--context", "1k"], "expected contexts of at most 33 tokens, the maximum of"),
    ):
        assert main(["bench", "decode", str(tmp_path / "model"), *typed]) == 2
        assert message in capsys.readouterr().err


def test_a_damaged_record_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.json").write_text("{}")
    assert main(["bench", "decode", "--read", str(tmp_path / "one.json")]) == 3
    assert "is not a measurement of decoding" in capsys.readouterr().err


def test_a_record_is_shown_without_torch(tmp_path: Path, run_python: Runner) -> None:
    (tmp_path / "one.json").write_bytes(to_json(make_record()))
    code = (
        "import sys; from qkvary.cli.main import main; status = main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'jinja2'} & set(sys.modules); "
        "sys.stderr.write(' '.join(heavy)); sys.exit(status)"
    )
    result = run_python(["-c", code, "bench", "decode", "--read", str(tmp_path / "one.json")])
    assert (result.returncode, result.stderr) == (0, "")


def test_the_command_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was typed, for the text that is written."""
    out = tmp_path / "one.json"
    typed = ["bench", "decode", *SMALL, "--variant", "QKV", "--no-transformers", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["/somewhere/qkvary", *typed])
    assert main() == 0
    record = from_json(out.read_bytes(), where="here")
    assert record.command == " ".join(["qkvary", *typed])
