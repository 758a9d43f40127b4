"""The transfer of a basis: its arithmetic, its students, its page."""

import dataclasses
import html
import json
import math
from pathlib import Path

import pytest
import torch

from qkvary.cli.main import main
from qkvary.reports.basis_page import CIRCULAR, basis_files
from qkvary.studies import basis_measurements
from qkvary.studies.basis_measurements import Student, draw_target, fit_linear, measure, score
from qkvary.studies.basis_transfer import (
    TARGETS,
    BasisRecord,
    BasisRun,
    agrees,
    find_target,
    from_json,
    linear_error,
    plan_runs,
    summarise_basis,
    to_json,
)
from qkvary.studies.results.statistics import detectable_difference

TINY = BasisRun(
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
    assert round(100 * linear_error(find_target(target), biases=biases), 1) == percent


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("biases", [False, True])
def test_what_is_fitted_comes_near_to_what_follows(target: str, biases: bool) -> None:
    run = dataclasses.replace(
        TINY, target=target.name, d=61, biases=biases, linear_samples=9_000, test_samples=4_000
    )
    function = draw_target(target, run.d, torch.Generator().manual_seed(1))
    error, cosine = score(fit_linear(function, run), function, run)
    assert error == pytest.approx(linear_error(target, biases=biases), rel=0.12)
    assert cosine == pytest.approx(math.sqrt(1 - error**2), abs=0.01)


def test_the_linear_map_is_that_of_least_squares() -> None:
    run = dataclasses.replace(TINY, ridge=0.0, biases=True)
    function = draw_target(find_target("plain"), 5, torch.Generator().manual_seed(2))
    found = fit_linear(function, run)
    x = torch.randn(90, 5, generator=basis_measurements._generator(3, -3))
    ones = torch.cat([x, torch.ones(90, 1)], dim=1)
    wanted = torch.linalg.lstsq(ones.double(), function(x).double()).solution
    torch.testing.assert_close(found(x), (ones.double() @ wanted).float())


def test_a_target_is_what_its_formula_says() -> None:
    for target in TARGETS:
        function = draw_target(target, 67, torch.Generator().manual_seed(4))
        x = torch.randn(3_000, 67, generator=torch.Generator().manual_seed(5))
        variance = function(x).square().mean().item()
        rest = linear_error(target, biases=False) ** 2 * variance
        assert target.linear_variance < variance < target.linear_variance + 1
        assert rest < variance


def test_a_student_has_a_skip_connection_and_biases_where_asked() -> None:
    student = Student(5, biases=False)
    assert [tuple(p.shape) for p in student.parameters()] == [(20, 5), (5, 20)]
    torch.nn.init.zeros_(student.second.weight)
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(6))
    assert torch.equal(student(x), x)
    assert len(list(Student(5, biases=True).parameters())) == 4


def test_a_run_is_a_function_of_its_configuration() -> None:
    first, again = measure(TINY), measure(TINY)
    figures = dict(first.figures), dict(again.figures)
    for one in figures:
        assert one.pop("seconds") > 0
    assert figures[0] == figures[1]
    other = measure(dataclasses.replace(TINY, seed=4))
    assert other.figures["student_error"] != first.figures["student_error"]
    assert TINY.key != dataclasses.replace(TINY, seed=4).key


def test_students_learn() -> None:
    longer = dataclasses.replace(TINY, steps=300, linear_samples=2_000, test_samples=2_000)
    figures = measure(longer).figures
    assert figures["student_error"] < figures["linear_error"] < 0.2
    assert figures["student_error"] < figures["half_way_error"]
    assert figures["student_cosine"] > 0.99


def test_records_are_read_as_they_were_written() -> None:
    record = BasisRecord(run=TINY, figures={"student_error": 0.25, "seconds": 1.5})
    assert from_json(json.loads(json.dumps(to_json(record)))) == record


