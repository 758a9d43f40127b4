"""What names a run, and how it is stored, stays: keys, kinds and fields that were recorded once.

The files in ``frozen/`` are never made again. A changed key means that finished runs are run again;
a changed name means that stored files can no longer be read.
"""

import csv
import dataclasses
import hashlib
import json
import platform
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from decoding.records import DecodeRecord
from qkvary.arch import networks
from qkvary.arch.canonical import stored_kind, stored_name
from qkvary.arch.parts import field_hints
from qkvary.arch.variants import Variant
from qkvary.papers.catalog import published_names
from qkvary.studies.catalog import load_study, study_names
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import StudyRunner
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.tasks import config as task_configs
from qkvary.tasks import image_config
from qkvary.training.config import ExecutionSettings, RunConfig
from tests.contracts.frozen_study import HALF, PORTABLE, STUDY
from tests.studies_scripts.loading import load_script

KINDS = ("Encoder", "EncoderDecoder", "LanguageModel", "VisionTransformer")
ADDED_LATER: dict[str, Any] = {
    "AnomalyTaskConfig.features_sha256": None,
    "BasisRun.device": "cpu",
    "BlockConfig.feed_forward_dropout": None,
    "BlockConfig.norm_eps": 1e-5,
    "BlockConfig.parallel": False,
    "BlockConfig.skips": "both",
    **{f"{kind}Config.shared_blocks": False for kind in KINDS},
    "EncoderConfig.pooling": "none",
    "EncoderConfig.reads_vectors": False,
    "ImageTaskConfig.own": None,
    "ImageTaskConfig.resize_to": None,
    "Initialization.embedding_std": None,
    "LanguageModelConfig.logit_cap": None,
    "LanguageModelConfig.scale_embedding": False,
    "PositionConfig.key_positions": 1024,
    "PositionConfig.rotates_value": False,
    "PositionConfig.scaling": None,
    "RotaryScaling.query_growth": 0.0,
    "ScaleConfig.channels": None,
    "ScaleConfig.norm_adds_one": False,
    "ScaleConfig.norm_eps": 1e-6,
    "TrainingConfig.temperature": None,
    "Setting.keep_steps": (),
    "LanguageTaskConfig.has_test": True,
    "Setting.note": "",
    "TrainingConfig.test_at": "last",
    "ScheduleConfig.milestones": (),
    "ScheduleConfig.gamma": 0.1,
    "PublishedFigure.in_code": False,
}
"""By kind and stored name the default of each field that was added later, which stays."""
FROZEN = Path(__file__).parent / "frozen"
RECORDS = Path(__file__).resolve().parents[2] / "studies"
KEPT_STUDIES = {path.parts[-3]: path for path in sorted(RECORDS.glob("*/*/tables/runs.csv"))}
BasisRun = load_script("mlp-basis-transfer", "basis_runs").BasisRun
STORED = (RunConfig, Study, ExecutionSettings, DecodeRecord, BasisRun)
ENDS = {
    "QKV": (
        2.0111168494591345,
        {
            "0b27185587270ca388e788098719f213750db891078c9b5efee4a88f40bd39a2",
            "111e76824dcaa97b7b8d264018a1c387180d55fe180dec86d2052bde503a888c",
        },
    ),
    "(Q=K-V)+": (
        2.020293485201322,
        {
            "8d6a3e41dd85ed709d36d6fb534d89690f4f849fd1d8c8b844f2f241ec17e4a1",
            "a07b0c8a46322ce12d4cc1d2054036b74dabde2d1043cd3e2d8dbfa042f51ba4",
        },
    ),
}
"""Test loss and digests of the final weights, where nothing stopped the run: the digests of one
version on processors with and without AVX-512."""


ANY_OF = {
    networks.Network: vars(networks),
    task_configs.TaskConfig: vars(task_configs) | vars(image_config),
}
"""Annotations that stand for each configuration below them in a module."""


