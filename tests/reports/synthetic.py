"""A study that never ran: records with the shape and the accidents of real ones."""

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from qkvary.costs.network import network_costs
from qkvary.papers.key_value.protocols import quick_characters, quick_sequences
from qkvary.papers.recomputation import published_tables
from qkvary.reports.attention_maps import RunAttention
from qkvary.studies.records import Record
from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import Summary
from qkvary.studies.study import Cell, Study
from qkvary.text.names import typed_seeds
from tests.studies import made_up

VARIANTS = (
    "QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=K=V", "(Q=K=V)+",
    "GQA-2", "MQA", "Q-GQA-2", "Q-MQA", "I-K-V", "I-K=V",
)  # fmt: skip
CONTRASTS = (("I-K=V", "Q=K=V"), ("Q-K=V", "Q=K-V"), ("MQA", "QKV"), ("Q-K=V", "QKV"))
"""Those whose variants are there are planned."""
TASKS = ("reverse", "sort", "swap", "characters")
HORIZON = 450
_SKILL = (0.95, 0.93, 0.945, 0.94, 0.72, 0.83, 0.945, 0.93, 0.93, 0.91, 0.955, 0.90)
_ACCIDENTS = {
    ("reverse", "Q=K=V", 2): ("diverged", "the loss became NaN at step 120"),
    ("sort", "(Q=K=V)+", 1): ("failed", "MemoryError: the worker ran out of memory"),
    ("characters", "I-K=V", 4): ("missing", ""),
}


def make_study(variants: Sequence[str] = VARIANTS, seeds: int = 5) -> Study:
    tasks = [
        quick_sequences(name, steps=HORIZON, learning_rate=1e-3)
        for name in ("reverse", "sort", "swap")
    ]
    settings = [dataclasses.replace(one, name=f"{one.name} n=16") for one in tasks]
    return Study(
        name="quickstart",
        question="Do transformers need three projections, when all train under one protocol?",
        description="Every variant of the papers on three synthetic tasks and on characters.",
        settings=(*settings, quick_characters()),
        variants=tuple(variants),
        baseline=variants[0],
        seeds=tuple(range(seeds)),
        contrasts=tuple(pair for pair in CONTRASTS if set(pair) <= set(variants)),
        published=published_tables("three-projections-table-2"),
    )


