import io
import re
from typing import get_args
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from qkvary.costs.devices import Device
from qkvary.reports.figure_style import Format
from qkvary.reports.plan_figures import (
    CACHE_NAME,
    QUALITY_NAME,
    USERS_NAME,
    plan_files,
    quality_figure,
)
from tests.reports.plan_examples import make_plan, renamed

NAMES = (CACHE_NAME, USERS_NAME, QUALITY_NAME)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return plan_files(make_plan(), get_args(Format))


def test_every_picture_in_every_format(files: dict[str, bytes]) -> None:
    assert set(files) == {f"{name}.{kind}" for name in NAMES for kind in get_args(Format)}


def test_files_are_what_their_names_say(files: dict[str, bytes]) -> None:
    for name, data in files.items():
        if name.endswith(".png"):
            picture = Image.open(io.BytesIO(data))
            assert picture.info["dpi"][0] == pytest.approx(300, abs=1)
            assert picture.width > 1_000
        elif name.endswith(".pdf"):
            assert data.startswith(b"%PDF-")
            assert b"/FontFile2" in data
            assert b"/CreationDate" not in data
        else:
            ET.fromstring(data)  # noqa: S314  our own picture
            assert not re.search(rb"\bnan\b|<dc:date>|<text", data)
            assert len(data) < 400_000


def test_equal_plans_give_equal_bytes(files: dict[str, bytes]) -> None:
    assert plan_files(make_plan(), get_args(Format)) == files


def test_caveats_are_written_below_the_published_points() -> None:
    written = " ".join(text.get_text() for text in quality_figure().axes[0].texts)
    for words in (
        "One network was trained per variant",
        "the padding counts in the loss",
        "Q-GQA has 8 KV heads",
        "Reported at step 7,500",
        "an estimate, not a measurement",
        "† +25.4 %",
    ):
        assert words in written


def test_training_has_no_picture_of_a_cache() -> None:
    assert set(plan_files(make_plan(trains=True), ("svg",))) == {f"{QUALITY_NAME}.svg"}


def test_a_picture_that_would_be_empty_is_not_made() -> None:
    small = Device(name="small", title="a small one", memory_bytes=2**20)
    made = plan_files(make_plan(device=small), ("svg",))
    assert set(made) == {f"{CACHE_NAME}.svg", f"{QUALITY_NAME}.svg"}


def test_no_format_draws_nothing() -> None:
    assert plan_files(make_plan(), ()) == {}


@pytest.mark.parametrize(
    "text", ["$\\frac{1}{0}$", "<b>", "\x00\ud800", "שלום", "w" * 10_000, "_x^", "a\nb"]
)
def test_names_are_never_read_as_formulas(text: str) -> None:
    assert len(plan_files(renamed(make_plan(), text), ("svg",))) == 3
