"""A made-up decode benchmark with round figures, so that results are easy to check."""

import dataclasses

from decoding.networks import Sizes, cache_formula_bytes, make_network
from decoding.records import (
    CacheChoice,
    DecodeCase,
    DecodeQuestion,
    DecodeRecord,
    Fact,
    MeasurementSettings,
    MemoryRow,
    Runner,
    SpeedRow,
    Times,
)
from qkvary.arch.caches import CacheLayout, CacheOptions

VARIANTS = ("QKV", "Q-K=V", "MQA")
ROUNDS, TOKENS, CONTEXT, LONG = 7, 240, 256, 4096
STOCK: dict[Runner, float] = {"transformers": 0.5, "transformers-static": 0.6}
SECONDS: dict[Runner, float] = {"cache": 0.2, "prefix": 2.4, **STOCK}
"""Of an answer of QKV."""
FASTER = {"QKV": 1.0, "Q-K=V": 1.25, "MQA": 2.0}
"""Of the cache, against QKV's."""
ROTATED = CacheOptions(layout="rotated", storage="preallocated", kernel="auto")
MOMENTARY = 3 * 2**20
"""The bytes that an answer takes besides its cache."""


def make_record() -> DecodeRecord:
    """A record of three variants on one case."""
    question = DecodeQuestion(
        networks=tuple(make_network(label, Sizes()) for label in VARIANTS),
        checkpoint=None,
        contexts=(CONTEXT,),
        batches=(1,),
        dtypes=("float32",),
        caches=(CacheChoice(),),
        stock=tuple(STOCK),
        settings=MeasurementSettings(
            new_tokens=TOKENS,
            rounds=ROUNDS,
            prefix_steps=TOKENS,
            memory_context=LONG,
            memory_chunk=128,
            threads=1,
            device="cpu",
            seed=0,
        ),
    )
    return DecodeRecord(
        question=question,
        command="qkvary bench decode",
        environment=(Fact(name="torch", value="2.13"), Fact(name="cpu", value="a processor")),
        kernels=(Fact(name="heads 4, kv 1, width 64", value="native"),),
        started="2026-01-02T03:04:05+00:00",
        ended="2026-01-02T03:14:05+00:00",
        stream_bytes_per_second=(16e9,) * ROUNDS,
        speed=tuple(make_speed(label, runner) for label in VARIANTS for runner in SECONDS),
        memory=tuple(make_memories()),
        notes=(),
    )


def make_case(label: str, context: int = CONTEXT) -> DecodeCase:
    return DecodeCase(variant=label, context=context, batch=1, dtype="float32")


def make_speed(label: str, runner: Runner) -> SpeedRow:
    """Every other round takes a tenth longer for all runners."""
    whole = SECONDS[runner] / (FASTER[label] if runner == "cache" else 1.0)
    pace = [1.0 + 0.1 * (turn % 2) for turn in range(ROUNDS)]
    own = runner == "cache"
    held = 0 if runner == "prefix" else formula_bytes(label if own else "QKV", "rotated", CONTEXT)
    seconds, first = (tuple(whole * one / part for one in pace) for part in (1, 100))
    return SpeedRow(
        case=make_case(label),
        runner=runner,
        cache=ROTATED if own else None,
        times=Times(
            seconds=seconds,
            first_seconds=first,
            cpu_seconds=seconds,
            first_cpu_seconds=first,
        ),
        timed_steps=TOKENS,
        equal_tokens=TOKENS,
        cache_formula_bytes=held,
        cache_bytes=held,
        step_read_bytes=12e6 if own else None,
        parameters=3_000_000,
        notes=(),
    )


def make_memories() -> list[MemoryRow]:
    rows = [make_memory(label, "rotated", CONTEXT) for label in VARIANTS]
    rows += [make_memory(label, "rotated", LONG) for label in VARIANTS]
    rows.append(make_memory("Q-K=V", "split", LONG))
    plain = make_memory("QKV", "rotated", LONG)
    changes = {"runner": "transformers", "cache": None, "cache_formula_bytes": None}
    return [*rows, dataclasses.replace(plain, **changes)]


def make_memory(label: str, layout: CacheLayout, context: int) -> MemoryRow:
    held, before = formula_bytes(label, layout, context), 200 * 2**20
    return MemoryRow(
        case=make_case(label, context),
        runner="cache",
        cache=dataclasses.replace(ROTATED, layout=layout),
        source="VmHWM",
        new_tokens=16,
        weight_bytes=12 * 2**20,
        before_bytes=before,
        peak_bytes=before + held + MOMENTARY,
        cache_formula_bytes=held,
        cache_bytes=held,
    )


def formula_bytes(label: str, layout: CacheLayout, context: int) -> int:
    options = dataclasses.replace(ROTATED, layout=layout)
    network = make_network(label, Sizes())
    return cache_formula_bytes(network, options, tokens=context - 1, batch=1, dtype="float32")
