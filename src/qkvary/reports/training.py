"""The report of a training: its curve, its loss in plain numbers, its text, then comparisons."""

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from qkvary.reports import svg
from qkvary.reports.attention_maps import AttentionMaps
from qkvary.reports.learning_curves import thinned
from qkvary.reports.report import Block, Chart, Code, Group, Report, Section
from qkvary.reports.shared_terms import drop_shared_terms
from qkvary.reports.study import study_report
from qkvary.reports.tables import Cell, Column, Table, named, plain
from qkvary.reports.variant_styles import family_of
from qkvary.studies.results.summary import LearningCurve, RunRow, Summary
from qkvary.text import names, numbers, units

COMPARING = ("results", "frontiers", "solving", "published")
"""The sections of a study's report that need several variants."""
_COUNTS = ("variants", "all variants with", "tasks")
"""Facts that are 1 where nothing is compared."""
_POINTS = 200
_WIDTH, _HEIGHT = 560.0, 320.0
_AREA = (56.0, 26.0, _WIDTH - 116, _HEIGHT - 40)
_TEXT_WIDTH = 96
_LABEL_HEIGHT = 14.0
_SCORES = (
    ("test_loss", "loss", "nats per token"),
    ("test_perplexity", "perplexity", ""),
    ("test_bits_per_byte", "bits", "per byte"),
    ("final_train_loss", "training loss", "nats per token"),
)


def training_report(
    summary: Summary, texts: Mapping[str, str], attention: Sequence[AttentionMaps] = ()
) -> Report:
    """Return the report of a training.

    Args:
        summary: The results of its runs.
        texts: Texts that the networks wrote, by the titles of their runs.
        attention: One example per variant, if any.
    """
    study = study_report(summary, attention)
    compares = len(summary.variants) > 1
    shown, shared = drop_shared_terms(summary) if compares else (summary, "")
    learnt = tuple(_describe(shown, variant) for variant in shown.variants)
    texts = {title.removesuffix(f"@{shared}"): text for title, text in texts.items()}
    kept = [one for one in study.sections if compares or one.key not in COMPARING]
    return dataclasses.replace(
        study,
        subject=f"training: {summary.study.removeprefix('train ')}",
        lead=summary.description,
        answer=(*learnt, *(study.answer if compares else summary.headline)),
        picture=_picture(shown),
        caveats=study.caveats if compares else (),
        facts=tuple(fact for fact in study.facts if compares or fact[0] not in _COUNTS),
        sections=(*_texts(texts), _scores(shown), *kept),
        data={**study.data, "texts": texts},
    )


def _describe(summary: Summary, variant: str) -> str:
    """Return the loss of a variant in plain numbers."""
    runs = [run for run in summary.runs if run.variant == variant]
    done = [dict(run.metrics) for run in runs if run.state == "done"]
    losses = [loss for one in done if (loss := one.get("test_loss")) is not None]
    if not losses:
        states = names.listed(
            [
                f"{sum(run.state == state for run in runs)} {state}"
                for state in dict.fromkeys(run.state for run in runs)
            ]
        )
        return f"{variant} has no finished run: {states}."
    loss = math.fsum(losses) / len(losses)
    bits = [one.get("test_bits_per_byte") for one in done]
    known = [value for value in bits if value is not None]
    per_byte = ""
    if known:
        per_byte = f", or {numbers.real(math.fsum(known) / len(known), 4)} bits per byte"
    seeds = f" (the mean of {len(losses)} seeds)" if len(losses) > 1 else ""
    return (
        f"{variant} ended with a loss of {numbers.real(loss, 4)} nats per token on held-out text: "
        f"a perplexity of {numbers.real(math.exp(loss), 4)}{per_byte}{seeds}."
    )


def _scores(summary: Summary) -> Section:
    columns = [
        Column(key="variant", title="variant", numeric=False),
        Column(key="seed", title="seed"),
        *(Column(key=key, title=title, below=unit) for key, title, unit in _SCORES),
        Column(key="training_seconds", title="training"),
        Column(key="state", title="state", numeric=False),
    ]
    return Section(
        key="scores",
        title="Scores",
        lead="The loss on held-out text at the end. Perplexity is its exponential: the number of "
        "equally likely tokens among which the network would be as unsure. Bits per byte compare "
        "networks with different tokenizers.",
        blocks=(
            Table(
                key="scores",
                title="Scores",
                columns=tuple(columns),
                rows=tuple(
                    (
                        named(run.variant),
                        plain(run.seed),
                        *(_score(run, key) for key, _, _ in _SCORES),
                        plain(run.training_seconds, units.duration(run.training_seconds)),
                        plain(run.state),
                    )
                    for run in summary.runs
                ),
                main=True,
            ),
        ),
    )


