"""Figures that the page names, from the tables and records of the other studies.

In the template ``{STUDY: FIGURE}`` is a figure with its interval, and ``{-STUDY: FIGURE}`` the same
with the other sign. FIGURE is one of

    VARIANT (SETTING) - REFERENCE (SETTING)      a planned contrast
    VARIANT - REFERENCE                          the same within a setting
    VARIANT in TABLE                             the difference to QKV
    mean VARIANT in TABLE
    networks without an attention skip, stuck    or ``their loss``, or that of ``the others``
    VARIANT over REFERENCE, SETTING over OTHER   how much more the variant changes from OTHER to
                                                 SETTING than the reference: paired by seed, an
                                                 interval of its own

``{likeness-over-training: NAME}`` is one of ``LIKENESS``, ``{rankings: PART of STUDY, ...}`` the
range of correlations, and ``{residuals: CASE}`` an error.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from qkvary.studies.results.statistics import Estimate, paired_t
from qkvary.text import numbers

STUDIES = Path(__file__).parents[2] / "ours"
LIKENESS_STUDY = "likeness-over-training"
PLACE = re.compile(r"\{(-?)([a-z-]+): ([^{}]+)\}")
SHARED = "@rotary"
"""The term of all variants of these studies, which the page omits."""
WITHOUT_ATTENTION_SKIP = ("feed-forward skip alone", "no skip")
FREQUENCIES = 3.05
"""Losses above are those of networks that learned the frequencies of bytes and no more."""
Row = Mapping[str, str]


def fill(template: str, tables: Mapping[str, Sequence[Row]]) -> str:
    """Return a template with its figures.

    Args:
        template: The text.
        tables: The rows of this folder's tables, by name.

    Raises:
        ValueError: if there is no such figure.
    """

    def write(place: re.Match[str]) -> str:
        sign, source, figure = place.groups()
        if source in tables:
            return _from_table(tables[source], source, figure)
        if source == LIKENESS_STUDY:
            return LIKENESS[figure](read_likeness())
        return _from_study(source, figure, -1 if sign else 1)

    return PLACE.sub(write, template)


def _from_table(rows: Sequence[Row], source: str, figure: str) -> str:
    if source == "residuals":
        return f"{float(_only(rows, case=figure)['error']):.2g}"
    part, _, names = figure.partition(" of ")
    chosen = [
        float(row[f"after_{part}"])
        for row in rows
        if row["study"] in names.split(", ") or f"{row['setting']} in {row['study']}" == names
        if row[f"after_{part}"]
    ]
    if not chosen:
        raise ValueError(f"expected a ranking, got {figure!r}")
    ends = sorted({numbers.fixed(end, 2) for end in (min(chosen), max(chosen))})
    return " to ".join(ends)


def _from_study(study: str, figure: str, sign: int) -> str:
    if figure.startswith("networks without an attention skip"):
        return _describe_stuck(study, figure)
    if " over " in figure:
        return show(compare_changes(study, *re.split(r" over |, ", figure)), sign)
    if figure.startswith("mean "):
        variant, _, table = figure.removeprefix("mean ").partition(" in ")
        row = _only(read_rows(study, "results"), variant=variant, table=table)
        return numbers.fixed(float(row["mean"]))
    if " in " in figure and " - " not in figure:
        variant, _, table = figure.partition(" in ")
        row = _only(read_rows(study, "results"), variant=variant, table=table)
    else:
        variant, _, reference = figure.partition(" - ")
        row = _only(read_rows(study, "contrasts"), variant=variant, reference=reference)
    low, high = sorted(sign * float(row[end]) for end in ("low", "high"))
    return _write(sign * float(row["difference"]), low, high)


def _describe_stuck(study: str, figure: str) -> str:
    losses = [
        float(row["value"])
        for row in read_rows(study, "runs")
        if row["setting"] in WITHOUT_ATTENTION_SKIP and row["value"]
    ]
    stuck = [loss for loss in losses if loss > FREQUENCIES]
    if figure.endswith(", stuck"):
        return f"{len(stuck)} of {len(losses)}"
    chosen = stuck if figure.endswith(", their loss") else [x for x in losses if x not in stuck]
    return " to ".join(sorted({numbers.fixed(end, 2) for end in (min(chosen), max(chosen))}))


def compare_changes(study: str, variant: str, reference: str, setting: str, other: str) -> Estimate:
    """Return how much more a variant changes from one setting to another than the reference."""
    found = {
        (row["variant"], row["setting"], row["seed"]): float(row["value"])
        for row in read_rows(study, "runs")
        if row["value"]
    }
    seeds = sorted({seed for _, _, seed in found})

    def change(label: str, seed: str) -> float:
        return found[label, setting, seed] - found[label, other, seed]

    return paired_t([change(variant, seed) - change(reference, seed) for seed in seeds])


@cache
def read_rows(study: str, table: str) -> tuple[Row, ...]:
    """Return the rows of a kept table, without what all variants have."""
    text = (STUDIES / study / "tables" / f"{table}.csv").read_text("utf-8").replace(SHARED, "")
    return tuple(csv.DictReader(text.splitlines()))


def _only(rows: Sequence[Row], **known: str) -> Row:
    found = [row for row in rows if all(row[key] == value for key, value in known.items())]
    if len(found) != 1:
        raise ValueError(f"expected one row with {known}, got {len(found)}")
    return found[0]


def show(estimate: Estimate, sign: int = 1, digits: int = 3, factor: float = 1.0) -> str:
    """Write an estimate with its interval."""
    low, high = estimate.low, estimate.high
    if estimate.mean is None or low is None or high is None:
        raise ValueError(f"expected an interval, got {estimate}")
    low, high = sorted(sign * factor * end for end in (low, high))
    return _write(sign * factor * estimate.mean, low, high, digits)


def _write(mean: float, low: float, high: float, digits: int = 3) -> str:
    # The page is plain text, whose hyphens are minus signs.
    text = f"{numbers.fixed(mean, digits)} {numbers.interval(low, high, digits)}"
    return text.replace(numbers.MINUS, "-")


# ---- likeness over training


@cache
def likeness_page() -> ModuleType:
    """Return the script that made that page."""
    name = "likeness_page"
    if name not in sys.modules:
        path = STUDIES / LIKENESS_STUDY / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"expected a script, got {path}")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@cache
def read_likeness() -> Any:
    """Return the records of that page."""
    runs = json.loads((STUDIES / LIKENESS_STUDY / "records.json").read_bytes())["runs"]
    known = dict.fromkeys(("question", "description"), "")
    return likeness_page().Likeness(
        **known, limits=(), environment={}, read_tokens=0, scored_tokens=0, runs=tuple(runs)
    )


def _excess(name: str, step: int) -> Callable[[Any], str]:
    """Return the writer of a likeness above that of random weights, in points."""

    def write(study: Any) -> str:
        page = likeness_page()
        found = page.over_seeds(study.apart, step, page.excess(*page.EXCESSES[name]))
        return show(found, digits=1, factor=100)

    return write


def _cosine(pair: str, digits: int) -> Callable[[Any], str]:
    def write(study: Any) -> str:
        page = likeness_page()
        return show(page.over_seeds(study.apart, study.steps[-1], page.cosine(pair)), digits=digits)

    return write


def _correlation(study: Any, at_the_end: bool) -> str:
    steps = study.steps[-1:] if at_the_end else study.steps[1:]
    return show(likeness_page().correlate(study, steps), digits=2)


def _rise(study: Any, layer: int, name: str, digits: int) -> str:
    page, last = likeness_page(), study.steps[-1]
    found = [
        page.rise(one, name)
        for run in study.apart
        for one in run["steps"]
        if one["step"] == last and one["layer"] == layer
    ]
    return show(paired_t(found), digits=digits)


def _all_tied(study: Any) -> str:
    return show(paired_t([run["greedy"][-1]["rise"] for run in study.apart]))


def _one_tied(study: Any) -> str:
    page, last = likeness_page(), study.steps[-1]
    alone = partial(page.rise, name="key_alone")
    return show(paired_t([page.over_layers(run, last, alone) for run in study.apart]))


def _trained(study: Any) -> str:
    page, last = likeness_page(), study.steps[-1]

    def loss(run: Any) -> float:
        found = [one["loss"] for one in run["steps"] if one["step"] == last]
        return sum(found) / len(found)

    return show(paired_t([loss(shared) - loss(run) for run, shared in page.pairs(study)]))


def _times(study: Any) -> str:
    page = likeness_page()
    return show(paired_t([page.ratio(run, study.steps[-1]) for run in study.apart]), digits=1)


def _others(study: Any) -> str:
    page, last = likeness_page(), study.steps[-1]
    layers = sorted({one["layer"] for one in study.apart[0]["steps"]})[1:]
    means: list[float] = []
    for layer in layers:
        found = [
            page.rise(one)
            for run in study.apart
            for one in run["steps"]
            if one["step"] == last and one["layer"] == layer
        ]
        means.append(sum(found) / len(found))
    return f"{min(means):.4f} to {max(means):.4f}"


LIKENESS: Mapping[str, Callable[[Any], str]] = {
    **{f"explained at step {step}": _excess("explained", step) for step in (0, 24, 48, 480)},
    **{f"tokens at step {step}": _excess("tokens", step) for step in (0, 480)},
    **{f"CKA at step {step}": _excess("CKA", step) for step in (24, 480)},
    "cosine of W_K and W_V": _cosine("key-value", 2),
    "cosine of W_Q and W_K": _cosine("query-key", 1),
    "all layers tied": _all_tied,
    "value made of the key": _one_tied,
    "trained with one tensor": _trained,
    "first layer tied": partial(_rise, layer=1, name="tied", digits=4),
    "other layers tied": _others,
    "correlation": partial(_correlation, at_the_end=False),
    "correlation at the end": partial(_correlation, at_the_end=True),
    "times the forecast": _times,
}
