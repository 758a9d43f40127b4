"""Libraries are built once a machine; no compiler is normal, and a broken one is told once."""

import ctypes
import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from qkvary.nn.decoding import build
from qkvary.nn.decoding.decode import decode_attention
from tests.nn.decoding.cases import GATES, distance, draw
from tests.nn.decoding.test_step_long import read_rotated

NARROWER = (
    ["-mno-amx-bf16", "-mno-avx512f", "-mno-avx"] if platform.machine() == "x86_64" else ["-O3"]
)
GOOD = 'extern "C" int answer() { return 42; }\n'
BAD = "int answer() { return nothing; }\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.cpp"
    path.write_text(GOOD, "utf-8")
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoding"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that says a version, counts its calls and copies the source to its target."""
    path = tmp_path / "c++-stand-in"
    calls = tmp_path / "calls"
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && {{ echo one; exit; }}\n'
        f'echo "$*" >> {calls}\n'
        'case "$*" in *-march=native*) echo "no -march here" >&2; exit 1;; esac\n'
        'while [ "$1" != -o ]; do last=$1; shift; done\n'
        'grep -q nothing "$last" && { echo "error: nothing is known" >&2; exit 1; }\n'
        'cp "$last" "$2"\n',
        "utf-8",
    )
    path.chmod(0o755)
    monkeypatch.setattr(build, "find_compiler", lambda: str(path))
    return calls


def test_a_library_is_built_once_with_the_first_flags_that_work(
    source: Path, compiler: Path, folder: Path
) -> None:
    made = build.build([source])
    assert made is not None
    assert made.parent == folder
    assert made.read_text("utf-8") == GOOD
    assert len(compiler.read_text("utf-8").splitlines()) == 2
    assert not build.will_build([source])
    assert build.build([source]) == made
    assert len(compiler.read_text("utf-8").splitlines()) == 2
    assert [path for path in folder.iterdir() if path.suffix == ".so"] == [made]


def test_processes_that_begin_at_once_build_one_library(
    source: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of several threads here has a lock of its own, as processes have."""
    wait, make_directory = threading.Barrier(3).wait, build.make_directory

    def make_together(folder: Path) -> None:
        wait()
        make_directory(folder)

    monkeypatch.setattr(build, "make_directory", make_together)
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: build.build([source]), range(3)))
    assert len(set(made)) == 1
    assert len(compiler.read_text("utf-8").splitlines()) == 2


@pytest.mark.parametrize("place", ["file/below", None])
def test_what_cannot_be_kept_is_built_for_the_process_alone(
    source: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, place: str | None
) -> None:
    (source.parent / "file").touch()
    if place is None:
        monkeypatch.setattr(build, "kept_folder", lambda: None)
    else:
        monkeypatch.setenv("QKVARY_CACHE", str(source.parent / place))
    loaded: list[Path] = []

    class Library(ctypes.CDLL):
        def __init__(self, name: str) -> None:
            loaded.append(Path(name))
            assert loaded[0].read_text("utf-8") == GOOD

    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert build.will_build([source])
    assert build.load([source]) is not None
    assert len(compiler.read_text("utf-8").splitlines()) == 2
    assert not loaded[0].parent.exists()


def test_another_source_header_or_version_is_another_library(
    source: Path, compiler: Path, tmp_path: Path
) -> None:
    header = tmp_path / "answer.h"
    header.write_text("// new", "utf-8")
    names = {build.build([source]), build.build([source, header])}
    header.write_text("// changed", "utf-8")
    names.add(build.build([source, header]))
    stand_in = tmp_path / "c++-stand-in"
    stand_in.write_text(stand_in.read_text("utf-8").replace("echo one", "echo two"), "utf-8")
    names.add(build.build([source]))
    assert len(names) == 4


def test_a_source_that_does_not_build_is_told_and_leaves_nothing(
    source: Path, compiler: Path, folder: Path
) -> None:
    source.write_text(BAD, "utf-8")
    with pytest.raises(build.BuildError, match="error: nothing is known"):
        build.build([source])
    assert list(folder.iterdir()) == []
    with pytest.warns(UserWarning, match="runs without its native kernel: .*nothing is known"):
        assert build.load([source]) is None


@pytest.mark.compile
@pytest.mark.usefixtures("narrower")
@pytest.mark.parametrize("flag", NARROWER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrower_vectors_give_the_same(dtype: torch.dtype) -> None:
    """What other processors of the same kind run."""
    for heads, tokens, dim in ((2, 150, 32), (4, 97, 37), (6, 1100, 64), (10, 65, 64), (34, 9, 40)):
        query = draw(1, heads, 1, dim, seed=1, dtype=dtype)
        key = draw(1, 2, tokens, dim, seed=2, dtype=dtype)
        results = [
            decode_attention(query, key, key, scale=0.2, kernel=kernel)
            for kernel in ("native", "folded")
        ]
        assert distance(*results) < 2 * GATES[dtype]
    assert read_rotated(dtype, rows=2) < 2 * GATES[dtype]
