import dataclasses
from typing import Any

import pytest

from qkvary.costs.devices import Device
from qkvary.planning.plans import Plan, ServingAnswer
from qkvary.reports.plan import plan_report
from qkvary.reports.report import Chart, Group, Pairs, Prose, Report, walk
from tests.reports.plan_examples import make_plan


def section(report: Report, key: str) -> Any:
    return next(one for one in report.sections if one.key == key)


def keys(plan: Plan) -> list[str]:
    return [one.key for one in plan_report(plan).sections]


def test_a_plan_says_the_question_the_answers_and_their_limits() -> None:
    plan = make_plan()
    report = plan_report(plan)
    assert report.question == (
        "What serves 100 users of 32,768 tokens with lm-300m on NVIDIA A100 40GB?"
    )
    assert report.answer == plan.answer.summary
    assert report.caveats == (plan.answer.caveats[0], *plan.notes)
    assert section(report, "advice").blocks[0].items == plan.answer.advice
    assert section(report, "limits").blocks[0].items == plan.answer.caveats[1:]
    assert report.data["advice"] == (*plan.answer.summary, *plan.answer.advice)
    assert report.data["caveats"] == plan.answer.caveats
    facts = dict(report.facts)
    assert facts["cache per user, bf16"] == "2.5 GiB"
    assert facts["after 10 % reserve"] == "33.5 GiB"
    assert facts["devices for all users"] == "8"
    assert keys(plan) == [
        *("savings", "variants", "engines", "advice", "limits", "context", "memory", "published"),
    ]


def test_engines_stand_beside_the_minimum() -> None:
    plan = make_plan("gemma-4-31b")
    report = plan_report(plan)
    table = section(report, "engines").blocks[0]
    assert isinstance(plan.answer, ServingAnswer)
    least, vllm, *_ = plan.answer.engines
    assert [row[0].text for row in table.rows] == [row.engine for row in plan.answer.engines]
    more = table.rows[1][2].raw
    assert more == pytest.approx((vllm.user_bytes or 0) / (least.user_bytes or 1) - 1)
    assert more > 0
    assert f"log: {vllm.tokens:,} tokens" in dict(report.facts)["as vLLM 0.32 allocates"]
    assert report.data["engines"][1]["cache_bytes_per_user"] == vllm.user_bytes
    assert [row["engine"] for row in report.data["engines"]] == [row[0].raw for row in table.rows]


def test_exact_savings_come_first_and_lossy_ones_are_marked() -> None:
    blocks = section(plan_report(make_plan()), "savings").blocks
    names = [name for block in blocks if isinstance(block, Pairs) for name, _ in block.items]
    assert names[0] == "exact: layer input, all 20 layers: 1.25 GiB per user (−50.0 %)"
    assert names[1].startswith("possible, needs the weights: keys alone, all 20 layers")
    assert names[-1] == "lossy: fp8 1.25 GiB, int8 1.33 GiB and int4 720 MiB per user"
    llama = section(plan_report(make_plan("llama-3.1-8b")), "savings").blocks
    assert llama[1] == Pairs((("exact: nothing", ""),))


def test_savings_of_some_layers_say_which_share() -> None:
    blocks = section(plan_report(make_plan("gemma-4-31b", decimal=True)), "savings").blocks
    first = blocks[1].items[0][0]
    assert "10 of 60 layers" in first
    assert "of those layers)" in first
    assert " GB per user" in first


def test_the_published_charts_come_with_each_caveat_once() -> None:
    blocks = walk(section(plan_report(make_plan("llama-3.1-8b")), "published").blocks)
    charts = [block for block in blocks if isinstance(block, Chart)]
    assert [chart.caption for chart in charts] == [
        "The papers’ 1.2B networks",
        "The papers’ 300M networks",
    ]
    (group,) = (block for block in blocks if isinstance(block, Group))
    said = [*group.notes, *(note for chart in charts for note in chart.notes)]
    for words in (
        "One network was trained per variant",
        "the padding counts in the loss",
        "The released script for Q-GQA has 8 KV heads",
        "Reported at step 7,500 of 8,477",
        "an estimate, not a measurement",
    ):
        assert " ".join(said).count(words) == 1
    assert len(said) == len(set(said))


def test_training_is_planned_without_charts_of_a_cache() -> None:
    plan = make_plan(trains=True)
    assert plan_report(plan).question.startswith(
        "What trains lm-300m on sequences of 32,768 tokens"
    )
    assert keys(plan) == ["variants", "advice", "limits", "published"]
    assert len(section(plan_report(plan), "variants").blocks) == 1


def test_a_training_answer_without_its_regime_is_refused() -> None:
    plan = dataclasses.replace(make_plan(trains=True), regime=None)
    with pytest.raises(
        ValueError, match=r"^expected a plan of training with its regime, got none$"
    ):
        plan_report(plan)


def test_tasks_that_decode_nothing_show_no_language_models() -> None:
    plan = dataclasses.replace(make_plan(trains=True), task="set")
    assert keys(plan) == ["variants", "advice", "limits"]


def test_a_missing_chart_is_explained() -> None:
    plan = make_plan(device=Device(name="small", title="a small one", memory_bytes=2**20))
    assert "memory" not in keys(plan)
    prose = section(plan_report(plan), "variants").blocks[1]
    assert isinstance(prose, Prose)
    assert prose.text.startswith("No chart of users and memory: no user of any variant fits")
    assert "even of 64 times this memory" in prose.text


def test_data_has_what_was_asked_and_every_row() -> None:
    plan = make_plan()
    data = plan_report(plan).data
    assert (data["model"], data["goal"], data["users"]) == ("lm-300m", "serving", 100)
    assert data["device"]["memory_bytes"] == plan.demand.device.memory_bytes
    assert len(data["rows"]) == len(plan.answer.rows)
    first = data["rows"][0]
    assert (first["variant"], first["cache"], first["devices"]) == ("QKV", "bf16", 8)
    assert data["savings"]["methods"][0]["method"] == "layer input"
    trained = plan_report(make_plan(trains=True)).data
    assert trained["precision"] == "mixed"
    assert trained["rows"][0]["parameters"]["total"] > 0