@pytest.mark.parametrize(
    "data", [{}, {"version": 0, "run": {}, "figures": {}}, {"version": 1, "run": {"d": 1}}, []]
)
def test_what_is_no_record_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        from_json(data)  # type: ignore[arg-type]


def test_the_plan_has_every_reading_with_and_without_biases() -> None:
    runs = plan_runs(widths=(3, 7), seeds=(1, 2), steps=9)
    assert len(runs) == len({run.key for run in runs}) == 2 * 2 * 3 * 2
    assert {run.seed for run in runs[:12]} == {1}
    assert {run.steps for run in runs} == {9}


def made_up(target: str, d: int, seed: int, error: float) -> BasisRecord:
    run = BasisRun(target=target, d=d, biases=False, seed=seed)
    return BasisRecord(
        run=run,
        figures={
            "student_error": error + seed / 1e3,
            "half_way_error": 1.5 * error,
            "linear_error": linear_error(find_target(target), biases=False),
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
    files = basis_files("qkvary bench basis", {"torch": "2"}, records)
    assert set(files) == {"README.md", "report.html", "tables/results.csv", "records.json"}
    text = files["README.md"].decode()
    assert "infinite width: skip without biases 10.0 %, torch without biases 10.4 %." in text
    assert "Others: plain without biases 35.1 %." in text
    assert CIRCULAR in text
    assert "at most 0.00 points" in text
    assert "grows with the width in 3 of 3 readings" in text
    assert CIRCULAR in html.unescape(files["report.html"].decode())
    assert len(json.loads(files["records.json"])["records"]) == len(records)
    assert [agrees(one) for one in summarise_basis(records)] == [True] * 4 + [False] * 2
    assert files == basis_files("qkvary bench basis", {"torch": "2"}, records)


def test_the_page_names_the_smallest_difference_that_it_could_have_seen() -> None:
    records = [made_up("skip", d, seed, 0.04) for d in (5, 7) for seed in (0, 1, 2)]
    files = basis_files("c", {}, records)
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
    folder = Path(__file__).parents[2] / "studies" / "mlp-basis-transfer"
    kept = json.loads((folder / "records.json").read_text("utf-8"))
    records = [from_json(record) for record in kept["records"]]
    files = basis_files(kept["command"], kept["environment"], records)
    assert (folder / "README.md").read_bytes() == files["README.md"]


def test_the_page_of_one_seed_has_no_intervals() -> None:
    text = basis_files("c", {}, [made_up("skip", 5, 0, 0.04)])["README.md"].decode()
    assert "4.00 % at d 5;" in text
    assert "One width or one seed says nothing about that." in text
    assert "would have been seen" not in text


# ---- the command


def type_it(folder: Path, *more: str) -> int:
    where = ["--out", str(folder / "runs"), "--to", str(folder / "page")]
    return main(["bench", "basis", "--widths", "3", "--seeds", "0", "--steps", "2", *where, *more])


def test_what_was_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def once(run: BasisRun) -> BasisRecord:
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(run.key)
        return made_up(run.target, run.d, run.seed, 0.1)

    monkeypatch.setattr(basis_measurements, "measure", once)
    assert type_it(tmp_path) == 130
    assert not (tmp_path / "page").exists()
    kept = sorted((tmp_path / "runs" / "basis").glob("*.json"))
    assert [path.stem for path in kept] == sorted(made)
    made[:] = made[:1]
    kept[0].write_text("{}", "utf-8")
    monkeypatch.undo()
    assert type_it(tmp_path) == 0
    assert len(list((tmp_path / "runs" / "basis").glob("*.json"))) == 6
    assert (tmp_path / "page" / "README.md").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--widths", "3,x"], "expected widths such as 16,32,64 up to 4,096, got '3,x'"),
        (["--widths", "0"], "expected widths"),
        (["--steps", "1"], "expected at least 2 steps, got 1"),
    ],
)
def test_options_without_meaning_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--out", str(tmp_path), "--to", str(tmp_path)]
    assert main(["bench", "basis", *where, *words]) == 2
    assert message in capsys.readouterr().err
