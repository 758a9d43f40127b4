import dataclasses
from typing import Any

from qkvary.planning.plans import Plan
from qkvary.reports.plan import plan_report
from qkvary.reports.report import Chart, Group, Pairs, Report, walk
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


def test_exact_savings_come_first_and_lossy_ones_are_marked() -> None:
    blocks = section(plan_report(make_plan()), "savings").blocks
    names = [name for block in blocks if isinstance(block, Pairs) for name, _ in block.items]
    assert names[0] == "exact: layer input, all 20 layers: 1.25 GiB per user (−50.0 %)"
    assert names[1].startswith("possible, needs the weights: keys alone, all 20 layers")
    assert names[-1] == "lossy: fp8 1.25 GiB, int8 1.33 GiB and int4 720 MiB per user"
    llama = section(plan_report(make_plan("llama-3.1-8b")), "savings").blocks
    assert llama[1] == Pairs((("exact: nothing", ""),))


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


def test_tasks_that_decode_nothing_show_no_language_models() -> None:
    plan = dataclasses.replace(make_plan(trains=True), task="set")
    assert keys(plan) == ["variants", "advice", "limits"]


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
