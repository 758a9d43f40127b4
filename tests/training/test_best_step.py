"""The network with the best validation is the one that is tested, also after a stop."""

import itertools
from pathlib import Path

import pytest
from torch import nn

from qkvary.tasks.contract import SINGLE_PROCESS_CONTEXT, EvaluationContext, Split
from qkvary.training.loop import train
from tests.training.toy import ToyTask, toy_run


class ScriptedTask(ToyTask):
    """Each validation finds the next of given accuracies; a test finds how many it has seen."""

    def __init__(self, accuracies: tuple[float, ...], seen: int = 0) -> None:
        super().__init__()
        self.accuracies, self.seen = accuracies, seen

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        context: EvaluationContext = SINGLE_PROCESS_CONTEXT,
        /,
    ) -> dict[str, float]:
        scores = super().evaluate(model, split, context)
        if split == "test":
            return {"loss": scores["loss"], "accuracy": float(self.seen)}
        self.seen += 1
        return {"loss": scores["loss"], "accuracy": self.accuracies[self.seen - 1]}


@pytest.mark.parametrize(
    ("accuracies", "step", "number"),
    [((0.2, 0.5, 0.5, 0.4), 26, 2), ((0.9, 0.1, 0.2, 0.3), 13, 1), ((0.1, 0.2, 0.3, 0.4), 40, 4)],
)
def test_first_of_the_best_is_tested(
    tmp_path: Path, accuracies: tuple[float, ...], step: int, number: int
) -> None:
    task = ScriptedTask(accuracies)
    outcome = train(toy_run(test_at="best"), task, tmp_path)
    assert outcome.metrics["best_step"] == step
    assert outcome.metrics["test_accuracy"] == number
    assert outcome.metrics["validation_accuracy"] == accuracies[-1]
    improvements = sum(one > max((0.0, *accuracies[:n])) for n, one in enumerate(accuracies))
    assert task.evaluations.count("test") == improvements


def test_smaller_is_better_where_the_metric_is_a_loss(tmp_path: Path) -> None:
    task = ScriptedTask((0.4, 0.2, 0.2, 0.3))
    task.higher_is_better = False
    assert train(toy_run(test_at="best"), task, tmp_path).metrics["best_step"] == 26


def test_a_stopped_run_remembers_its_best(tmp_path: Path) -> None:
    accuracies = (0.2, 0.5, 0.1, 0.4)
    steps = itertools.count()
    config = toy_run(test_at="best")
    first = train(config, ScriptedTask(accuracies), tmp_path, stop=lambda: next(steps) >= 30)
    assert first.status == "stopped"
    again = train(config, ScriptedTask(accuracies, seen=2), tmp_path)
    assert (again.metrics["best_step"], again.metrics["test_accuracy"]) == (26, 2)
