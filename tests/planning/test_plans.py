"""A plan as a value: its answers are those of the planners, and advice comes with them."""

from qkvary.costs.exact_savings import find_savings
from qkvary.planning.advice import serve_variants
from qkvary.planning.plans import ServingAnswer, TrainingAnswer
from tests.reports.plan_examples import make_plan


def test_a_serving_answer_is_what_the_planners_say() -> None:
    plan = make_plan()
    assert isinstance(plan.answer, ServingAnswer)
    assert plan.answer.rows == serve_variants(
        plan.candidates.rows, plan.demand, plan.formats, size="300M"
    )
    assert plan.answer.savings == find_savings(
        plan.model, context=32_768, stored_as=plan.formats[0]
    )
    assert plan.answer.advice[-1].startswith("Causal tasks: ")
    assert any("One network was trained" in caveat for caveat in plan.answer.caveats)


def test_a_training_answer_leaves_out_what_only_the_cache_changes() -> None:
    plan = make_plan(trains=True)
    assert isinstance(plan.answer, TrainingAnswer)
    labels = [row.label for row in plan.answer.rows]
    assert labels == [row.label for row in plan.candidates.rows if row.saving is None]
    assert len(labels) == len(set(labels)) < len(plan.candidates.rows)
