"""The samples of a study: pictures with answers, sets with the odd one out, translations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from qkvary.reports import svg
from qkvary.reports.png import pixel_png
from qkvary.reports.report import Block, Chart, Group, Section
from qkvary.reports.tables import (
    Cell,
    Raw,
    Table,
    clipped,
    label,
    named,
    number,
    pick,
    plain,
    tabulate,
    word,
)
from qkvary.tasks.examples import Sample
from qkvary.text import names

_PICTURE, _CELL, _LINE = 50.0, 62.0, 15.0
_PER_ROW = 5
"""Number of pictures per row, as many as are legible on a narrow page."""
_NAMES = 84.0
"""Width of the column with the variants, in pixels."""
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
    found = [
        _setting([run for run in runs if run.setting == setting], index)
        for index, setting in enumerate(dict.fromkeys(run.setting for run in runs), start=1)
    ]
    charts = tuple(one for one in found if isinstance(one, Chart))
    blocks: list[Block] = [Group(blocks=charts, layout="wide")] if charts else []
    blocks += [one for one in found if not isinstance(one, Chart)]
    return Section(
        key="samples",
        title="Samples",
        lead="The first questions of the validation split and the answers of one network for each "
        "variant. They are too few to compare variants.",
        blocks=tuple(blocks),
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
    """Draw the pictures of a set with their numbers; the correct answer is framed."""
    pictures = _pictures(sample)
    rows = -(-len(pictures) // _PER_ROW)
    parts: list[Markup] = []
    for index, picture in enumerate(pictures):
        x, y = 4 + index % _PER_ROW * _CELL, 4 + index // _PER_ROW * (_CELL + 8)
        parts.append(_image(picture, x, y))
        style = "tick middle"
        if str(index + 1) == sample.truth:
            frame = {"x": x - 2, "y": y - 2, "width": _PICTURE + 4, "height": _PICTURE + 4}
            parts.append(svg.element("rect", class_="right-one", **frame))
            style = "panel-title middle"
        parts.append(svg.text(x + _PICTURE / 2, y + _PICTURE + 15, str(index + 1), style))
    return svg.Drawing(
        width=8 + _PER_ROW * _CELL,
        height=4 + rows * (_CELL + 8),
        title="A set of pictures",
        description=f"{len(pictures)} pictures; picture {sample.truth} does not belong to the "
        "class of the remaining pictures.",
        parts=tuple(parts),
    )


def _setting(runs: Sequence[RunSamples], index: int) -> Chart | Group | Table:
    first, setting = runs[0].samples, runs[0].setting
    file = f"samples-{index:02d}-{names.slug(setting)}"
    counts = {len(_pictures(one)) for one in first}
    if counts == {0}:
        return _text_table(runs, file)
    if counts == {1}:
        return Chart(
            draw=partial(_class_drawing, runs),
            caption=setting,
            detail=f"seed {runs[0].seed}; wrong answers stand out",
            table=_answer_table(runs, file),
            file=file,
        )
    return Group(
        title=f"{setting}: the odd one out",
        layout="wide",
        file=file,
        blocks=tuple(
            Chart(
                draw=partial(set_drawing, sample),
                caption=f"Set {index + 1}: number {sample.truth}",
                detail=_picks(runs, index),
            )
            for index, sample in enumerate(first)
        ),
    )


def _picks(runs: Sequence[RunSamples], index: int) -> str:
    """State the picture that each variant picks."""
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


def _class_drawing(runs: Sequence[RunSamples]) -> svg.Drawing:
    """Draw pictures. Beneath each picture are the correct class and each variant's answer."""
    first = runs[0].samples
    high = _PICTURE + 8 + (len(runs) + 1) * _LINE + 12
    parts: list[Markup] = []
    for start in range(0, len(first), _PER_ROW):
        top = start // _PER_ROW * high
        base = top + _PICTURE + 8
        for line, (title, style) in enumerate(
            (("right", "tick"), *((names.short(run.variant, 12), "tick strong") for run in runs))
        ):
            parts.append(svg.text(0, base + (line + 1) * _LINE, title, style))
        for place, sample in enumerate(first[start : start + _PER_ROW]):
            x = _NAMES + place * _CELL
            parts.append(_image(_pictures(sample)[0], x, top + 4))
            answers = [run.samples[start + place].answer for run in runs]
            for line, answer in enumerate((sample.truth, *answers)):
                style = "tick middle" if answer == sample.truth else "wrong middle"
                x_middle, y = x + _PICTURE / 2, base + (line + 1) * _LINE
                parts.append(svg.text(x_middle, y, names.short(answer, 11), style))
    rows = -(-len(first) // _PER_ROW)
    return svg.Drawing(
        width=_NAMES + _PER_ROW * _CELL,
        height=rows * high,
        title=f"Pictures of {names.short(runs[0].setting, 60)} and answers",
        description=f"{len(first)} pictures; the table below has all answers.",
        parts=tuple(parts),
    )


def _answer_table(runs: Sequence[RunSamples], key: str) -> Table:
    def answer(run: RunSamples, index: int) -> Cell:
        return named(run.samples[index].answer)

    return tabulate(
        key,
        f"{runs[0].setting}: answers",
        range(len(runs[0].samples)),
        number("sample=", "picture", lambda index: plain(index + 1)),
        word("truth=", "right", lambda index: named(runs[0].samples[index].truth)),
        *(word(f"{run.variant}=", run.variant, partial(answer, run)) for run in runs),
    )


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
        notes=[f"Greedy translations of seed {runs[0].seed}."],
    )


def _pictures(sample: Sample) -> Sequence[NDArray[np.uint8]]:
    return () if sample.pictures is None else [*sample.pictures]


def _image(picture: NDArray[np.uint8], x: float, y: float) -> Markup:
    return svg.image(pixel_png(picture), (x, y), (_PICTURE, _PICTURE), "picture")
