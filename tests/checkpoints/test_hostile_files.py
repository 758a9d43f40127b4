"""Nothing is unpickled, and no name in a file leaves its folder.

A hook of the interpreter watches while each file is offered: whatever is executed, imported for it,
or opened elsewhere is seen, also where the error that follows is the right one.
"""

import io
import itertools
import json
import os
import pickle  # noqa: TID251 - to be refused
import sys
import tarfile
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.models import save_model
from qkvary.storage.errors import DamagedError, UnsafeError
from qkvary.storage.manifest import MANIFEST_NAME, FileEntry, Manifest
from tests.checkpoints.loaded_states import KEY, load_training_state
from tests.checkpoints.test_models import CHARACTERS, make_model

_watch: dict[str, Any] = {"on": False, "events": []}
RUNNING = ("subprocess.Popen", "os.system", "os.exec", "socket.connect", "pickle.find_class")


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watch["on"] and event in (*RUNNING, "open"):
        _watch["events"].append((event, arguments[0] if arguments else None))


def in_a_fork(*options: Sequence[Any]) -> Callable[[Callable[..., None]], Callable[[Path], None]]:
    """Make a test of all combinations of options, each in a folder, in a fork with the hook.

    A hook cannot be removed, and would be called millions of times by other tests.
    """

    def decorate(test: Callable[..., None]) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            with warnings.catch_warnings():
                # Newer versions of Python warn of other threads; here these only wait for orders.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if not child:
                _try_all(test, itertools.product(*options), tmp_path)
            assert os.waitpid(child, 0)[1] == 0, (tmp_path / "failure").read_text()

        run.__doc__ = test.__doc__
        return run

    return decorate


def _try_all(test: Callable[..., None], cases: Iterable[Sequence[Any]], folder: Path) -> NoReturn:
    sys.addaudithook(_hook)
    code = 1
    try:
        for number, case in enumerate(cases):
            (folder / str(number)).mkdir()
            test(*case, folder / str(number))
        code = 0
    except BaseException:  # noqa: BLE001  the test that waits says it
        (folder / "failure").write_text(f"{case}\n{traceback.format_exc()}")
    finally:
        os._exit(code)


@contextmanager
def watched() -> Iterator[list[tuple[str, Any]]]:
    _watch["events"] = []
    _watch["on"] = True
    try:
        yield _watch["events"]
    finally:
        _watch["on"] = False


class Canary:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


def archive(data: bytes, kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as packed:
            packed.writestr("archive/data.pkl", data)
            packed.writestr("archive/version", "3")
        return file.getvalue()
    with tarfile.open(fileobj=file, mode="w") as tar:
        entry = tarfile.TarInfo("pickle")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def pickles(canary: Path) -> dict[str, bytes]:
    """The same harm in every wrapping that frameworks have read."""
    object_array = np.empty(1, dtype=object)
    object_array[0] = Canary(canary)
    numpy_file, torch_zip, torch_old = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(numpy_file, object_array, allow_pickle=True)
    torch.save({"weight": Canary(canary)}, torch_zip)  # noqa: TID251
    torch.save({"weight": Canary(canary)}, torch_old, _use_new_zipfile_serialization=False)  # noqa: TID251
    plain = {
        f"protocol {number}": pickle.dumps(Canary(canary), protocol=number) for number in range(6)
    }
    return {
        **plain,
        "zip": archive(plain["protocol 4"], "zip"),
        "tar": archive(plain["protocol 2"], "tar"),
        "numpy": numpy_file.getvalue(),
        "torch": torch_zip.getvalue(),
        "old torch": torch_old.getvalue(),
    }


KINDS = tuple(pickles(Path("canary")))
NAMES = "model.pt model.pth last.ckpt model.pkl pytorch_model.bin w.npy __0_0.distcp .metadata"


@in_a_fork(KINDS, NAMES.split())
def test_a_pickle_is_refused_for_safety(kind: str, name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / name).write_bytes(pickles(canary)[kind])
    for path in (folder / name, folder):
        with watched() as events, pytest.raises(UnsafeError, match="is a pickle, which can"):
            load_checkpoint(path)
        assert not [event for event in events if event[0] in RUNNING]
    assert not canary.exists()


@in_a_fork(KINDS, ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_pickle_in_our_folder_is_rejected(kind: str, name: str, tmp_path: Path) -> None:
    canary, folder = tmp_path / "canary", tmp_path / "model"
    save_model(folder, make_model(), CHARACTERS)
    put(folder, name, pickles(canary)[kind])
    with watched() as events, pytest.raises((DamagedError, UnsafeError)):
        load_checkpoint(folder)
    assert not [event for event in events if event[0] in RUNNING]
    assert not canary.exists()


def put(folder: Path, name: str, data: bytes) -> None:
    """Replace a file and let the manifest agree."""
    (folder / name).write_bytes(data)
    forge(folder, lambda files: {**files, name: FileEntry.of(data)})


def forge(folder: Path, change: Callable[[dict[str, FileEntry]], dict[str, FileEntry]]) -> None:
    """Let the manifest list other files."""
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    files = change({key: FileEntry(**entry) for key, entry in manifest["files"].items()})
    (folder / MANIFEST_NAME).write_bytes(Manifest(files=files, about=manifest["about"]).to_json())


ESCAPES = (
    "../secret",
    "../../secret",
    "/etc/hostname",
    "~/secret",
    "a/../../secret",
    "..",
    ".",
    "",
    "%2e%2e/secret",
    "..\\secret",
    "\\\\host\\share",
    "secret\0.safetensors",
    "model.safetensors/",
    "./model.safetensors",
    "C:secret",
    "model\n.safetensors",
)


def opened_outside(events: list[tuple[str, Any]], folder: Path) -> list[str]:
    paths = [
        os.fspath(path)
        for event, path in events
        if event == "open" and not isinstance(path, int | bytes)
    ]
    inside = (str(folder), sys.prefix, str(Path(__file__).resolve().parents[2]))
    return [path for path in paths if isinstance(path, str) and not path.startswith(inside)]


@in_a_fork(ESCAPES)
def test_no_name_in_a_manifest_leads_out_of_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "model"
    save_model(folder, make_model(), CHARACTERS)
    old = "model.safetensors"
    forge(folder, lambda files: {name if key == old else key: one for key, one in files.items()})
    with watched() as events, pytest.raises(UnsafeError):
        load_checkpoint(folder)
    assert opened_outside(events, folder) == []


@in_a_fork(KINDS)
def test_a_training_state_that_became_a_pickle_is_refused(kind: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = tmp_path / "checkpoints" / "step-000000000003"
    folder.mkdir(parents=True)
    data = pickles(canary)[kind]
    files = dict.fromkeys(("weights.safetensors", "optimizer.safetensors"), data)
    for name in files:
        (folder / name).write_bytes(data)
    entries = {name: FileEntry.of(data) for name in files}
    manifest = Manifest(files=entries, about={"step": 3, "run_key": KEY})
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
    with watched() as events, pytest.raises(DamagedError, match="every checkpoint"):
        load_training_state(folder.parent, lambda _text: None)
    assert not [event for event in events if event[0] in RUNNING]
    assert not canary.exists()
