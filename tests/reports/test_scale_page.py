"""The page says what the figures say, and its files hold all of them."""

import csv
import io
import json

import pytest

from qkvary.reports.scale_figure import draw_scales
from qkvary.reports.scale_page import PICTURE, scale_files
from tests.studies.scale_examples import made_up


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return scale_files(made_up())


def test_the_page_says_how_to_run_it_again_and_what_was_found(files: dict[str, bytes]) -> None:
    page = files["README.md"].decode()
    for said in (
        "# Which scales?",
        "    qkvary bench scales made-up --seeds 0,1,2",
        "an abacus",
        f"({PICTURE})",
        "QKV@alibi: 8 bits 0.1",
        "was missed by: QKV@alibi g32 by 3 of 3",
        "4 bits, Q-K=V@rotary: the smallest mean KL has `b32-r16`",
        "correction for 50 comparisons",
    ):
        assert said in page, said
    assert " nan" not in page


def test_tables_and_records_hold_every_figure(files: dict[str, bytes]) -> None:
    study = made_up()
    rows = list(csv.DictReader(io.StringIO(files["tables/storages.csv"].decode())))
    assert len(rows) == len(study.summaries())
    assert float(rows[0]["mean_kl"]) > 0
    assert len(list(csv.reader(io.StringIO(files["tables/ratios.csv"].decode())))) == 51
    document = json.loads(files["records.json"])
    assert document["schema_version"] == 1
    assert len(document["records"]) == len(study.records)
    assert document["records"][0]["storage"] == "int8-g32"


def test_a_study_of_one_seed_has_a_page_and_a_picture_too() -> None:
    study = made_up((7,))
    assert b"no interval" in scale_files(study)["README.md"]
    assert draw_scales(study, ["svg"])["divergence.svg"].lstrip().startswith(b"<?xml")


def test_equal_studies_have_equal_pictures() -> None:
    first = draw_scales(made_up(), ["svg", "png"])
    assert first == draw_scales(made_up(), ["svg", "png"])
    assert set(first) == {"divergence.svg", "divergence.png"}
