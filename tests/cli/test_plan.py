"""``qkvary plan``: its JSON, and what is planned on request."""

import re
from typing import Any

import pytest

from qkvary.arch.families.sizes import load_size
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.devices import find_device
from qkvary.costs.formats import parse_format
from qkvary.costs.serving import Demand, plan_serving
from tests.conftest import Typed


def rows_of(document: dict[str, Any], *, cache: str = "bf16") -> dict[str, dict[str, Any]]:
    return {
        row["variant"]: row
        for row in document["rows"]
        if row["cache"] == cache and row["stored"] is None
    }


def test_json_says_what_was_asked_and_answers_it(typed: Typed) -> None:
    arguments = ("llama-3.1-8b", "--gpu", "h100-80gb", "--context", "16k", "--users", "1k")
    document = typed.json("plan", *arguments, "--dtype", "bf16,int4-g32", "--weights", "fp8")
    asked = {"model": "llama-3.1-8b", "goal": "serving", "task": "causal", "weights": "fp8"}
    sizes = {"context": 16_384, "users": 1024, "weight_bytes": 8_030_261_248, "reserve": 0.1}
    assert document.items() >= (asked | sizes).items()
    assert document["device"]["name"] == "h100-80gb"
    assert document["device"]["memory_bytes"] == 80 * 10**9
    demand = Demand(
        device=find_device("h100-80gb"), context=16_384, users=1024, weights=parse_format("fp8")
    )
    for candidate in choose_candidates(load_size("llama-3.1-8b")).rows:
        for form in ("bf16", "int4-g32"):
            row = rows_of(document, cache=form)[candidate.label]
            plan = plan_serving(candidate.model, demand, parse_format(form))
            kept = model_cache_bytes(candidate.model, context=16_384, stored_as=form)
            assert row["cache_bytes_per_user"] == plan.user_bytes == kept
            assert row["state_bytes_per_user"] == 0
            for name in ("users_per_replica", "devices_per_replica", "devices", "longest_context"):
                assert row[name] == getattr(plan, name)
            assert row["tokens_per_second"] == pytest.approx(plan.tokens_per_second)
            assert (row["bound"], row["lossy"]) == (plan.bound, form != "bf16")
    assert document["savings"]["methods"] == []
    assert "no exact saving is possible" in document["savings"]["obstacles"][0]
    assert [one["cache"] for one in document["savings"]["lossy"]] == ["fp8", "int8", "int4"]
    assert document["savings"]["lossy"][0]["cache_bytes"] == 16_384 * 32 * 2 * 8 * 128


def test_training_is_planned_on_request(typed: Typed) -> None:
    arguments = ("300M", "--gpu", "a100-40gb", "--goal", "training", "--context", "1k")
    plain, again = typed.json("plan", *arguments), typed.json("plan", *arguments, "--checkpointing")
    assert plain["goal"] == "training"
    assert (plain["precision"], plain["utilization"]) == ("mixed", 0.4)
    assert (plain["checkpointing"], again["checkpointing"]) == (False, True)
    first = plain["rows"][0]
    assert first["state_bytes"] == 16 * first["parameters"]["total"] == 16 * 305_534_976
    assert again["rows"][0]["sequence_bytes"] < first["sequence_bytes"]
    assert again["rows"][0]["tokens_per_second"] == pytest.approx(0.75 * first["tokens_per_second"])
    slow = typed.json("plan", *arguments, "--utilization", "20%")["rows"][0]
    assert slow["tokens_per_second"] == pytest.approx(first["tokens_per_second"] / 2)
    full = typed.json("plan", *arguments, "--precision", "fp32")["rows"][0]
    assert full["sequence_bytes"] > first["sequence_bytes"]


def test_a_device_may_be_described(typed: Typed) -> None:
    described = ("--memory", "24GiB", "--bandwidth", "68GB/s", "--flops", "2TFLOPS")
    document = typed.json("plan", "gpt2", *described)
    assert document["device"] == {
        "name": "custom",
        "title": "a device of your own",
        "memory_bytes": 24 * 2**30,
        "bandwidth_bytes_per_second": 68e9,
        "flops_per_second_16_bit": 2e12,
        "source": "given",
    }
    assert document["rows"][0]["tokens_per_second"] > 0
    corrected = typed.json("plan", "gpt2", "--gpu", "t4", *described)["device"]
    sizes = {"memory_bytes": 24 * 2**30, "bandwidth_bytes_per_second": 68e9}
    assert corrected.items() >= {"name": "t4", **sizes}.items()


def test_units_are_never_mixed(typed: Typed) -> None:
    """Also where a device is named by its vendor in GB."""
    for goal in ("serving", "training"):
        words = ("plan", "300M", "--memory", "40GB", "--context", "32k", "--goal", goal, "--full")
        printed = typed(*words)
        assert "37.3 GiB" in printed
        assert re.search(r"\d (kB|MB|GB|TB)\b", printed) is None


@pytest.mark.parametrize("goal", ["serving", "training"])
def test_the_default_plan_fits_a_small_terminal(
    goal: str, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    """At most 40 lines of 80 columns, whatever the model; the rest on request."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("gpt2", "t5-small", "deepseek-v4-flash", "gemma-4-31b"):
        arguments = ("plan", name, "--gpu", "h100-80gb", "--users", "64", "--goal", goal)
        lines = typed(*arguments).splitlines()
        assert len(lines) <= 40, name
        assert lines[-1] == "The whole report: --full"
