"""The options of a study are read once and refused in a sentence."""

import dataclasses
from pathlib import Path

import pytest

from qkvary.api.options import Part, choose_study, read_seeds
from qkvary.data.checkpoint_names import RUNS
from qkvary.storage.errors import UsageError
from qkvary.studies.catalog import load_study


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("7", (7,)), ("0,1,2", (0, 1, 2)), ("3-5", (3, 4, 5)), ("9, 0-1", (9, 0, 1)), ("4-4", (4,))],
)
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert read_seeds(text, "seeds") == seeds
    assert read_seeds(list(seeds), "seeds") == seeds


OTHER = ["", "-1", "1-", "a", "1,,2", "1.5", "0x2", "5-3", 2.5, b"01", True, {1: 2}]


@pytest.mark.parametrize("given", OTHER)
def test_other_seeds_are_refused(given: object) -> None:
    with pytest.raises(
        UsageError, match=r"expected (seeds such as 7 or 0,1,2 or 0-4|the smaller seed first)"
    ):
        read_seeds(given, "seeds")


@pytest.mark.parametrize("given", ["0-99999999", "1,2,5-10005", f"0-{10**30}", range(10**12)])
def test_more_seeds_than_anyone_means_are_refused(given: object) -> None:
    with pytest.raises(UsageError, match=r"expected at most 1,000 seeds, got 1[0-9,]+$"):
        read_seeds(given, "seeds")


def test_options_change_every_run_of_a_study() -> None:
    part = Part(seeds=(11, 13), device="cuda:1", dtype="float64")
    runs = [cell.run for cell in choose_study("quickstart", part).cells()]
    assert {(run.seed, run.device, run.dtype) for run in runs} == {
        (11, "cuda:1", "float64"),
        (13, "cuda:1", "float64"),
    }


def test_a_study_keeps_its_device_and_dtype(tmp_path: Path) -> None:
    own = dataclasses.replace(load_study("quickstart"), device="cuda:1", dtype="float64")
    (tmp_path / "mine.py").write_text(
        "import dataclasses\n"
        "from qkvary.papers.ours.studies import quickstart\n"
        "STUDY = dataclasses.replace(quickstart.STUDY, device='cuda:1', dtype='float64')\n",
        "utf-8",
    )
    for given in (own, tmp_path / "mine.py"):
        kept = choose_study(given, Part(seeds=(3,)))
        assert (kept.device, kept.dtype, kept.seeds) == ("cuda:1", "float64", (3,))
        changed = choose_study(given, Part(device="cpu", dtype="float32"))
        assert (changed.device, changed.dtype) == ("cpu", "float32")
    for study, part in (
        (dataclasses.replace(own, device="gpu"), Part()),
        (own, Part(device="gpu")),
    ):
        with pytest.raises(UsageError, match="expected a device such as cpu"):
            choose_study(study, part)


def test_options_select_a_part_of_a_study() -> None:
    part = Part(tasks=("swap",), variants=("q,k=v",), seeds=(3,))
    study = choose_study("quickstart", part)
    assert {(cell.run.task.name, cell.variant, cell.seed) for cell in study.cells()} == {
        ("swap", "QKV", 3),
        ("swap", "Q-K=V", 3),
    }
    assert study.description.endswith("This is the part with task swap and variant Q-K=V.")
    assert part.write_command("report", "Quickstart", RUNS) == (
        "qkvary report Quickstart --task swap --variant q,k=v --seeds 3"
    )
    own = Part(protocol="clean", settings=("a b",))
    assert own.write_command("study", "my studies/mine.py", Path("some runs")) == (
        "qkvary study 'my studies/mine.py' --protocol clean --setting 'a b' --out 'some runs'"
    )
    other = Part(device="cuda", dtype="float64")
    assert other.write_command("study", "quickstart", RUNS) == (
        "qkvary study quickstart --device cuda --dtype float64"
    )
    whole = {cell.run_key for cell in load_study("quickstart").cells()}
    zero = choose_study("quickstart", Part(tasks=("swap",), seeds=(0,)))
    assert {cell.run_key for cell in zero.cells()} <= whole
