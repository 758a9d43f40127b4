"""``qkvary plan``: the papers' scenario as typed, its JSON, and every bad input in a sentence."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from qkvary.arch.families.sizes import load_size, name_sizes
from qkvary.cli.main import main
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.devices import find_device
from qkvary.costs.formats import parse_format
from qkvary.costs.serving import Demand, plan_serving
from qkvary.planning.advice import advise_task
from tests.conftest import Runner

SCENARIO = ("300M", "--gpu", "a100-40gb", "--users", "100", "--price", "2000", "--reserve", "0")


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments, "--full"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def rows_of(document: dict[str, Any], *, cache: str = "bf16") -> dict[str, dict[str, Any]]:
    return {
        row["variant"]: row
        for row in document["rows"]
        if row["cache"] == cache and row["stored"] is None
    }


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        # Papers: 15 users and 7 devices against 30 and 4, for 14,000 and 8,000 a month.
        ("32000", {"QKV": (15, 7, 14_000), "Q-K=V": (30, 4, 8_000)}),
        # With caches of 32,768 tokens.
        ("32k", {"QKV": (14, 8, 16_000), "Q-K=V": (29, 4, 8_000), "MQA": (235, 1, 2_000)}),
    ],
)
def test_the_papers_scenario_as_it_is_typed(
    context: str, expected: dict[str, tuple[int, int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    document = planned(capsys, *SCENARIO, "--context", context)
    rows = rows_of(document)
    for label, (users, devices, price) in expected.items():
        row = rows[label]
        assert (row["users_per_device"], row["devices"]) == (users, devices)
        assert row["price_per_month"] == price
    assert document["context"] == {"32000": 32_000, "32k": 32_768}[context]


def test_json_says_what_was_asked_and_answers_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("llama-3.1-8b", "--gpu", "h100-80gb", "--context", "16k", "--users", "1k")
    document = planned(capsys, *arguments, "--dtype", "bf16,int4-g32", "--weights", "fp8")
    assert {
        key: document[key] for key in ("model", "goal", "task", "context", "users", "weights")
    } == {
        "model": "llama-3.1-8b",
        "goal": "serving",
        "task": "causal",
        "context": 16_384,
        "users": 1024,
        "weights": "fp8",
    }
    assert document["device"]["name"] == "h100-80gb"
    assert document["device"]["memory_bytes"] == 80 * 10**9
    assert document["weight_bytes"] == 8_030_261_248
    assert document["reserve"] == 0.1
    demand = Demand(
        device=find_device("h100-80gb"), context=16_384, users=1024, weights=parse_format("fp8")
    )
    for candidate in choose_candidates(load_size("llama-3.1-8b")).rows:
        for form in ("bf16", "int4-g32"):
            row = rows_of(document, cache=form)[candidate.label]
            plan = plan_serving(candidate.model, demand, parse_format(form))
            assert row["cache_bytes_per_user"] == plan.user_bytes
            assert row["state_bytes_per_user"] == 0
            assert row["cache_bytes_per_user"] == model_cache_bytes(
                candidate.model, context=16_384, stored_as=form
            )
            assert row["users_per_replica"] == plan.users_per_replica
            assert row["devices_per_replica"] == plan.devices_per_replica
            assert row["devices"] == plan.devices
            assert row["longest_context"] == plan.longest_context
            assert row["tokens_per_second"] == pytest.approx(plan.tokens_per_second)
            assert row["bound"] == plan.bound
            assert row["lossy"] == (form != "bf16")
    assert document["savings"]["methods"] == []
    assert "leave nothing to save exactly" in document["savings"]["obstacles"][0]
    assert [one["cache"] for one in document["savings"]["lossy"]] == ["fp8", "int8", "int4"]
    assert document["savings"]["lossy"][0]["cache_bytes"] == 16_384 * 32 * 2 * 8 * 128


def test_savings_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gemma-4-31b", "--memory", "80GB", "--context", "128k")
    text = shown(capsys, *arguments)
    assert text.index("Exact now: ") < text.index("With training: ") < text.index("exact: ")
    assert text.index("With the given weights") < text.index("\nVariants\n")
    assert "exact: value and rotated slice, 10 of 60 layers" in text
    assert "−37.5 % of those layers" in text
    assert "exact: rotate when read, 10 of 60 layers" in text
    assert "−50.0 % of those layers" in text
    assert text.index("exact: ") < text.index("lossy: ")
    methods = planned(capsys, *arguments)["savings"]["methods"]
    shares = {method["method"]: method["share_of_layers"] for method in methods}
    assert shares["value and rotated slice"] == 0.375
    assert shares["rotate when read"] == 0.5


def test_what_needs_the_weights_is_possible_and_no_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(capsys, "gpt2", "--memory", "8GiB")
    assert "possible, needs the weights: keys alone, all 12 layers" in text
    assert "lossy: fp8 " in text


def test_published_figures_carry_what_limits_them(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, *SCENARIO, "--context", "32k")
    rows = rows_of(document)
    quality = rows["Q-K=V"]["quality"]
    assert quality["low"] < quality["change_percent"] < quality["high"]
    assert (quality["seeds"], quality["size"]) == (1, "300M")
    assert rows["Q-K=V"]["dominated_by"] == ["GQA-4", "MQA"]
    assert any("One network was trained per variant" in text for text in document["caveats"])
    assert any("padded to 2,048 tokens" in text for text in document["caveats"])
    assert rows["QKV"]["quality"]["low"] == rows["QKV"]["quality"]["high"] == 0


def test_what_is_longest_fits_and_is_printed_to_the_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither rounded up nor in thousands that would be typed as other tokens."""
    arguments = ("llama-3.1-8b", "--gpu", "a100-40gb", "--users", "100", "--context", "32k")
    rows, text = rows_of(planned(capsys, *arguments)), shown(capsys, *arguments)
    # Two devices, each with half of the weights and 4 of 8 heads of 32 layers.
    free = 36 * 10**9 - 8_030_261_248
    assert rows["GQA-8"]["longest_context"] == free // (32 * 2 * 4 * 128 * 2) == 426_784
    assert f" {free // 65_536:,} " in text
    assert "divided among devices, such as 13 on 2 (64 at most)" in " ".join(text.split())
    assert "memory for (the model was made for 131,072)" in " ".join(text.split())


