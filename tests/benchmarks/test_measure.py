"""The cases, runners and records of the benchmark; no test asserts a time."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from decoding import measure as measurements
from decoding.measure import MEMORY_PROCESSES, MEMORY_TOKENS, measure
from decoding.memory import MemoryJob, MemoryReading, measure_here
from decoding.networks import Sizes, cache_formula_bytes, make_network
from decoding.records import DecodeQuestion, DecodeRecord, from_json, to_json
from qkvary.checkpoints.models import save_model
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import ResourceError
from tests.benchmarks.made_up import make_record

SIZES = Sizes(d_model=24, num_layers=2, num_heads=3, vocabulary=29)
USUAL = make_record().question
FEW = {"new_tokens": 7, "rounds": 2, "prefix_steps": 7, "memory_context": None, "memory_chunk": 8}
READING = MemoryReading("VmHWM", 100, 1000, 1700, 500)


def ask(*labels: str, settings: Mapping[str, Any] = {}, **changes: Any) -> DecodeQuestion:
    """The usual question about small networks and few tokens."""
    asked = {"networks": tuple(make_network(label, SIZES) for label in labels), "contexts": (16,)}
    measured = dataclasses.replace(USUAL.settings, **{**FEW, **settings})
    return dataclasses.replace(USUAL, settings=measured, **{**asked, **changes})


@pytest.fixture(autouse=True)
def short_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "STREAM_BYTES", 2**16)


def answer(question: DecodeQuestion) -> DecodeRecord:
    return measure(question, command="typed", log=lambda _: None)


def test_all_runners_answer_every_case_in_every_round() -> None:
    lines: list[str] = []
    question = ask("QKV", "Q-MQA", contexts=(16, 19), batches=(2,))
    record = measure(question, command="typed", log=lines.append)
    assert len(record.speed) == 2 * 2 * 4
    for row in record.speed:
        times = row.times
        assert [len(one) for one in dataclasses.astuple(times)] == [2] * 4
        assert all(first < whole for first, whole in zip(times.first_seconds, times.seconds))  # noqa: B905
        assert row.equal_tokens == row.timed_steps == 7
        assert row.cache_bytes == row.cache_formula_bytes
    assert len(record.stream_bytes_per_second) == 2 * 2
    assert [text.partition(":")[0] for text in lines] == [
        f"speed at {context} tokens, batch 2, float32" for context in (16, 19)
    ]
    assert record.command == "typed"
    assert from_json(to_json(record), where="here") == record


def test_memory_is_measured_of_every_case_and_of_a_long_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs: list[MemoryJob] = []

    def read(job: MemoryJob) -> MemoryReading:
        jobs.append(job)
        return READING

    monkeypatch.setattr(measurements, "measure_in_subprocess", read)
    settings = {"memory_context": 64, "new_tokens": 7}
    record = answer(ask("QKV", "Q-K=V", settings=settings))
    found = [
        (row.case.variant, row.case.context, row.runner, row.cache and row.cache.layout)
        for row in record.memory
    ]
    usual = record.memory[0].cache
    assert usual is not None
    own = usual.layout
    # Both are of one size in transformers, and are measured there once.
    assert found == [
        ("QKV", 16, "cache", own),
        ("QKV", 16, "transformers", None),
        ("Q-K=V", 16, "cache", own),
        ("QKV", 64, "cache", own),
        ("QKV", 64, "transformers", None),
        ("Q-K=V", 64, "cache", own),
        ("Q-K=V", 64, "cache", "split"),
    ]
    assert all(job == jobs[index - index % MEMORY_PROCESSES] for index, job in enumerate(jobs))
    for job, row in zip(jobs[::MEMORY_PROCESSES], record.memory, strict=True):
        assert job.cache == row.cache
        assert job.prompt_tokens + job.new_tokens == row.case.context
        assert job.network.config.max_tokens == row.case.context
        assert job.new_tokens == row.new_tokens == min(7, MEMORY_TOKENS)
        assert job.chunk == 8
        assert (row.answer_bytes, row.total_bytes) == (700, 800)
        if row.cache is not None:
            asked = {"tokens": row.case.context - 1, "batch": 1, "dtype": "float32"}
            formula = cache_formula_bytes(job.network.config, row.cache, **asked)
            assert row.cache_formula_bytes == formula


def test_a_process_that_dies_loses_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(job: MemoryJob) -> MemoryReading:
        if job.prompt_tokens > 32:
            raise ResourceError("the process that measures memory ended with code -9")
        return READING

    monkeypatch.setattr(measurements, "measure_in_subprocess", read)
    record = answer(ask("QKV", stock=(), settings={"memory_context": 64}))
    assert [row.case.context for row in record.memory] == [16]
    (note,) = record.notes
    assert "QKV, 1 answer of 64 tokens, float32: the process that" in note
    assert note.endswith("ended with code -9.")


def test_a_checkpoint_is_measured_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "measure_in_subprocess", measure_here)
    config = dataclasses.replace(make_network("Q-GQA-1@rotary", SIZES), max_tokens=40)
    save_model(tmp_path / "model", LanguageModel(config, seed=7))
    asked = {"networks": (config,), "checkpoint": str(tmp_path / "model"), "stock": ()}
    record = answer(ask(settings={"memory_context": 0}, **asked))
    assert {row.case.variant for row in record.speed} == {"Q-MQA@rotary"}
    assert record.memory[0].weight_bytes == 4 * record.speed[0].parameters