def _score(run: RunRow, key: str) -> Cell:
    value = dict(run.metrics).get(key)
    return plain(value, numbers.real(value, 4))


def _texts(texts: Mapping[str, str]) -> Iterator[Section]:
    if texts:
        blocks: list[Block] = []
        for title, text in texts.items():
            lines = (
                part
                for line in text.splitlines()
                for part in textwrap.wrap(line, _TEXT_WIDTH, replace_whitespace=False) or [""]
            )
            code = Code(tuple(lines), language="text")
            blocks.append(Group(title=title, blocks=(code,)) if len(texts) > 1 else code)
        yield Section(
            key="texts",
            title="What it writes",
            lead="Sampled at temperature 0.8 among the 40 most probable tokens.",
            blocks=tuple(blocks),
        )


def _picture(summary: Summary) -> Chart | None:
    """Return the held-out loss of every variant over steps, and the training loss of one."""
    curves = [curve for curve in summary.curves if curve.quantity == "validation loss"]
    behind = [curve for curve in summary.curves if curve.quantity == "train loss"]
    if not any(len(curve.steps) > 1 for curve in curves):
        return None
    single = len(curves) == 1
    return Chart(
        draw=partial(_draw, curves, behind if single else [], summary.baseline),
        caption="Loss on held-out text",
        detail="nats per token over steps" + ("; grey: on the training text" if single else ""),
        file="answer",
    )


def _draw(
    curves: Sequence[LearningCurve], behind: Sequence[LearningCurve], baseline: str
) -> svg.Drawing:
    left, top, right, bottom = _AREA
    shown = [value for curve in curves for value in curve.mean if math.isfinite(value)]
    low, high = svg.padded(shown, 0.06)
    up = svg.Scale(low=low, high=high, start=bottom, end=top)
    last = max(step for curve in curves for step in curve.steps)
    across = svg.Scale(low=0, high=last, start=left, end=right)
    parts = [
        svg.y_axis(up, left, right, numbers.tick),
        svg.x_axis(across, bottom, numbers.tick),
        svg.text(left - 44, 13, "loss (nats per token)", "axis-title"),
        svg.text(right, _HEIGHT - 6, "steps", "axis-title end"),
        *(svg.path(_places(curve, across, up), "behind") for curve in behind),
    ]
    ends: list[tuple[float, str]] = []
    for curve in curves:
        places, family = _places(curve, across, up), family_of(curve.variant, baseline)
        parts.append(svg.path(places, f"curve f-{family.key}"))
        if places:
            ends.append((places[-1][1], curve.variant))
    for (_, variant), y in zip(sorted(ends), _spread(sorted(y for y, _ in ends)), strict=True):
        family = family_of(variant, baseline)
        label = names.short(variant, 14)
        parts.append(svg.text(right + 8, y + 4, label, f"name t-{family.key}"))
    return svg.Drawing(
        width=_WIDTH,
        height=_HEIGHT,
        title="Loss on held-out text over steps",
        description="; ".join(
            f"{curve.variant} from {numbers.real(curve.mean[0])} to {numbers.real(curve.mean[-1])}"
            for curve in curves
            if curve.mean
        ),
        parts=tuple(parts),
    )


def _places(curve: LearningCurve, across: svg.Scale, up: svg.Scale) -> list[svg.Point]:
    """Return the points of a curve inside the drawing."""
    return [
        (across(curve.steps[index]), up(curve.mean[index]))
        for index in thinned(len(curve.mean), _POINTS)
        if up.low <= curve.mean[index] <= up.high
    ]


def _spread(heights: Sequence[float]) -> list[float]:
    """Move sorted heights of labels apart, downwards and then up from the bottom."""
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + _LABEL_HEIGHT) if found else height)
    limit = _AREA[3]
    for index in range(len(found) - 1, -1, -1):
        found[index] = min(found[index], limit)
        limit = found[index] - _LABEL_HEIGHT
    return found
