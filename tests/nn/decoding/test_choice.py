"""The kernel of a call follows a rule, is the fastest found for a kind of call, or is pinned."""

import json
from pathlib import Path

import pytest
import torch

from qkvary.nn.decoding import choice
from qkvary.nn.decoding.problem import Decoding
from tests.nn.decoding.cases import KERNELS, TIMED, draw


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's timings are kept."""
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path))
    (tmp_path / "decoding").mkdir()
    return tmp_path / "decoding"


def make(tokens: int = 40, *, heads: int = 4, dtype: torch.dtype = torch.float32) -> Decoding:
    key = draw(1, 2, tokens, 16, seed=1, dtype=dtype)
    query = draw(1, heads, 1, 16, seed=2, dtype=dtype)
    return Decoding(query=query, key=key, value=key, scale=0.25)


def time_as(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> list[str]:
    """Let kernels take these seconds; return who was timed, in order."""
    timed: list[str] = []

    def pretend(problem: Decoding, name: str, repeats: int) -> float:
        assert repeats >= 1
        timed.append(name)
        return seconds.get(name, 1.0)

    monkeypatch.setattr(choice, "_time", pretend)
    return timed


def read(folder: Path) -> dict[str, object]:
    return json.loads((folder / "choices.json").read_text("utf-8"))


def test_the_fastest_is_taken_kept_and_not_timed_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = time_as(monkeypatch, {"matmul": 0.5})
    assert choice.choose(make(), "fastest") == "matmul"
    assert set(timed) == set(TIMED)
    count = len(timed)
    assert choice.choose(make(33), "fastest") == "matmul"
    choice.forget()
    assert choice.choose(make(64), "fastest") == "matmul"
    assert len(timed) == count
    assert list(choice.chosen().values()) == ["matmul"]
    assert read(folder)["choices"] == choice.chosen()
    assert [path.name for path in folder.iterdir()] == ["choices.json"]


@pytest.mark.parametrize(
    "other",
    [
        make(65),
        make(heads=2),
        make(dtype=torch.bfloat16),
        Decoding(query=make().query, key=make().key, value=make().key.clone(), scale=1.0),
        Decoding(
            query=make().query,
            key=make().key,
            value=make().key,
            scale=1.0,
            valid=torch.ones(1, 40, dtype=torch.bool),
        ),
    ],
    ids=["length", "heads", "type", "separate value", "padding"],
)
def test_another_kind_of_call_is_timed_by_itself(
    other: Decoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = time_as(monkeypatch, {})
    choice.choose(make(), "fastest")
    count = len(timed)
    choice.choose(other, "fastest")
    assert len(timed) > count
    assert len(choice.chosen()) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 2}',
        '{"format": 1, "choices": {}}',
        "[" * 100_000,
        '{"format": 2, "machine": "MACHINE", "choices": {"KIND": ["matmul"]}}',
        '{"format": 2, "machine": "MACHINE", "choices": {"KIND": "gone"}}',
        '{"format": 2, "machine": "another", "choices": {"KIND": "sdpa"}}',
    ],
)
def test_a_damaged_file_is_ignored_and_written_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    time_as(monkeypatch, {"matmul": 0.5})
    kind = choice.describe(choice.kind_of(make()))
    text = text.replace("MACHINE", choice._machine()).replace("KIND", kind)
    (folder / "choices.json").write_text(text, "utf-8")
    assert choice.choose(make(), "fastest") == "matmul"
    assert read(folder)["choices"] == {kind: "matmul"}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_pinned_by_the_environment_or_the_argument(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    timed = time_as(monkeypatch, {})
    assert choice.choose(make(), name) == name
    monkeypatch.setenv("QKVARY_DECODE_KERNEL", name)
    assert choice.choose(make()) == name
    assert choice.choose(make(), "matmul") == "matmul"
    assert timed == []
    assert choice.chosen() == {}


@pytest.mark.parametrize("best", TIMED)
def test_by_default_no_time_decides(
    folder: Path, monkeypatch: pytest.MonkeyPatch, best: str
) -> None:
    timed = time_as(monkeypatch, {best: 0.1})
    assert choice.choose(make()) == ("native" if "native" in TIMED else "folded")
    assert choice.choose(make(dtype=torch.float64)) == "folded"
    assert choice.choose(make(dtype=torch.float64), "native") == "folded"
    assert timed == []
    assert list(folder.glob("*.json")) == []


def test_a_kernel_that_fails_is_told_and_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(problem: Decoding) -> torch.Tensor:
        raise RuntimeError("no room")

    time_as(monkeypatch, {"matmul": 0.5, "folded": 0.6})
    monkeypatch.setattr(choice, "KERNELS", {**choice.KERNELS, "matmul": fail})
    with pytest.warns(UserWarning, match="goes without its kernel 'matmul': no room"):
        assert choice.choose(make(), "fastest") == "folded"
