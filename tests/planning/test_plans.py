"""A plan as a value: its answers are those of the planners, and advice comes with them."""

from qkvary.costs.exact_savings import find_savings
from qkvary.planning.advice import serve_variants
from qkvary.planning.plans import Regime, ServingAnswer, TrainingAnswer, answer_training
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


def test_a_large_model_is_compared_with_the_large_published_one() -> None:
    answer = make_plan("llama-3.1-8b").answer
    assert {row.quality.size for row in answer.rows if row.quality} == {"1.2B"}


def test_a_training_answer_leaves_out_what_only_the_cache_changes() -> None:
    plan = make_plan(trains=True)
    assert isinstance(plan.answer, TrainingAnswer)
    labels = [row.label for row in plan.answer.rows]
    assert labels == [row.label for row in plan.candidates.rows if row.saving is None]
    assert len(labels) == len(set(labels)) < len(plan.candidates.rows)


def test_the_regime_reaches_the_training_plan() -> None:
    plan = make_plan(trains=True)
    slow = Regime(precision="mixed", checkpointing=True, utilization=0.2)
    again = answer_training(plan.candidates, plan.demand, slow)
    for row, other in zip(plan.answer.rows, again.rows, strict=True):
        assert other.plan.sequence_bytes < row.plan.sequence_bytes
        assert other.plan.tokens_per_second < row.plan.tokens_per_second