def _draw(cell: Cell, place: int) -> tuple[float, int | None, float]:
    """Return a score, the steps until solved and the seconds of a run."""
    noise = random.Random(f"{cell.setting}{place}{cell.seed}")
    shared = random.Random(f"{cell.setting}{cell.seed}").gauss(0, 1)
    skill = _SKILL[place % len(_SKILL)]
    seconds = (20.0 if place % 12 in (2, 5) else 14.0) * (1 + noise.gauss(0, 0.03))
    if cell.setting == "characters":
        return (
            1.72 + (0.95 - skill) * 0.8 + shared * 0.01 + noise.gauss(0, 0.003),
            None,
            seconds * 2,
        )
    hard = {"reverse n=16": 0.10, "sort n=16": 0.04, "swap n=16": 0.2}[cell.setting]
    score = 1 - hard * (1.15 - skill) * 3 + shared * 0.01 + noise.gauss(0, 0.004)
    steps = 260 + 900 * (0.97 - skill) + shared * 30 + noise.gauss(0, 20)
    return min(score, 1.0), None if steps > HORIZON else int(steps // 10 * 10), seconds


def make_record(cell: Cell, place: int, status: str, message: str) -> Record:
    score, steps, seconds = _draw(cell, place)
    name = "loss" if cell.setting == "characters" else "accuracy"
    metrics: dict[str, float | None] = {
        f"test_{name}": score,
        f"validation_{name}": score + 0.001,
        "final_train_loss": 0.2,
        "steps_to_solve": steps,
    }
    if status != "done":
        metrics = {f"test_{name}": math.nan if status == "diverged" else None}
    return made_up.make_record(
        cell,
        status,
        config={},
        message=message,
        metric=f"test_{name}",
        higher_is_better=name == "accuracy",
        metrics=metrics,
        costs=network_costs(cell.run.network, length=cell.run.sequence_length).to_dict(),
        timing={
            "training_seconds": seconds,
            "total_seconds": seconds * 1.06,
            "steps_per_second": HORIZON / seconds,
        },
        environment={"qkvary": "0.1.0", "commit": "3bcadec0f1", "cpu": "AMD EPYC 7763"},
    )


def _events(cell: Cell, place: int) -> list[dict[str, Any]]:
    noise = random.Random(f"{cell.setting}{place}{cell.seed} events")
    rate = (0.006 + 0.01 * (_SKILL[place % len(_SKILL)] - 0.6)) * (1 + noise.gauss(0, 0.15))
    pace = 0.045 if place % 12 in (2, 5) else 0.031
    events: list[dict[str, Any]] = []
    for step in range(0, HORIZON + 1, 10):
        way = 1 / (1 + math.exp(-(step - 1.6 / rate) * rate * 3))
        loss = 2.3 - 2.1 * way + abs(noise.gauss(0, 0.02))
        place_in_time = {"step": step, "seconds": step * pace}
        events.append({"event": "train", "loss": loss, **place_in_time})
        accuracy = {} if cell.setting == "characters" else {"accuracy": 0.1 + 0.88 * way}
        events.append({"event": "validation", "loss": loss + 0.01, **accuracy, **place_in_time})
    return events


@cache
def make_summary(variants: Sequence[str] = VARIANTS, seeds: int = 5) -> Summary:
    """Summarise the study that never ran."""
    study = make_study(variants, seeds)
    records: list[Record] = []
    curves: dict[str, list[dict[str, Any]]] = {}
    order = {cell.variant: None for cell in study.cells()}
    places = {label: place for place, label in enumerate(order)}
    for cell in study.cells():
        place = places[cell.variant]
        accident = (cell.run.task.name, cell.variant, cell.seed)
        status, message = _ACCIDENTS.get(accident, ("done", ""))
        if status != "missing":
            records.append(make_record(cell, place, status, message))
            curves[cell.run_key] = _events(cell, place)
    command = f"qkvary study {study.name} --seeds {typed_seeds(study.seeds)}"
    return summarise(study, records, curves=curves, commands=(command,))


NAMES = (
    "study", "question", "description", "answers", "caveats", "sentences", "variant", "variants",
    "name", "setting", "settings", "task", "tasks", "metric", "axis_title", "dominated_by",
    "left_out", "quantity", "title", "source", "unit", "note", "column", "not_compared", "message",
    "run_key", "metrics", "parameters", "environments", "started", "ended", "table", "sentence",
    "reference", "answer",
)  # fmt: skip
"""Every field of the summary that holds text from outside."""


def renamed(value: Any, text: str, field: str = "") -> Any:
    """Return a summary with a text in front of each of its own; flags and keys of ours stay."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            part.name: renamed(getattr(value, part.name), text, part.name)
            for part in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(renamed(part, text, field) for part in value)
    if isinstance(value, str) and field in NAMES and value not in {"", "total"}:
        return text + value
    return value


def make_attention(summary: Summary, length: int = 16) -> tuple[RunAttention, ...]:
    """Make attention maps that look for the target cell, better or worse."""
    made: list[RunAttention] = []
    settings: Mapping[str, str] = {run.setting: run.task for run in summary.runs}
    for place, setting in enumerate(settings):
        if place == TASKS.index("characters"):
            continue
        flipped = [length - 1 - row for row in range(length)]
        half = [(row + length // 2) % length for row in range(length)]
        targets = flipped if place == 0 else half
        for index, variant in enumerate(summary.variants):
            drawn = np.random.default_rng(place * 100 + index)
            scores = drawn.normal(size=(2, 2, length, length))
            scores[1, 0, range(length), targets] += 3 + 2 * _SKILL[index % len(_SKILL)]
            weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            made.append(
                RunAttention(
                    setting=setting,
                    variant=variant,
                    seed=0,
                    run_key="",
                    maps=weights,
                    tokens=tuple(str(drawn.integers(10)) for _ in range(length)),
                    targets=(None,) * length if place == 1 else tuple(targets),
                )
            )
    return tuple(made)
