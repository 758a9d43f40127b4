import dataclasses
from pathlib import Path

from qkvary.inference.benchmark.findings import find_answers, find_caveats
from qkvary.inference.benchmark.records import from_json
from qkvary.reports.decode import decode_report
from qkvary.reports.files import RECORD_NAME, make_files
from qkvary.reports.report import Group, walk
from qkvary.reports.tables import Table
from tests.inference.benchmark.made_up import make_record

ROOT = Path(__file__).resolve().parents[3]


def keys(memory: bool = True) -> list[str]:
    return [one.key for one in decode_report(make_record(memory=memory)).sections]


def test_a_measurement_says_what_was_found_and_its_limits() -> None:
    record = make_record()
    report = decode_report(record)
    assert report.answer == find_answers(record)
    assert report.caveats == find_caveats(record)
    facts = dict(report.facts)
    assert facts["contexts"] == "256"
    assert facts["rounds"] == "7"
    blocks = [block for one in report.sections for block in walk(one.blocks)]
    tables = [block.key for block in blocks if isinstance(block, Table)]
    assert tables == ["speed-1", "memory", "gaps", "poster"]
    assert sum(isinstance(block, Group) for block in blocks) == 2


def test_sections_without_figures_are_left_out() -> None:
    assert keys() == ["speed", "memory", "poster", "provenance"]
    assert keys(memory=False) == ["speed", "poster", "provenance"]
    record = make_record()
    alone = tuple(row for row in record.speed if row.case.variant == "MQA")
    report = decode_report(dataclasses.replace(record, speed=alone))
    assert "poster" not in {one.key for one in report.sections}


def test_the_record_is_kept_beside_what_follows_from_it() -> None:
    record = make_record()
    report = decode_report(record)
    assert from_json(report.record, where="here") == record
    assert len(report.data["speeds"]) == len(record.speed)
    assert report.data["speeds"][0]["ttft_seconds"].value > 0
    assert report.data["gaps"][0]["formula_bytes"] == 16_773_120


def test_kept_measurements_say_what_their_records_say() -> None:
    """A folder of studies that holds a record of this kind was written by this code."""
    for path in (ROOT / "studies" / "ours").glob(f"decode*/{RECORD_NAME}"):
        record = from_json(path.read_bytes(), where=str(path))
        for name, data in make_files(decode_report(record), ("html", "markdown")).items():
            assert (path.parent / name).read_bytes() == data
