"""A user's task: what it lacks or returns wrongly is one sentence, and its scores are right."""

import dataclasses
import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import qkvary as qk
from qkvary.arch.canonical import stored
from qkvary.arch.networks import Network
from qkvary.nn.fused_loss import IGNORE_INDEX
from qkvary.storage.errors import QkvaryError
from qkvary.studies.study import Study
from qkvary.tasks.catalog import load_task
from qkvary.tasks.config_parts import TaskConfig, check_task
from qkvary.tasks.contract import ALL_ROWS, Batch, ClassificationTask, Split
from qkvary.training.loop import train
from tests.studies.toy_study import toy_study
from tests.training.toy import LENGTH, SYMBOLS, ToyModel, ToyTask, toy_network, toy_run


@stored("ParityForTests")
@dataclass(frozen=True, slots=True, kw_only=True)
class Parity(TaskConfig):
    """The parity of the bits so far, asked at the last position alone."""

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    name: str = "parity"
    more: object = None

    @property
    def data_fingerprint(self) -> str:
        return hashlib.sha256(b"parity").hexdigest()

    def count_tokens(self, _: Network) -> int:
        return LENGTH


class ParityTask(ClassificationTask[Parity]):
    def build(self, _network: Network, seed: int) -> nn.Module:
        return ToyModel(seed)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        generator = torch.Generator().manual_seed(seed + step)
        bits = torch.randint(2, (batch_size, LENGTH), generator=generator)
        targets = bits.cumsum(-1) % 2
        targets[:, :-1] = IGNORE_INDEX
        return Batch(bits[rows], targets[rows])

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        yield self.batch(10**6 + (split == "test"), 40, 0)

    def attention_example(self, _: nn.Module) -> None:
        return None


load = ParityTask


class Solver(nn.Linear):
    def forward(self, bits: Tensor) -> Tensor:
        return 30.0 * nn.functional.one_hot(bits.cumsum(-1) % 2, 2).double()


def make_study(**changes: Any) -> Study:
    study = toy_study((0,), steps=2)
    setting = dataclasses.replace(study.settings[0], **changes)
    return dataclasses.replace(study, settings=(setting,), variants=("QKV",))


def test_positions_without_a_target_do_not_count_in_the_scores() -> None:
    scores = ParityTask(Parity()).evaluate(Solver(1, 1), "validation")
    assert scores == {"loss": pytest.approx(0.0, abs=1e-9), "accuracy": 1.0}


def test_a_guess_chooses_among_the_classes_of_the_network() -> None:
    network = dataclasses.replace(toy_network(), vocabulary=2, classes=9)
    scale = Parity().scale(network, "test_accuracy")
    assert scale is not None
    assert scale.guess == 1 / 9


def changed(**members: Any) -> TaskConfig:
    """A configuration whose class has other members."""
    names = ("metric", "higher_is_better", "data_fingerprint", "count_tokens")
    kept = {name: vars(Parity)[name] for name in names}
    kind = type("Changed", (TaskConfig,), kept | members)
    return stored("Changed")(dataclass(frozen=True)(kind))(name="changed")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (changed(metric=None), "expected str from Changed.metric, got None"),
        (changed(higher_is_better=None), "expected bool from Changed.higher_is_better"),
        (changed(data_fingerprint=TaskConfig.data_fingerprint), "property data_fingerprint in Ch"),
        (changed(data_fingerprint=lambda _: "0" * 64), "expected str from .*, got <bound method"),
        (changed(data_fingerprint=None), "Changed.data_fingerprint, got None"),
        (changed(count_tokens=TaskConfig.count_tokens), "the method count_tokens in Changed"),
        (Parity(more=Path("x")), r"expected text, numbers.* got PosixPath\('x'\)"),
    ],
)
def test_a_study_refuses_a_task_that_lacks_a_member(task: TaskConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_study(task=task).runs()


def test_the_stored_kind_is_that_of_the_finished_class() -> None:
    below = dataclass(frozen=True, slots=True)(stored("Below")(type("Below", (Parity,), {})))
    with pytest.raises(ValueError, match=r'expected @stored\("Below"\) above @dataclass'):
        check_task(below(), toy_network())


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({}, r"expected a function load\(config\).* in the file of Parity, got none"),
        ({"load": lambda _: ParityTask}, r"to return a task, got the class ParityTask"),
        ({"load": lambda _: ClassificationTask(Parity())}, "with build, batch and attention_ex"),
        (
            {"load": type("V", (ParityTask,), {"version": 2})},
            "expected the version of V in Parity,",
        ),
    ],
)
def test_what_is_no_task_is_refused(
    load: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, Parity.__module__, SimpleNamespace(**load))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        load_task(Parity())


