import dataclasses

from qkvary.inference.benchmark.records import DecodeRecord
from qkvary.reports.decode_tables import (
    describe_facts,
    describe_networks,
    describe_provenance,
    gap_table,
    memory_table,
    name_runner,
    poster_table,
    speed_tables,
)
from qkvary.reports.tables import Table, one_line
from tests.inference.benchmark.made_up import ROTATED, make_record


def read(table: Table, title: str) -> list[str]:
    """A column by its title, and by what stands below where that tells it apart."""
    (place,) = (
        index
        for index, column in enumerate(table.columns)
        if title in {column.title, f"{column.title} {column.below}"}
    )
    return [one_line(row[place]) for row in table.rows]


def split(record: DecodeRecord) -> DecodeRecord:
    """With a second cache."""
    other = dataclasses.replace(ROTATED, layout="split")
    rows = [dataclasses.replace(row, cache=other) for row in record.speed if row.runner == "cache"]
    return dataclasses.replace(record, speed=(*record.speed, *rows))


def test_everybody_has_a_row() -> None:
    (table,) = speed_tables(make_record())
    assert table.title == "Speed: 1 answer of 256 tokens, float32"
    assert read(table, "variant") == [label for label in ("QKV", "Q-K=V", "MQA") for _ in range(4)]
    assert read(table, "answers")[:4] == [
        "cache",
        "prefix again",
        "transformers",
        "its static cache",
    ]
    assert read(table, "tokens/s")[:2] == ["1,200 [1,091, 1,200]", "100 [90.9, 100]"]
    assert read(table, "x prefix")[:2] == ["12.0 [12.0, 12.0]", "–"]
    assert read(table, "x transformers")[0] == "2.50 [2.50, 2.50]"
    assert read(table, "formula KiB")[:2] == ["2,040.0", "–"]
    assert read(table, "of stream")[0] == "91 %"
    assert "Cache: rotated, preallocated, auto" in table.notes[0]
    assert "intervals that hold at least 95 %" in table.notes[1]


def test_few_rounds_have_no_level() -> None:
    (table,) = speed_tables(make_record(rounds=3))
    assert "intervals from least to most" in " ".join(table.notes)


def test_caches_are_named_where_there_are_several() -> None:
    (table,) = speed_tables(split(make_record()))
    answers = read(table, "answers")
    assert "cache: rotated, preallocated, auto" in answers
    assert "cache: split, preallocated, auto" in answers
    assert name_runner("prefix", None) == "prefix again"
    plain = dataclasses.replace(ROTATED, storage="int4", group=32, kernel="layer")
    assert name_runner("cache", plain) == "cache: rotated, int4-g32"


def test_a_table_for_each_case() -> None:
    record = make_record()
    more = [
        dataclasses.replace(row, case=dataclasses.replace(row.case, batch=3))
        for row in record.speed
    ]
    tables = speed_tables(dataclasses.replace(record, speed=(*record.speed, *more)))
    assert [table.title for table in tables] == [
        "Speed: 1 answer of 256 tokens, float32",
        "Speed: 3 answers of 256 tokens, float32",
    ]
    assert len({table.key for table in tables}) == 2


def test_interpolated_times_are_told() -> None:
    record = make_record()
    row = dataclasses.replace(record.speed[1], timed_steps=9)
    (table,) = speed_tables(
        dataclasses.replace(record, speed=(record.speed[0], row, *record.speed[2:]))
    )
    assert table.notes[-1].startswith("Prefix again: 9 of the 240 tokens were timed")


def test_memory_is_told_apart() -> None:
    table = memory_table(make_record())
    assert read(table, "context")[-1] == "4,096"
    assert read(table, "formula")[-2:] == ["32.0", "–"]
    assert read(table, "peak")[-2:] == ["35.0", "35.0"]
    assert read(table, "beside it") == ["3.0"] * len(table.rows)
    assert read(table, "in all")[-1] == "47.0"
    assert "VmHWM" in table.notes[0]


def test_gaps_stand_beside_the_formula() -> None:
    table = gap_table(make_record())
    assert read(table, "from")[0] == "Q-K=V, split"
    assert read(table, "to")[0] == "Q-K=V, rotated"
    assert read(table, "formula") == read(table, "measured") == ["16.0", "16.0", "24.0"]
    assert read(table, "off by") == ["0.00"] * 3


def test_the_poster_comes_first_and_ours_last() -> None:
    table = poster_table(make_record())
    assert table is not None
    where = read(table, "where")
    assert where[0] == "the poster: 1.2B, bfloat16, A100"
    assert where[-1] == "measured here: 1 answer of 256 tokens, float32"
    assert read(table, "%")[0] == "−6.5 to −6.9"
    assert read(table, "%")[-1] == "+25.0"
    assert all(len(row) == 3 for row in table.rows)


def test_no_poster_without_its_variants() -> None:
    record = make_record()
    alone = tuple(row for row in record.speed if row.case.variant == "MQA")
    other = dataclasses.replace(record, speed=alone)
    assert poster_table(other) is None


def test_networks_and_machine_are_described() -> None:
    record = make_record()
    assert describe_networks(record) == (
        "QKV, Q-K=V and MQA: width 256, 4 layers, 4 heads, a vocabulary of 512, random weights "
        "(seed 0)."
    )
    assert dict(describe_facts(record))["stream, GB/s"] == "16.0"
    facts = dict(describe_provenance(record))
    assert facts["memory read in a row, GB/s"] == "16.0 [16.0, 16.0]"
    assert facts["chosen for heads 4, kv 1, width 64"] == "native"
    question = dataclasses.replace(record.question, checkpoint="model.bin")
    stored = dataclasses.replace(record, question=question)
    assert describe_networks(stored).endswith("the weights of model.bin.")