def test_small_shares_and_prices_are_printed_as_given(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gpt2", "--gpu", "l4", "--reserve", "12.5%", "--price", "1.25")
    text = shown(capsys, *arguments)
    assert "after 12.5 % reserve" in text
    assert " 1.25 " in text
    training = shown(capsys, "gpt2", "--gpu", "l4", "--goal", "training", "--utilization", "12.5%")
    assert "at 12.5 % of the matrix rate" in training


def test_what_memory_has_to_hold_is_one_number(capsys: pytest.CaptureFixture[str]) -> None:
    """Just before a summary closes more is kept than after."""
    arguments = ("deepseek-v4-flash", "--gpu", "h200", "--context", "32k")
    document = planned(capsys, *arguments)
    most = document["rows"][0]["cache_bytes_per_user"]
    assert document["savings"]["cache_bytes_now"] == most
    assert most > model_cache_bytes(load_size("deepseek-v4-flash"), context=32_768)
    assert "Now: 226 MiB of cache per user in bf16" in shown(capsys, *arguments)


@pytest.mark.parametrize(
    ("name", "tokens", "says"),
    [
        ("gpt2", "7", "gpt2 has no encoder: encoder tokens change nothing"),
        ("whisper-tiny", "7", "the encoder of whisper-tiny always has 1,500 tokens: others change"),
        ("whisper-tiny", "1500", None),
        ("t5-small", "7", None),
    ],
)
def test_tokens_of_an_encoder_that_change_nothing_are_mentioned(
    name: str, tokens: str, says: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    for goal in ("serving", "training"):
        arguments = (name, "--gpu", "l4", "--encoder-tokens", tokens, "--goal", goal)
        notes = planned(capsys, *arguments)["notes"]
        assert any(note.startswith(says or "none") for note in notes) == (says is not None)


@pytest.mark.parametrize("kind", ["set", "image"])
def test_other_tasks_train_and_cache_nothing(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, "300M", "--gpu", "a100-40gb", "--task", kind)
    assert document["task"] == kind
    assert document["goal"] == "training"
    assert "savings" not in document
    for sentence in advise_task(kind):  # type: ignore[arg-type]
        assert sentence in document["advice"]
    assert all("largest_batch" in row for row in document["rows"])


def test_training_is_planned_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("300M", "--gpu", "a100-40gb", "--goal", "training", "--context", "1k")
    plain, again = planned(capsys, *arguments), planned(capsys, *arguments, "--checkpointing")
    assert plain["goal"] == "training"
    assert (plain["precision"], plain["utilization"]) == ("mixed", 0.4)
    assert (plain["checkpointing"], again["checkpointing"]) == (False, True)
    first = plain["rows"][0]
    assert first["state_bytes"] == 16 * first["parameters"]["total"] == 16 * 305_534_976
    assert again["rows"][0]["sequence_bytes"] < first["sequence_bytes"]
    assert again["rows"][0]["tokens_per_second"] == pytest.approx(0.75 * first["tokens_per_second"])
    slow = planned(capsys, *arguments, "--utilization", "20%")["rows"][0]
    assert slow["tokens_per_second"] == pytest.approx(first["tokens_per_second"] / 2)
    full = planned(capsys, *arguments, "--precision", "fp32")["rows"][0]
    assert full["sequence_bytes"] > first["sequence_bytes"]
    text = shown(capsys, *arguments)
    assert "What trains lm-300m on sequences of 1,024 tokens on" in text
    assert "Precision: mixed; activations stored, at 40 % of the matrix rate." in text
    assert "1 user" not in text


def test_a_device_may_be_described(capsys: pytest.CaptureFixture[str]) -> None:
    described = ("--memory", "24GiB", "--bandwidth", "68GB/s", "--flops", "2TFLOPS")
    document = planned(capsys, "gpt2", *described)
    assert document["device"] == {
        "name": "custom",
        "title": "a device of your own",
        "memory_bytes": 24 * 2**30,
        "bandwidth_bytes_per_second": 68e9,
        "flops_per_second_16_bit": 2e12,
        "source": "given",
    }
    assert document["rows"][0]["tokens_per_second"] > 0
    corrected = planned(capsys, "gpt2", "--gpu", "t4", *described)["device"]
    assert corrected["name"] == "t4"
    assert (corrected["memory_bytes"], corrected["bandwidth_bytes_per_second"]) == (
        24 * 2**30,
        68e9,
    )


def test_without_rates_there_is_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, "gpt2", "--memory", "24GiB")
    assert all(row["tokens_per_second"] is None for row in document["rows"])
    assert all(row["bound"] is None for row in document["rows"])
    assert "give --bandwidth and --flops of the device" in shown(
        capsys, "gpt2", "--memory", "24GiB"
    )


def test_memory_in_either_unit_is_the_same_memory(capsys: pytest.CaptureFixture[str]) -> None:
    binary = planned(capsys, "gpt2", "--memory", "10GiB")
    bytes_ = planned(capsys, "gpt2", "--memory", "10,737,418,240B")
    assert binary == bytes_
    decimal = planned(capsys, "gpt2", "--memory", "10GB")
    assert decimal["device"]["memory_bytes"] == 10**10


def test_units_are_never_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where a device is named by its vendor in GB."""
    for goal in ("serving", "training"):
        arguments = ("300M", "--memory", "40GB", "--context", "32k", "--goal", goal)
        binary, decimal = shown(capsys, *arguments), shown(capsys, *arguments, "--decimal")
        assert "37.3 GiB" in binary
        assert re.search(r"\d (kB|MB|GB|TB)\b", binary) is None
        assert "40 GB" in decimal
        assert "iB" not in decimal


def test_a_free_device_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, "gpt2", "--memory", "8GiB", "--price", "0")
    assert {row["price_per_month"] for row in document["rows"]} == {0}
    unpriced = planned(capsys, "gpt2", "--memory", "8GiB")
    assert {row["price_per_month"] for row in unpriced["rows"]} == {None}


def test_what_never_fits_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("llama-3.1-405b", "--memory", "1GiB")
    document = planned(capsys, *arguments)
    assert not any(row["fits"] for row in document["rows"])
    assert {row["devices"] for row in document["rows"]} == {None}
    text = shown(capsys, *arguments)
    assert "Exact now: unchanged: no user fits with the weights." in text


@pytest.mark.parametrize("percent", ["0", "0%", "37%", "99%", "0.995"])
def test_any_reserve_is_left_alone(percent: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, "gpt2", "--memory", "100GB", "--reserve", percent)
    share = float(percent.rstrip("%")) / (100 if "%" in percent else 1)
    assert document["reserve"] == pytest.approx(share)
    row = document["rows"][0]
    assert row["fits"]
    free = 100 * 10**9 * (1 - share) - document["weight_bytes"]
    assert row["users_per_replica"] == pytest.approx(free // row["cache_bytes_per_user"], abs=1)


def test_huge_demands_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    most = str(2**40)
    arguments = ("gpt2", "--gpu", "t4", "--users", most, "--context", most, "--price", "1e300")
    document = planned(capsys, *arguments, "--dtype", "fp32")
    assert document["users"] == document["context"] == 2**40
    assert not document["rows"][0]["fits"]
    assert shown(capsys, "gpt2", "--gpu", "t4", "--users", most, "--price", "1e300")


@pytest.mark.parametrize("name", ["t5-small", "whisper-tiny"])
def test_encoder_decoders_are_served(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (name, "--gpu", "t4", "--context", "100", "--encoder-tokens", "700")
    document = planned(capsys, *arguments)
    assert document["encoder_tokens"] == (700 if name == "t5-small" else 1500)
    assert {method["method"] for method in document["savings"]["methods"]} >= {
        "encoder output once"
    }


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v4-flash"])
def test_latents_and_summaries_are_served_as_they_are(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = planned(capsys, name, "--gpu", "h200", "--context", "128k", "--users", "64")
    assert {row["variant"] for row in document["rows"]} == {"as it is"}
    assert document["savings"]["methods"] == []
    assert document["savings"]["already"]


@pytest.mark.parametrize("width", ["24", "40", "80", "116", "250"])
def test_any_width_says_the_same(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    text = " ".join(shown(capsys, *SCENARIO, "--context", "32k", "--dtype", "bf16").split())
    for fact in ("100 users of 32,768 tokens", "2.5 GiB", "16,000", "With training: MQA: 235"):
        assert fact in text, fact
    training = shown(capsys, "300M", "--gpu", "t4", "--goal", "training")
    assert "305.5 M" in training


@pytest.mark.parametrize("goal", ["serving", "training"])
def test_the_default_plan_fits_a_small_terminal(
    goal: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At most 40 lines of 80 columns, whatever the model; the rest on request."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in name_sizes():
        arguments = ("plan", name, "--gpu", "h100-80gb", "--users", "64", "--goal", goal)
        assert main([*arguments]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 40, name
        assert lines[-1] == "The whole report: --full"


def test_what_works_now_comes_before_what_needs_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("llama-3.1-8b", "--gpu", "a100-40gb", "--users", "64")
    assert main(["plan", *arguments]) == 0
    text = " ".join(capsys.readouterr().out.split())
    positions = [text.index(start) for start in ("Exact now", "Fewer bits", "With training")]
    assert positions == sorted(positions)
    assert " standing" not in text
    assert re.search(r"\d\.5 users", text) is None


def test_lines_are_as_wide_as_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width in (40, 80, 120, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        for goal in ("serving", "training"):
            text = shown(capsys, "gemma-4-31b", "--gpu", "h200", "--price", "5", "--goal", goal)
            assert max(map(len, text.splitlines())) <= width


def test_an_ascii_locale_prints_ascii(run_python: Runner) -> None:
    code = "import sys; from qkvary.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    result = run_python(["-c", code, "plan", *SCENARIO], env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()


GPU = ("--gpu", "a100-40gb")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["300M"], "expected a gpu such as a100-40gb, or a memory such as 24GiB, got neither"),
        (["300M", "--gpu", "a100-40"], "did you mean a100-40gb?"),
        (["300M", "--gpu", ""], "expected a device out of"),
        (["300M", "--memory", "24G"], "expected memory such as 24GiB"),
        (["300M", "--memory", "0GB"], "expected memory such as 24GiB"),
        (["300M", "--memory=-4GB"], "expected memory such as 24GiB"),
        (["300M", "--memory", "nan"], "expected memory such as 24GiB"),
        (["300M", *GPU, "--bandwidth", "fast"], "expected a bandwidth such as 900GB/s"),
        (["300M", *GPU, "--flops", "12"], "expected a matrix rate such as 121TFLOPS"),
        (["300M", *GPU, "--price", "nan"], "expected a price of at least 0, got nan"),
        (["300M", *GPU, "--price", "inf"], "expected a price of at least 0, got inf"),
        (["300M", *GPU, "--price", "-1"], "expected a price of at least 0, got -1.0"),
        (["300M", *GPU, "--price", "cheap"], "--price"),
        (["300M", *GPU, "--users", "0"], "--users: expected at least 1, got 0"),
        (["300M", *GPU, "--users", "-3"], "--users: expected a whole number"),
        (["300M", *GPU, "--users", "many"], "--users: expected a whole number"),
        (["300M", *GPU, "--reserve", "100%"], "expected a reserve in [0, 1), got 1.0"),
        (["300M", *GPU, "--reserve", "nan"], "expected a share such as 10% or 0.1"),
        (["300M", *GPU, "--goal", "training", "--reserve", "1"], "expected a reserve in [0, 1)"),
        (["300M", *GPU, "--goal", "training", "--utilization", "0"], "a utilization in (0, 1]"),
        (["300M", *GPU, "--utilization", "140%"], "expected a share such as 10% or 0.1"),
        (["300M", *GPU, "--dtype", "bf16,,int8"], "expected a format out of"),
        (["300M", *GPU, "--weights", "int5"], "expected a format out of"),
        (["300M", *GPU, "--task", "poem"], '"causal", "set", "image"'),
        (["300M", *GPU, "--goal", "fame"], '"serving", "training"'),
        (["300M", *GPU, "--precision", "fp8"], '"mixed", "fp32"'),
        (["300M", *GPU, "--variant", "nonsense"], "expected a variant such as Q-K=V"),
        (["301M", *GPU], "expected a named size"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_bidirectional_configuration_is_planned_for_training_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "bert", "hidden_size": 8}', "utf-8")
    assert main(["plan", str(path), *GPU]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--gpu", "--memory", "--users", "--context", "--price", "--reserve", "--dtype"):
        assert option in text
    assert "a100-40gb" in text
    assert "24GiB" in text
