"""The studies of small language models compare what their pages say, and run."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.network import Costs, network_costs
from qkvary.data import prepared_sets
from qkvary.data.checksums import ENGLISH_NOVELS_SHA256, TINY_STORIES_SHA256
from qkvary.data.prepared import PreparedData, open_prepared
from qkvary.data.prepared_sets import prepare_corpus
from qkvary.papers.ours.small_language_models import BYTES, PIECES, describe_scale
from qkvary.papers.ours.studies.lm_dilution import STUDY as DILUTION
from qkvary.papers.ours.studies.lm_rotary import STUDY as ROTARY
from qkvary.papers.ours.studies.lm_small import STUDY as SMALL
from qkvary.storage.errors import UsageError
from qkvary.studies.running.scheduler import prepare_sets
from qkvary.studies.study import Cell, Study
from qkvary.tasks.catalog import load_task
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.training.loop import train
from tests.data.small_sets import made_up, make_set

STUDIES = (SMALL, DILUTION, ROTARY)
DATA = os.environ.get("QKVARY_DATA")


def first_cells(study: Study) -> dict[tuple[str, str], Cell]:
    return {(c.setting, c.variant): c for c in study.cells() if c.seed == study.seeds[0]}


def with_rotary(*labels: str) -> set[str]:
    return {f"{label}@rotary" for label in labels}


def costs(cell: Cell) -> Costs:
    return network_costs(cell.run.network, length=cell.run.sequence_length)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_all_settings_share_training_and_data(study: Study) -> None:
    cells = study.cells()
    assert study.seeds == (0, 1, 2, 3, 4)
    tasks = [cell.run.task for cell in cells]
    assert len({(task.data, task.data_sha256) for task in tasks}) == 1  # type: ignore[union-attr]
    for cell in cells:
        network, training = cell.run.network, cell.run.training
        assert isinstance(network, LanguageModelConfig)
        assert network.vocabulary == (PIECES if study is DILUTION else BYTES)
        assert network.positions == "none"
        assert cell.variant.endswith(("@rotary", "@alibi"))
        assert training.batch_size * cell.run.sequence_length == 1_024
        assert (training.optimizer.decay, training.optimizer.betas) == ("all", (0.9, 0.95))
    assert len({cell.run.training.steps for cell in cells}) == 1
    assert len(study.limits) == {SMALL.name: 5, DILUTION.name: 5, ROTARY.name: 3}[study.name]
    assert "On one NVIDIA H100" in study.limits[-1]


def test_small_has_every_sharing_of_table_4_and_its_equals() -> None:
    cells = first_cells(SMALL)
    assert len({cell.run_key for cell in cells.values()}) == 15
    table_4 = ("QKV", "Q-K=V", "Q=K-V", "Q=K=V", "GQA-4", "MQA", "Q-GQA-4", "Q-MQA")
    others = ("I-K-V", "I-K=V", "GQA-8", "GQA-2")
    found_labels = {label for setting, label in cells if setting == "novels"}
    assert found_labels == with_rotary(*table_4, *others)
    found = {key: costs(cell) for key, cell in cells.items()}
    for shared, apart in (("Q-K=V@rotary", "GQA-8@rotary"), ("Q-GQA-4@rotary", "GQA-2@rotary")):
        ours, theirs = found["novels", shared], found["novels", apart]
        assert ours.cache_bytes_per_token == theirs.cache_bytes_per_token
        assert (shared, apart) in SMALL.contrasts
    fine, single = found["32 heads", "MQA@rotary"], found["novels", "Q-MQA@rotary"]
    assert fine.cache_bytes_per_token == single.cache_bytes_per_token
    assert abs(fine.parameters.total - single.parameters.total) <= 2 * 16
    whole = found["novels", "QKV@rotary"].parameters.total
    for label in ("Q-K=V@rotary", "I-K=V@rotary"):
        # A channel of two feed-forward networks has 2 x 513 parameters.
        assert abs(found["equal parameters", label].parameters.total - whole) <= 2 * 513 / 2


def test_dilution_scores_the_same_networks_twice() -> None:
    cells = first_cells(DILUTION)
    assert len({cell.run_key for cell in cells.values()}) == 12
    by_table = {setting.name: setting for setting in DILUTION.settings}
    assert [setting.metric for setting in by_table.values()] == [
        *("document_loss", "paper_loss") * 3,
        "document_loss",
    ]
    for share in ("88", "53", "28"):
        real = cells[f"{share} % real, real tokens", "Q-K=V@rotary"]
        printed = cells[f"{share} % real, as printed", "Q-K=V@rotary"]
        assert real.run_key == printed.run_key
    assert by_table["no padding"].task.protocol == "packed"  # type: ignore[union-attr]


def test_rotary_has_every_meaning_and_its_baselines_once() -> None:
    cells = first_cells(ROTARY)
    assert len({cell.run_key for cell in cells.values()}) == len(cells) == 14
    sizes = {
        (cell.variant, cell.run.network.layers[0].position.rotary_fraction,
         cell.run.network.layers[0].position.value_rope)
        for (setting, _), cell in cells.items()
        if setting != "linear biases"
    }  # fmt: skip
    shared = {size for size in sizes if size[0] == "Q-K=V@rotary"}
    assert len(shared) == 9
    assert {size[1] for size in sizes - shared} == {0.25, 0.5, 1.0}
    for cell in cells.values():
        biased = cell.setting == "linear biases"
        assert cell.variant.endswith("@alibi" if biased else "@rotary")
        assert cell.run.network.layers[0].size_per_head == 32


def test_what_usual_sizes_would_take() -> None:
    said = describe_scale(networks=2, seeds=3, presets=("lm-124m", "lm-300m"))
    assert said.startswith("At usual sizes the same 2 networks with 3 seeds would take longer.")
    hours = [float(part.split()[1]) for part in said.split("reach: ")[1].split("; ")]
    # 6 N D plus attention, at 40 % of 989.5 TFLOPS.
    assert hours[0] == pytest.approx(6 * 123.6e6 * 2.475e9 / 0.4 / 989.5e12 / 3600, rel=0.2)
    assert hours[1] == pytest.approx(6 * 305.5e6 * 10e9 / 0.4 / 989.5e12 / 3600, rel=0.2)


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

    def prepare(reference: str) -> Path:
        prepared.append(reference)
        return Path(reference)

    expected = {"bytes": ENGLISH_NOVELS_SHA256, "gpt2-4096": TINY_STORIES_SHA256}
    monkeypatch.setattr(prepared_sets, "ensure_prepared", prepare)
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
    monkeypatch.setattr(prepared_sets, "ensure_prepared", pytest.fail)
    with pytest.raises(UsageError) as caught:
        prepare_sets(DILUTION.cells(), pytest.fail)
    assert str(caught.value) == (
        "expected the data set ab5927fbfbdd of tinystories/gpt2-4096, got neither it nor its text: "
        "put the text at tinystories below QKVARY_DATA"
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
            f"expected the data set {ENGLISH_NOVELS_SHA256[:12]} of english-novels/bytes, got "
            f"{found} in {folder}: remove that folder, and put the text of the expected one at "
            "english_novels below QKVARY_DATA"
        )
    assert told == ["preparing english-novels/bytes"]


def test_another_data_set_at_a_path_is_rejected(stand_in: PreparedData) -> None:
    cell = shortened(SMALL.cells()[0], stand_in)
    task = cell.run.task
    assert isinstance(task, LanguageTaskConfig)
    task = dataclasses.replace(task, data_sha256="0" * 64)
    other = dataclasses.replace(cell, run=dataclasses.replace(cell.run, task=task))
    with pytest.raises(
        UsageError, match=r"expected the data set 0{12} of .*/set, got .* in .*/set: pre"
    ):
        prepare_sets([other], pytest.fail)


def test_what_is_prepared_is_left_alone(
    stand_in: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_sets, "ensure_prepared", None)
    prepare_sets([shortened(SMALL.cells()[0], stand_in)], pytest.fail)


@pytest.mark.parametrize("study", [SMALL, DILUTION], ids=lambda study: study.name)
def test_the_corpus_is_the_one_that_runs_are_named_after(study: Study, tmp_path: Path) -> None:
    task = study.settings[0].task
    assert isinstance(task, LanguageTaskConfig)
    assert len(task.data_fingerprint) == 64
    if DATA is not None:
        data = prepare_corpus(*task.data.split("/"), out=tmp_path)
        assert data.fingerprint == task.data_sha256