ROWS = torch.zeros(3, 5).long()


@pytest.mark.parametrize(
    ("member", "other", "message"),
    [
        ("build", None, "expected Module from ParityTask.build, got None"),
        ("batch", (1, 2), r"expected Batch from ParityTask.batch, got \(1, 2\)"),
        ("batch", Batch(ROWS.numpy(), ROWS), "expected Tensor from Batch.inputs"),  # type: ignore[arg-type]
        ("batch", Batch(ROWS, ROWS), "expected 6 rows from ParityTask.batch, got inputs of 3"),
        ("loss", 0.5, "expected Tensor from ParityTask.loss, got 0.5"),
        ("evaluate", {"acc": 0.5}, "the metric accuracy from .*evaluate, got acc"),
        ("evaluation_batches", [], "expected targets in the validation split, got none"),
        ("evaluation_batches", [(1, 2)], "expected Batch from ParityTask.evaluation_b"),
        ("attention_example", 3, "expected AttentionExample or NoneType from .*, got 3"),
    ],
)
def test_what_a_task_returns_is_checked(
    member: str, other: object, message: str, tmp_path: Path
) -> None:
    task = ParityTask(Parity())
    vars(task)[member] = lambda *_: other
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(toy_run(steps=1), task=Parity()), task, tmp_path)


def test_initial_values_of_torch_follow_from_the_seed_of_the_run(tmp_path: Path) -> None:
    class Undrawn(ToyTask):
        def build(self, _network: Network, _seed: int) -> nn.Module:
            return nn.Sequential(nn.Embedding(SYMBOLS, SYMBOLS))

    def digest(seed: int, name: str) -> str:
        (tmp_path / name).mkdir()
        return train(toy_run(steps=1, seed=seed), Undrawn(), tmp_path / name).state_sha256

    assert digest(3, "a") == digest(3, "b") != digest(4, "c")


MAIN = """
import dataclasses
import qkvary as qk
from qkvary.nn.own import own
from qkvary.nn.terms import ScoreTerm
from tests.studies.toy_study import toy_study

@own("same", "nothing changes")
class Same(ScoreTerm):
    def forward(self, scores):
        return scores

STUDY = dataclasses.replace(toy_study((0,), steps=2), variants=("QKV", "QKV@own-same"))
if GUARD:
    print(qk.study(STUDY, out="runs", workers=1).value.counts.done)
"""


@pytest.mark.parametrize("guard", ['__name__ == "__main__"', "True"])
def test_a_script_runs_its_own_study(
    guard: str, tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    """Its workers import the script; if they would run it again, that is refused."""
    (tmp_path / "mine.py").write_text(MAIN.replace("GUARD", guard), "utf-8")
    root = Path(__file__).parents[2]
    paths = {"PYTHONPATH": f"{root / 'src'}:{root}"}
    ended = run_python(["mine.py"], cwd=tmp_path, env=paths)
    if guard == "True":
        assert 'expected `if __name__ == "__main__":` before the call of qk.study' in ended.stderr
    else:
        assert (ended.stdout, ended.stderr) == ("2\n", "")


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_network_that_does_not_fit_is_refused(tmp_path: Path, dry_run: bool) -> None:
    network = dataclasses.replace(make_study().settings[0].network, max_tokens=2)
    with pytest.raises(QkvaryError, match="expected a network with max_tokens of at least 3"):
        qk.study(make_study(network=network), out=tmp_path, workers=1, dry_run=dry_run)
