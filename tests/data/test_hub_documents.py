"""Documents of the hub, with the real library on local files and with a stand-in."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pytest
from huggingface_hub import errors

from qkvary.data import hub_documents
from qkvary.data.downloads import DownloadError
from qkvary.data.hub_documents import HubDocuments, find_commit, parse_hub
from qkvary.data.preparation import OnProgress
from qkvary.data.prepared import PreparedData
from qkvary.data.prepared_sets import prepare_source
from qkvary.data.sources import SourceOptions
from qkvary.storage.errors import UsageError
from tests.data.small_sets import made_up, silent, tiny_groups
from tests.data.test_preparation import interrupted

TEXTS = made_up(23, seed=6)
TODAY, TOMORROW = "a" * 40, "b" * 40
Info = Callable[[str, str | None], Any]


def answer(monkeypatch: pytest.MonkeyPatch, info: Info) -> None:
    """Let the hub say this about a repository at a revision."""

    def asked(_api: object, repository: str, *, revision: str | None) -> Any:
        return info(repository, revision)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", asked)
    monkeypatch.setattr(hub_documents, "find_hub_problem", lambda: None)


def is_at(monkeypatch: pytest.MonkeyPatch, commit: str | None) -> None:
    answer(monkeypatch, lambda _repository, _revision: SimpleNamespace(sha=commit))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The library reads two files instead of the repository.

    Tomorrow they are there the other way round.
    """
    is_at(monkeypatch, TODAY)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = []
    for number, part in enumerate((TEXTS[:9], TEXTS[9:])):
        files.append(str(tmp_path / f"{number}.jsonl"))
        lines = [json.dumps({"text": text, "body": text}) for text in [*part, " "]]
        Path(files[-1]).write_text("\n".join(lines), "utf-8")
    calls: list[dict[str, Any]] = []
    load = datasets.load_dataset

    def stand_in(repository: str, configuration: str | None, **named: Any) -> Any:
        calls.append({"repository": repository, "configuration": configuration, **named})
        found = files if named["revision"] != TOMORROW else files[::-1]
        found = found if named["split"] == "train" else files[:1]
        return load("json", data_files=found, split="train", streaming=named["streaming"])

    monkeypatch.setattr(datasets, "load_dataset", stand_in)
    return calls


def make(**named: Any) -> HubDocuments:
    return HubDocuments(repository="someone/texts", split="train", **named)


def test_documents_stream(hub: list[dict[str, Any]]) -> None:
    found = list(make(configuration="small", revision="abc").read())
    assert [document.text for document in found] == TEXTS
    assert found[9].where == "hf:someone/texts (train), row 11"
    asked = {"repository": "someone/texts", "configuration": "small", "revision": "abc"}
    assert hub == [{**asked, "split": "train", "streaming": True}]


def test_reading_resumes_after_any_document(hub: list[dict[str, Any]]) -> None:
    source = make()
    whole = [(document, json.dumps(source.position())) for document in source.read()]
    for number in (0, 7, 8, 9, 10, 21, 22):
        rest = list(make().read(json.loads(whole[number][1])))
        assert rest == [document for document, _ in whole[number + 1 :]]
    assert len(hub) == 8


REFERENCE, THIRD = "hf:someone/texts", SourceOptions(held_out=0.3)


@pytest.mark.usefixtures("hub")
def test_a_resumed_preparation_reads_the_same_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_set(folder: Path, on_progress: OnProgress = silent) -> PreparedData:
        with tiny_groups():
            return prepare_source(
                REFERENCE, "bytes", options=THIRD, out=folder, workers=1, on_progress=on_progress
            )

    whole = make_set(tmp_path / "whole")
    assert whole.about["plan"]["source"]["files"]["commit"] == TODAY
    with pytest.raises(KeyboardInterrupt):
        make_set(tmp_path / "set", interrupted(6, KeyboardInterrupt))
    assert list((tmp_path / "set").glob("portion-*.json"))
    is_at(monkeypatch, TOMORROW)
    assert make_set(tmp_path / "set").fingerprint == whole.fingerprint
    tomorrow = make_set(tmp_path / "tomorrow")
    assert tomorrow.about["plan"]["source"]["files"]["commit"] == TOMORROW
    assert tomorrow.fingerprint != whole.fingerprint
    # What is complete needs the hub no more.
    answer(monkeypatch, lambda *_asked: pytest.fail("the hub was asked"))
    assert make_set(tmp_path / "whole").fingerprint == whole.fingerprint


def refusing(kind: type[errors.HfHubHTTPError]) -> Info:
    def refuse(*_asked: object) -> Any:
        response: Any = SimpleNamespace(headers={}, request=None)
        raise kind("404 Client Error\nmore", response=response)

    return refuse


def lost(*_asked: object) -> Any:
    raise EOFError("no route\nmore")


@pytest.mark.parametrize(
    ("info", "error", "message"),
    [
        (refusing(errors.RepositoryNotFoundError), UsageError, "a/b: the data set does not exist"),
        (refusing(errors.RevisionNotFoundError), UsageError, "hf:a/b has no revision v1"),
        (lost, DownloadError, "cannot reach hf:a/b (no route); without a network, give a file"),
    ],
)
def test_a_commit_that_cannot_be_determined(
    monkeypatch: pytest.MonkeyPatch, info: Info, error: type[Exception], message: str
) -> None:
    answer(monkeypatch, info)
    with pytest.raises(error) as caught:
        find_commit("a/b", "v1")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert find_commit("a/b", TODAY) == TODAY, "a commit is one"


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("a/b", ("a/b", None, None)),
        ("a/b:c-1", ("a/b", "c-1", None)),
        ("a/b:c@v1.0", ("a/b", "c", "v1.0")),
        ("a/b@refs/convert/parquet", ("a/b", None, "refs/convert/parquet")),
    ],
)
def test_references(reference: str, parts: tuple[str, str | None, str | None]) -> None:
    assert parse_hub(reference) == parts


@pytest.mark.parametrize("reference", ["", "a", "a/b/c", "../x", "a/..", "a/b:", "a b/c"])
def test_invalid_references(reference: str) -> None:
    with pytest.raises(UsageError, match="expected hf:owner/name"):
        parse_hub(reference)
