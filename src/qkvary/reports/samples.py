"""Shows the samples of a study: pictures with answers, odd-one-out sets, translations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from qkvary.reports import svg
from qkvary.reports.png import pixel_png
from qkvary.reports.report import Chart, Group, Section
from qkvary.reports.tables import Raw, Table, clipped, label, number, pick, tabulate, word
from qkvary.tasks.examples import Sample
from qkvary.text import names

_PICTURE, _CELL = 50.0, 62.0
_PER_ROW = 5
"""Number of pictures per row; more would be illegible on a narrow page."""
_LONGEST = 600
"""Maximum number of letters shown of a text; the CSV file has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSamples:
    """The samples of one run."""

    setting: str
    variant: str
    seed: int
    samples: tuple[Sample, ...]


def sample_section(runs: Sequence[RunSamples]) -> Section:
    """Return the section with the first questions of the validation split, and every answer."""
    return Section(
        key="samples",
        title="Samples",
        lead="This section shows the first questions of the validation split, and the answers of "
        "one network for each variant. They are too few to compare variants.",
        blocks=tuple(
            _setting([run for run in runs if run.setting == setting], index)
            for index, setting in enumerate(dict.fromkeys(run.setting for run in runs), start=1)
        ),
    )


def sample_rows(runs: Sequence[RunSamples]) -> Iterator[dict[str, Raw]]:
    """Yield all questions and answers."""
    for run in runs:
        for index, one in enumerate(run.samples, start=1):
            yield {
                **pick(run, "setting variant seed"),
                "sample": index,
                **pick(one, "text truth answer"),
            }


def set_drawing(sample: Sample) -> svg.Drawing:
    """Draw the picture of a question, or a set of pictures with numbers and a framed answer."""
    pictures = _pictures(sample)
    is_set = len(pictures) > 1
    parts: list[Markup] = []
    for index, picture in enumerate(pictures):
        x, y = 4 + index % _PER_ROW * _CELL, 4 + index // _PER_ROW * (_CELL + 8)
        parts.append(svg.image(pixel_png(picture), (x, y), (_PICTURE, _PICTURE), "picture"))
        if is_set:
            is_answer = str(index + 1) == sample.truth
            if is_answer:
                frame = {"x": x - 2, "y": y - 2, "width": _PICTURE + 4, "height": _PICTURE + 4}
                parts.append(svg.element("rect", class_="right-one", **frame))
            style = "panel-title middle" if is_answer else "tick middle"
            parts.append(svg.text(x + _PICTURE / 2, y + _PICTURE + 15, str(index + 1), style))
    rows = -(-len(pictures) // _PER_ROW)
    return svg.Drawing(
        width=8 + min(len(pictures), _PER_ROW) * _CELL,
        height=4 + rows * (_CELL + 8),
        title="A set of pictures" if is_set else "A picture",
        description=f"{len(pictures)} pictures; picture {sample.truth} does not belong to the "
        "class of the remaining pictures."
        if is_set
        else f"The right answer is {sample.truth}.",
        parts=tuple(parts),
    )


def _setting(runs: Sequence[RunSamples], index: int) -> Group | Table:
    first, setting = runs[0].samples, runs[0].setting
    file = f"samples-{index:02d}-{names.slug(setting)}"
    if not any(_pictures(one) for one in first):
        return _text_table(runs, file)
    return Group(
        title=setting,
        detail=f"seed {runs[0].seed}",
        layout="panels" if len(_pictures(first[0])) == 1 else "wide",
        file=file,
        blocks=tuple(
            Chart(
                draw=partial(set_drawing, sample),
                caption=f"Right answer: {sample.truth}",
                detail=_picks(runs, place),
            )
            for place, sample in enumerate(first)
        ),
    )


def _picks(runs: Sequence[RunSamples], index: int) -> str:
    """Return the answers to one question in words, each with the variants that gave it."""
    picks: dict[str, list[str]] = {}
    for run in runs:
        picks.setdefault(run.samples[index].answer, []).append(run.variant)
    truth = runs[0].samples[index].truth
    texts = [
        f"{names.listed(variants)} {'is right' if len(variants) == 1 else 'are right'}"
        if pick == truth
        else f"{names.listed(variants)}: {pick}"
        for pick, variants in sorted(picks.items(), key=lambda one: one[0] != truth)
    ]
    return "; ".join(texts)


def _text_table(runs: Sequence[RunSamples], key: str) -> Table:
    rows = [
        {"sample": index, "by": by, "text": text}
        for index, sample in enumerate(runs[0].samples, start=1)
        for by, text in (
            ("source", sample.text),
            ("reference", sample.truth),
            *((run.variant, run.samples[index - 1].answer) for run in runs),
        )
    ]
    return tabulate(
        key,
        f"{runs[0].setting}: sentences, references and translations",
        rows,
        number("sample", "sentence"),
        label("by"),
        word("text", write=lambda text: clipped(text, _LONGEST, name=True)),
        notes=[f"The networks with seed {runs[0].seed} translated by greedy decoding."],
    )


def _pictures(sample: Sample) -> Sequence[NDArray[np.uint8]]:
    return () if sample.pictures is None else [*sample.pictures]
