"""Figures are found in the tables of kept reports."""

import dataclasses
import json
from pathlib import Path

import pytest

from qkvary.papers.claim import ByStudy, ClaimedRange
from qkvary.papers.kept_figures import KeptFigure, decode_kept, encode_kept
from qkvary.papers.kept_tables import read_kept
from qkvary.storage.errors import DamagedError

CONTRASTS = (
    "variant,reference,table,metric,pairs,difference,low,high,detectable\r\n"
    'Q-K=V,Q=K-V,"swap, sort",accuracy,7,0.1,0.05,0.15,0.06\r\n'
)
RESULTS = (
    "table,metric,variant,baseline,pairs,difference,low,high,detectable\r\n"
    '"swap, sort",accuracy,QKV,,,,,,\r\n'
    '"swap, sort",accuracy,Q-K=V,QKV,5,-0.02,-0.03,-0.01,0.02\r\n'
    '"swap, sort",accuracy,MQA,QKV,5,0.0,,,\r\n'
)
SOLVING = (
    "table,variant,runs,difference_steps,low_steps,high_steps\r\n"
    '"swap, sort",Q-K=V,6,35.0,11.6,58.4\r\n'
)
FIGURES = (
    "table,variant,reference,quantity,value,low,high,detectable,runs\r\n"
    "d 16,student,,error,2.0,1.9,2.1,0.1,5\r\n"
    "all,d 64,d 16,error,2.0,1.8,2.2,0.3,10\r\n"
)
COSTS = (
    "variant,task,parameters_total\r\n"
    'QKV,"swap, sort",18890.0\r\n'
    'Q-K=V,"swap, sort",16778.0\r\n'
    "Q-K=V,characters,101953.0\r\n"
)
RUNS = "state,run_key\r\n" + "".join(
    f"{state},{number}\r\n"
    for number, state in enumerate([*["done"] * 19, "diverged", "open"])
    # The first run belongs to two settings.
    for _ in range(2 if number == 0 else 1)
)

TABLES = {"contrasts": CONTRASTS, "results": RESULTS, "solving": SOLVING}
TABLES |= {"figures": FIGURES, "costs": COSTS, "runs": RUNS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tables = tmp_path / "made-up" / "tables"
    tables.mkdir(parents=True)
    for name, text in TABLES.items():
        (tables / f"{name}.csv").write_text(text, "utf-8")
    return tmp_path


def asked(variant: str, reference: str, quantity: str = "", table: str = "swap, sort") -> ByStudy:
    return ByStudy(
        study="made-up",
        table=table,
        variant=variant,
        reference=reference,
        quantity=quantity,
        claimed=ClaimedRange(above=0),
        unit="",
    )


@pytest.mark.parametrize(
    ("judge", "figure"),
    [
        (asked("Q-K=V", "Q=K-V"), (0.1, 0.05, 0.15, 0.06, 7, True, (16778, 16778))),
        (asked("Q-K=V", "QKV"), (-0.02, -0.03, -0.01, 0.02, 5, True, (16778, 18890))),
        (asked("Q-K=V", "QKV", "accuracy"), (-0.02, -0.03, -0.01, 0.02, 5, True, (16778, 18890))),
        (asked("MQA", "QKV"), (0.0, None, None, None, 5, True, (18890, 18890))),
        (asked("Q-K=V", "QKV", "steps_to_solve"), (35, 11.6, 58.4, None, 6, False, (16778, 18890))),
        (asked("student", "", "error", "d 16"), (2, 1.9, 2.1, 0.1, 5, False, (16778, 101953))),
        (asked("d 64", "d 16", "error", "all"), (2, 1.8, 2.2, 0.3, 10, False, (16778, 101953))),
    ],
)
def test_a_figure_is_found_with_its_interval(
    judge: ByStudy, figure: tuple[object, ...], folder: Path
) -> None:
    found = read_kept(folder, judge)
    assert found is not None
    assert found.folder == "made-up"
    fields = ("value", "low", "high", "detectable", "runs", "paired", "parameters")
    assert tuple(getattr(found, field) for field in fields) == figure


def test_runs_that_diverged_are_a_share_with_wilsons_interval(folder: Path) -> None:
    found = read_kept(folder, asked("all runs", "", "diverged", "all runs"))
    assert found is not None
    assert (found.value, found.runs) == (0.05, 20)
    # Wilson's interval of 1 in 20.
    assert (found.low, found.high) == (pytest.approx(0.0089, abs=1e-4), pytest.approx(0.2361, 1e-3))


def test_damaged_tables_are_refused(folder: Path) -> None:
    path = folder / "made-up" / "tables" / "results.csv"
    path.write_text(RESULTS.replace("-0.03", "low"), "utf-8")
    with pytest.raises(DamagedError, match="expected numbers in the tables of"):
        read_kept(folder, asked("Q-K=V", "QKV"))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DamagedError, match="expected a table of a report in"):
        read_kept(folder, asked("Q-K=V", "QKV"))


def test_kept_figures_are_written_and_read() -> None:
    fields = {"value": 0.1, "low": None, "high": 0.3, "detectable": None, "runs": 3}
    figure = KeptFigure(**fields, paired=False, folder="ours/made-up", parameters=(7, 11))
    fields |= {"value": -1e-9, "low": -1.0, "detectable": 0.5}
    plain = KeptFigure(**fields, paired=True, folder="made-up", parameters=None)
    kept = {"b": figure, "a | é": plain}
    text = encode_kept(kept)
    assert decode_kept(json.loads(text)) == kept
    assert text.index("a | é") < text.index('"b"')
    with pytest.raises(ValueError, match="kept figures: expected schema_version 1, got 2"):
        decode_kept({"schema_version": 2})


def test_a_table_of_several_networks_has_the_sizes_of_each() -> None:
    judge = dataclasses.replace(
        asked("Q=K-V", "QKV", table="characters"), study="chars-paper", unit="nats"
    )
    found = read_kept(Path(__file__).resolve().parents[2] / "studies", judge)
    assert found is not None
    # The means, which costs.csv has, are 973,185 and 1,059,201.
    assert found.parameters == (54_721, 2_703_425)