def nested(hint: Any) -> Iterator[type[Any]]:
    """The dataclasses that an annotation mentions, at any depth."""
    if hint in ANY_OF:
        for name, cls in ANY_OF[hint].items():
            if name.endswith("Config") and issubclass(cls, hint) and cls is not hint:
                yield from nested(cls)
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint is not Variant:
        yield hint
        for inner in field_hints(hint).values():
            yield from nested(inner)
    for argument in get_args(hint):
        yield from nested(argument)


def read(name: str) -> Any:
    return json.loads((FROZEN / name).read_text("utf-8"))


def test_stored_names_stay() -> None:
    classes = {cls for root in STORED for cls in nested(root)}
    found = {
        stored_kind(cls): sorted(
            stored_name(field)
            for field in dataclasses.fields(cls)
            if "added later" not in field.metadata
        )
        for cls in classes
    }
    assert len(found) == len(classes), "two classes have one stored kind"
    recorded = read("stored_names.json")
    # A new kind is recorded by hand; those that are here keep their names.
    assert {kind: found.get(kind) for kind in recorded} == recorded
    assert found.keys() == recorded.keys()
    later = {
        f"{stored_kind(cls)}.{stored_name(field)}": field.default
        for cls in classes
        for field in dataclasses.fields(cls)
        if "added later" in field.metadata
    }
    assert later == ADDED_LATER


@pytest.mark.parametrize("name", sorted(read("definitions.json")))
def test_keys_of_every_study_stay(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert study.question.endswith("?")
    assert {table.name for table in study.published} <= set(published_names())
    keys: dict[str, list[str]] = defaultdict(list)
    for cell in study.cells():
        keys[cell.setting].append(cell.run_key)
    # Only settings with tables of their own may share runs with others.
    alone = [key for one in study.settings if one.table is None for key in keys[one.name]]
    assert len(set(alone)) == len(alone)
    found = {
        setting: {
            "runs": len(some),
            "sha256": hashlib.sha256("\n".join(some).encode()).hexdigest(),
        }
        for setting, some in keys.items()
    }
    assert found == read("definitions.json")[name]


def test_every_study_is_recorded() -> None:
    assert set(study_names()) == set(read("definitions.json"))


@pytest.mark.parametrize("name", KEPT_STUDIES)
def test_runs_that_were_made_have_their_keys(name: str) -> None:
    with KEPT_STUDIES[name].open(encoding="utf-8") as file:
        found = {
            (row["setting"], row["variant"], int(row["seed"]), float(row["learning_rate"])): row[
                "run_key"
            ]
            for row in csv.DictReader(file)
        }
    # A study may have been run with other seeds than those of its definition, on a GPU and in part.
    seeds = tuple(sorted({seed for _, _, seed, _ in found}))
    settings = {setting for setting, *_ in found}
    assert found in [
        {
            (cell.setting, cell.variant, cell.seed, cell.learning_rate): cell.run_key
            for cell in dataclasses.replace(load_study(name), seeds=seeds, device=device).cells()
            if cell.setting in settings
        }
        for device in ("cpu", "cuda")
    ]


@pytest.mark.usefixtures("started_workers")
def test_runs_that_an_older_version_began_are_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PORTABLE.items():
        monkeypatch.setenv(name, value)
    shutil.copytree(FROZEN / "half-run", tmp_path / "runs")
    store = Store(tmp_path / "runs")
    summary = StudyRunner(STUDY, store, executor=LocalExecutor(1)).run()
    assert (summary.done, summary.notes) == (2, ())
    for cell in STUDY.cells():
        resumed = [one for one in store.log_events(cell.run_key) if one["event"] == "resumed"]
        assert [one["step"] for one in resumed] == [HALF]
        record = store.record(cell.run_key)
        assert record is not None
        loss, digests = ENDS[cell.variant]
        assert record.metrics["test_loss"] == pytest.approx(loss, rel=1e-5)
        # Other processors round otherwise.
        if platform.machine() in ("x86_64", "AMD64"):
            assert record.state_sha256 in digests
