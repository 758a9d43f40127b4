"""Samples in a report: every answer is shown, wrong ones stand out, pictures keep their pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from qkvary.reports.markdown import render_markdown
from qkvary.reports.page import render_page
from qkvary.reports.png import pixel_png
from qkvary.reports.report import Chart, Group
from qkvary.reports.samples import RunSamples, sample_section, set_drawing
from qkvary.reports.study import study_report
from qkvary.reports.tables import Table
from qkvary.tasks.examples import Sample
from tests.reports.subjects import small_summary

MARKED = "<b>x</b>"


def sample(truth: str, answer: str, count: int = 0, text: str = "") -> Sample:
    drawn = np.random.default_rng(int(truth) if truth.isdigit() else 0)
    pictures = drawn.integers(0, 256, (count, 3, 4, 4), dtype=np.uint8) if count else None
    return Sample(text=text, truth=truth, answer=answer, pictures=pictures)


def runs(*answers: Sample, setting: str = "mnist") -> list[RunSamples]:
    """The same samples of two variants; the second is always right."""
    right = [
        Sample(text=one.text, truth=one.truth, answer=one.truth, pictures=one.pictures)
        for one in answers
    ]
    return [
        RunSamples(setting=setting, variant=variant, seed=3, samples=tuple(some))
        for variant, some in (("QKV", answers), ("Q-K=V", right))
    ]


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_png_has_the_pixels(channels: int, mode: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (channels, 5, 7), dtype=np.uint8)
    image = Image.open(io.BytesIO(pixel_png(pixels)))
    assert (image.mode, image.size) == (mode, (7, 5))
    np.testing.assert_array_equal(
        np.asarray(image).reshape(5, 7, channels).transpose(2, 0, 1), pixels
    )


def test_sets_have_a_frame_around_the_right_one_and_name_the_picks() -> None:
    (group,) = sample_section(runs(sample("7", "2", 10), sample("3", "3", 10))).blocks
    assert isinstance(group, Group)
    details = [one.detail for one in group.blocks if isinstance(one, Chart)]
    assert details == ["Q-K=V is right; QKV: 2", "QKV and Q-K=V are right"]
    drawing = set_drawing(sample("7", "2", 10))
    drawn = "".join(drawing.parts)
    assert (drawn.count("<image"), drawn.count("right-one")) == (10, 1)
    assert 'class="panel-title middle">7<' in drawn
    assert drawing.description == (
        "10 pictures; picture 7 does not belong to the class of the remaining pictures."
    )


def test_translations_stand_below_source_and_reference() -> None:
    (table,) = sample_section(runs(sample("Hund", "Katze", text=f"dog {MARKED}"))).blocks
    assert isinstance(table, Table)
    assert [[cell.raw for cell in row] for row in table.rows] == [
        [1, "source", f"dog {MARKED}"],
        [1, "reference", "Hund"],
        [1, "QKV", "Katze"],
        [1, "Q-K=V", "Hund"],
    ]


def test_report_of_a_study_has_its_samples() -> None:
    samples = [
        *runs(sample("4", MARKED, 1)),
        *runs(sample("2", "3", 10), setting=f"set {MARKED}"),
        *runs(sample("Hund", MARKED, text="dog"), setting="en-de"),
    ]
    report = study_report(small_summary(), samples=samples)
    page, text = render_page(report), render_markdown(report)
    assert 'id="samples"' in page
    assert MARKED not in page
    assert "Hund" in text
    (data,) = (one for one in report.datasets if one.key == "samples")
    assert len(data.rows) == 6
    assert study_report(small_summary()).sections[1].key != "samples"
