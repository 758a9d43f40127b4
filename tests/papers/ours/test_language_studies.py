"""The studies of small language models compare what their pages say, and run."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkvary.data import prepared_sets
from qkvary.data.checksums import ENGLISH_NOVELS_SHA256, TINY_STORIES_SHA256
from qkvary.data.prepared import PreparedData, open_prepared
from qkvary.papers.ours.studies.lm_dilution import STUDY as DILUTION
from qkvary.papers.ours.studies.lm_rotary import STUDY as ROTARY
from qkvary.papers.ours.studies.lm_small import STUDY as SMALL
from qkvary.storage.errors import UsageError
from qkvary.studies.running.runner import prepare_sets
from qkvary.studies.study import Cell, Study
from qkvary.tasks.catalog import load_task
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.training.loop import train
from tests.data.small_sets import empty_set, made_up, make_set

STUDIES = (SMALL, DILUTION, ROTARY)


def first_cells(study: Study) -> dict[tuple[str, str], Cell]:
    return {(c.setting, c.variant): c for c in study.cells() if c.seed == study.seeds[0]}


# ---- data


@pytest.fixture(name="stand_in", scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return make_set(tmp_path_factory.mktemp("stand-in"), made_up(900, 1), made_up(60, 2))


def shortened(cell: Cell, data: PreparedData) -> Cell:
    task, training = cell.run.task, cell.run.training
    assert isinstance(task, LanguageTaskConfig)
    task = dataclasses.replace(
        task,
        data=str(data.path),
        data_sha256=data.fingerprint,
        validation_tokens=70,
        test_tokens=70,
        evaluation_batch_size=1,
    )
    schedule = dataclasses.replace(training.schedule, warmup_steps=1)
    training = dataclasses.replace(training, steps=1, schedule=schedule)
    return dataclasses.replace(
        cell, run=dataclasses.replace(cell.run, task=task, training=training)
    )


def one_of_each_setting() -> Iterator[Any]:
    """The last variant of every setting, which shares the most: by default of two of a study."""
    for study in STUDIES:
        last = {setting: cell for (setting, _), cell in first_cells(study).items()}
        cells = list({cell.run_key: cell for cell in last.values()}.values())
        for cell in cells:
            marks = () if cell in (cells[0], cells[-1]) else pytest.mark.slow
            yield pytest.param(cell, id=cell.title, marks=marks)


@pytest.mark.filterwarnings("ignore:value_rope 'rotated' gives outputs that change")
@pytest.mark.parametrize("cell", list(one_of_each_setting()))
def test_a_step_of_every_setting(cell: Cell, stand_in: PreparedData, tmp_path: Path) -> None:
    run = shortened(cell, stand_in).run
    outcome = train(run, load_task(run.task), tmp_path)
    assert outcome.status == "done"
    for score in ("loss", "document_loss", "paper_loss", "real_share"):
        assert outcome.metrics[f"test_{score}"] is not None


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder for data."""
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path / "data"))
    return tmp_path


def test_what_runs_read_is_prepared_once(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[str] = []

    def prepare(*names: str) -> PreparedData:
        reference = "/".join(names)
        prepared.append(reference)
        return dataclasses.replace(empty_set(reference), path=Path(reference))

    expected = {"bytes": ENGLISH_NOVELS_SHA256, "gpt2-4096": TINY_STORIES_SHA256}
    monkeypatch.setattr(prepared_sets, "prepare_source", prepare)
    monkeypatch.setattr(prepared_sets, "read_fingerprint", lambda path: expected[path.name])
    for name in ("english_novels", "tinystories"):
        (places / "data" / name).mkdir(parents=True)
    told: list[str] = []
    prepare_sets((*SMALL.cells(), *DILUTION.cells(), *ROTARY.cells()), told.append)
    assert prepared == ["english-novels/bytes", "tinystories/gpt2-4096"]
    assert told == [f"preparing {name}" for name in prepared]


def test_the_hub_is_not_asked_for_a_set_that_was_made_of_a_local_text(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_sets, "prepare_source", pytest.fail)
    with pytest.raises(UsageError) as caught:
        prepare_sets(DILUTION.cells(), pytest.fail)
    assert str(caught.value) == (
        "expected the data set tinystories/gpt2-4096 with fingerprint ab5927fbfbdd, or its text, "
        "got neither: put the text at tinystories below QKVARY_DATA"
    )
    assert not (places / "cache").exists()


def test_a_data_set_with_another_fingerprint_is_rejected(places: Path) -> None:
    """Before any run starts, for existing sets and for sets prepared now."""
    for split in ("train", "valid"):
        (places / "data" / "english_novels" / split).mkdir(parents=True)
        (places / "data" / "english_novels" / split / "a.txt").write_text(f"another {split}")
    told: list[str] = []
    for _ in range(2):
        with pytest.raises(UsageError) as caught:
            prepare_sets(SMALL.cells(), told.append)
        folder = places / "cache" / "data" / "english-novels-bytes"
        found = open_prepared(folder).fingerprint[:12]
        assert str(caught.value) == (
            "expected the data set english-novels/bytes with fingerprint "
            f"{ENGLISH_NOVELS_SHA256[:12]} in {folder}, got {found}: remove that folder, and put "
            "the expected set's original text at english_novels below QKVARY_DATA"
        )
    assert told == ["preparing english-novels/bytes"]
