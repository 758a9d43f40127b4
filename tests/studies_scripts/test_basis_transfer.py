"""The transfer of a basis: its arithmetic, its students, its page."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from qkvary.arch.canonical import stored_kind
from qkvary.studies.results.statistics import detectable_difference
from tests.studies_scripts.loading import folder_of, load_script

FOLDER = "mlp-basis-transfer"
runs, page, script = (load_script(FOLDER, name) for name in ("basis_runs", "basis_page", "measure"))

TINY = runs.BasisRun(
    target="skip", d=5, biases=False, seed=3, steps=8, batch=16, linear_samples=90, test_samples=70
)


@pytest.mark.parametrize(
    ("target", "biases", "percent"),
    [
        ("skip", False, 10.0),
        ("skip", True, 7.9),
        ("torch", False, 10.4),
        ("torch", True, 8.1),
        ("plain", False, 35.1),
        ("plain", True, 25.9),
    ],
)
def test_the_error_of_the_best_linear_map(target: str, biases: bool, percent: float) -> None:
    assert round(100 * runs.linear_error(runs.TARGETS[target], biases=biases), 1) == percent


@pytest.mark.parametrize("target", runs.TARGETS)
@pytest.mark.parametrize("biases", [False, True])
def test_what_is_fitted_comes_near_to_what_follows(target: str, biases: bool) -> None:
    run = dataclasses.replace(
        TINY, target=target, d=61, biases=biases, linear_samples=9_000, test_samples=4_000
    )
    function = script.draw_target(runs.TARGETS[target], run.d, torch.Generator().manual_seed(1))
    error, cosine = script.score(script.fit_linear(function, run), function, run)
    assert error == pytest.approx(runs.linear_error(runs.TARGETS[target], biases=biases), rel=0.12)
    assert cosine == pytest.approx(math.sqrt(1 - error**2), abs=0.01)


def test_the_linear_map_is_that_of_least_squares() -> None:
    run = dataclasses.replace(TINY, ridge=0.0, biases=True)
    function = script.draw_target(runs.TARGETS["plain"], 5, torch.Generator().manual_seed(2))
    found = script.fit_linear(function, run)
    x = torch.randn(90, 5, generator=script._generator(3, -3))
    ones = torch.cat([x, torch.ones(90, 1)], dim=1)
    wanted = torch.linalg.lstsq(ones.double(), function(x).double()).solution
    torch.testing.assert_close(found(x), (ones.double() @ wanted).float())


def test_a_student_has_a_skip_connection_and_biases_where_asked() -> None:
    student = script.Student(5, biases=False)
    assert [tuple(p.shape) for p in student.parameters()] == [(20, 5), (5, 20)]
    torch.nn.init.zeros_(student.second.weight)
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(6))
    assert torch.equal(student(x), x)
    assert len(list(script.Student(5, biases=True).parameters())) == 4


def test_a_run_is_a_function_of_its_configuration() -> None:
    first, again = script.measure(TINY), script.measure(TINY)
    figures = dict(first.figures), dict(again.figures)
    for one in figures:
        assert one.pop("seconds") > 0
    assert figures[0] == figures[1]
    other = script.measure(dataclasses.replace(TINY, seed=4))
    assert other.figures["student_error"] != first.figures["student_error"]
    assert TINY.key != dataclasses.replace(TINY, seed=4).key


def test_students_learn() -> None:
    longer = dataclasses.replace(TINY, steps=300, linear_samples=2_000, test_samples=2_000)
    figures = script.measure(longer).figures
    assert figures["student_error"] < figures["linear_error"] < 0.2
    assert figures["student_error"] < figures["half_way_error"]
    assert figures["student_cosine"] > 0.99


def test_records_are_read_as_they_were_written() -> None:
    record = runs.BasisRecord(run=TINY, figures={"student_error": 0.25, "seconds": 1.5})
    assert runs.from_json(json.loads(json.dumps(runs.to_json(record)))) == record


@pytest.mark.parametrize(
    "data", [{}, {"version": 0, "run": {}, "figures": {}}, {"version": 1, "run": {"d": 1}}, []]
)
def test_what_is_no_record_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        runs.from_json(data)  # type: ignore[arg-type]


def made_up(target: str, d: int, seed: int, error: float) -> Any:
    run = runs.BasisRun(target=target, d=d, biases=False, seed=seed)
    return runs.BasisRecord(
        run=run,
        figures={
            "student_error": error + seed / 1e3,
            "half_way_error": 1.5 * error,
            "linear_error": runs.linear_error(runs.TARGETS[target], biases=False),
            "student_cosine": 0.99,
            "linear_cosine": 0.9,
            "seconds": 1.0,
        },
    )


def test_the_page_says_what_agrees_and_that_it_is_circular() -> None:
    records = [
        made_up(target, d, seed, error)
        for target, error in (("plain", 0.2), ("skip", 0.04), ("torch", 0.06))
        for d, error in ((5, error), (7, 2 * error))
        for seed in (0, 1, 2)
    ]
    files = page.basis_files({"torch": "2"}, records)
    assert set(files) == {"README.md", "tables/results.csv", "tables/figures.csv", "records.json"}
    text = files["README.md"].decode()
    assert "infinite width: skip without biases 10.0 %, torch without biases 10.4 %." in text
    assert "Others: plain without biases 35.1 %." in text
    assert page.CIRCULAR in text
    assert "at most 0.00 points" in text
    assert "grows with the width in 3 of 3 readings" in text
    assert len(json.loads(files["records.json"])["records"]) == len(records)
    assert [one.agrees for one in runs.summarise(records)] == [True] * 4 + [False] * 2
    assert files == page.basis_files({"torch": "2"}, records)


def test_the_page_names_the_smallest_difference_that_it_could_have_seen() -> None:
    records = [made_up("skip", d, seed, 0.04) for d in (5, 7) for seed in (0, 1, 2)]
    files = page.basis_files({}, records)
    text = files["README.md"].decode()
    size = detectable_difference(0.001, 3)
    assert size is not None
    assert f"such as the printed, by {100 * size:.2f} points would have been seen with 80 %" in text
    rows = files["tables/results.csv"].decode().splitlines()
    column = rows[0].split(",").index("student_detectable")
    assert [float(row.split(",")[column]) for row in rows[1:]] == pytest.approx([size, size])
    assert "no reading's error is seen to grow from the smallest to the largest width" in text
    between = detectable_difference(0.001 * math.sqrt(2), 3, degrees=4)
    assert between is not None
    assert f"(a difference of {100 * between:.2f} points would have been seen)" in text


def test_the_page_that_is_kept_is_that_of_its_records() -> None:
    folder = folder_of(FOLDER)
    kept = json.loads((folder / "records.json").read_text("utf-8"))
    records = [runs.from_json(record) for record in kept["records"]]
    files = page.basis_files(kept["environment"], records)
    assert (folder / "README.md").read_bytes() == files["README.md"]
    for name in ("tables/results.csv", "tables/figures.csv"):
        assert (folder / name).read_bytes() == files[name], name


def test_the_page_of_one_seed_has_no_intervals() -> None:
    text = page.basis_files({}, [made_up("skip", 5, 0, 0.04)])["README.md"].decode()
    assert "4.00 % at d 5;" in text
    assert "One width or one seed says nothing about that." in text
    assert "would have been seen" not in text


def test_a_run_keeps_its_name() -> None:
    # Kept runs are found by it.
    run = runs.BasisRun(target="skip", d=16, biases=False, seed=0)
    assert stored_kind(runs.BasisRun) == "BasisRun"
    assert run.key == "9a460849f869cb890ca5eb28536fa791b4dac94cba4c631ee8ca44b4f543de9f"


def test_what_was_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def once(run: Any) -> Any:
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(run.key)
        return made_up(run.target, run.d, run.seed, 0.1)

    where = ["--out", str(tmp_path / "runs"), "--to", str(tmp_path / "page")]
    words = ["--widths", "3", "--seeds", "0", "--steps", "2", *where]
    monkeypatch.setattr(script, "measure", once)
    with pytest.raises(KeyboardInterrupt):
        script.main(words)
    assert not (tmp_path / "page").exists()
    kept = sorted((tmp_path / "runs" / "basis").glob("*.json"))
    assert [path.stem for path in kept] == sorted(made)
    kept[0].write_text("{}", "utf-8")
    monkeypatch.undo()
    script.main(words)
    assert len(list((tmp_path / "runs" / "basis").glob("*.json"))) == 6
    assert len(json.loads((tmp_path / "page" / "records.json").read_text("utf-8"))["records"]) == 6


def test_options_without_meaning_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main(["--widths", "0"])
    assert "expected widths from 1 and steps from 2, got [0], 4000" in capsys.readouterr().err
