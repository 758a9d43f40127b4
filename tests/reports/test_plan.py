import dataclasses

from qkvary.planning.plans import Plan
from qkvary.reports.plan import plan_report
from qkvary.reports.report import Bullets
from tests.reports.plan_examples import make_plan
from tests.reports.subjects import section


def keys(plan: Plan) -> list[str]:
    return [one.key for one in plan_report(plan).sections]


def test_a_plan_says_the_question_the_answers_and_their_limits() -> None:
    plan = make_plan()
    report = plan_report(plan)
    assert report.question == (
        "How can lm-300m serve 100 users of 32,768 tokens on NVIDIA A100 40GB?"
    )
    assert report.answer == plan.answer.summary
    assert report.caveats == (plan.answer.caveats[0], *plan.notes)
    assert section(report, "advice").blocks == (Bullets(plan.answer.advice),)
    assert section(report, "limits").blocks == (Bullets(plan.answer.caveats[1:]),)
    facts = dict(report.facts)
    assert facts["cache per user, bf16"] == "2.5 GiB"
    assert facts["after 10 % reserve"] == "33.5 GiB"
    assert facts["devices for all users"] == "8"
    assert keys(plan) == [
        *("savings", "variants", "engines", "advice", "limits", "context", "published"),
    ]


def test_tasks_that_decode_nothing_show_no_language_models() -> None:
    plan = dataclasses.replace(make_plan(trains=True), task="set")
    assert keys(plan) == ["variants", "advice", "limits"]
