"""How calls are cut for GPUs, what is left to others, and what the kernels look like when built.

That they equal plain loops is tested with the other kernels, in Triton's interpreter; on a machine
with a GPU, ``TRITON_INTERPRET=0 pytest -m gpu`` runs them there.
"""

import itertools
import json
from pathlib import Path

import pytest
import torch

from qkvary.nn.decoding import decode, native, triton_attention
from qkvary.nn.decoding.problem import Decoding
from tests.conftest import ROOT, Runner
from tests.nn.decoding.cases import GATES, attend_stored, distance, draw
from tests.pairwise import pairwise

HOPPER_PROCESSORS = 132


def make(
    *, dim: int = 16, value_dim: int | None = None, dtype: torch.dtype = torch.float32
) -> Decoding:
    key = torch.zeros(1, 2, 70, dim, dtype=dtype)
    value = key if value_dim is None else torch.zeros(1, 2, 70, value_dim, dtype=dtype)
    query = torch.zeros(1, 6, 1, dim, dtype=dtype)
    return Decoding(query=query, key=key, value=value, scale=1.0)


@pytest.mark.parametrize(
    ("problem", "is_taken"),
    [
        (make(dtype=torch.float64), False),
        (make(dtype=torch.float16), True),
        (make(dim=1, value_dim=3), True),
        (make(dim=512, dtype=torch.bfloat16), True),
        (make(dim=513, dtype=torch.bfloat16), False),
        (make(dim=64, value_dim=513, dtype=torch.bfloat16), False),
        (make(dim=256), True),
        (make(dim=257), False),
    ],
)
def test_what_is_too_wide_is_left_to_others(problem: Decoding, is_taken: bool) -> None:
    assert triton_attention.supports(problem) == is_taken
    assert (decode.choose(problem, "triton") == "triton") == is_taken


def test_what_cannot_be_built_is_told_once_and_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unbuilt:
        def __getitem__(self, grid: object) -> object:
            raise triton_attention.kernels.FAILURES[0]("out of registers")

    monkeypatch.setattr(triton_attention.kernels, "attend_run", Unbuilt())
    monkeypatch.setattr(triton_attention, "is_interpreted", lambda: False)
    # As on a GPU, for which these are not made.
    monkeypatch.setattr(native, "supports", lambda _problem: False)
    with pytest.warns(UserWarning, match="'triton': Triton cannot build its kernels: out of reg"):
        assert decode.choose(make()) == "folded"
    assert decode.choose(make()) == "folded"


@pairwise(
    "processors, tokens, shape, halves",
    itertools.product(
        [1, 2, 7, HOPPER_PROCESSORS],
        [1, 16, 129, 4096, 32_768, 100_003],
        [(16, 16, 1), (16, 4, 3), (80, 1, 1)],
        [1, 2, 4],
    ),
    ids=str,
)
def test_runs_cover_all_keys_and_none_is_empty(
    monkeypatch: pytest.MonkeyPatch,
    processors: int,
    tokens: int,
    shape: tuple[int, int, int],
    halves: int,
) -> None:
    heads, kv_heads, batch = shape
    monkeypatch.setattr(triton_attention, "_processors", lambda _: processors)
    key = torch.zeros(1, dtype=torch.bfloat16).expand(batch, kv_heads, tokens, 64)
    query = torch.zeros(batch, heads, 1, 64, dtype=torch.bfloat16)
    problem = Decoding(query=query, key=key, value=key, scale=1.0)
    tile_bytes = triton_attention.TILE_BYTES // halves
    pieces = triton_attention.cut(problem, tile_bytes)
    tiles = -(-tokens // pieces.tile)
    each = -(-tiles // pieces.runs)
    assert (pieces.runs - 1) * each < tiles <= pieces.runs * each
    assert pieces.block * pieces.blocks >= heads // kv_heads
    programs = pieces.runs * batch * kv_heads * pieces.blocks
    # Tiles of half the size have twice the programs.
    most = halves * triton_attention.PROGRAMS * processors
    assert pieces.runs == 1 or programs <= most
    # Long contexts keep every multiprocessor busy, however few the heads are.
    if tiles > triton_attention.MOST_RUNS:
        assert programs >= min(most / 2, triton_attention.MOST_RUNS / 2)


@pairwise(
    "processors, dtype, is_biased",
    itertools.product([1, 40], triton_attention.TYPES, [False, True]),
    ids=str,
    together=1,
)
def test_any_number_of_runs_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, processors: int, dtype: torch.dtype, is_biased: bool
) -> None:
    """Far positions, runs of padding alone, several blocks of rows, and other values."""
    monkeypatch.setattr(triton_attention, "_processors", lambda _: processors)
    monkeypatch.setattr(triton_attention, "MOST_ROWS", 16)
    monkeypatch.setattr(triton_attention, "MOST_KEYS", 32)
    query = draw(2, 34, 1, 32, seed=1, dtype=dtype)
    key, value = draw(2, 2, 93, 32, seed=2, dtype=dtype), draw(2, 2, 93, 19, seed=3, dtype=dtype)
    valid = torch.ones(2, 93, dtype=torch.bool)
    valid[0, :70], valid[1, 17::3] = False, False
    bias = draw(2, 34, 1, 93, seed=4) if is_biased else None
    problem = Decoding(query=query, key=key, value=value, scale=0.1, valid=valid, bias=bias)
    pieces = triton_attention.cut(problem, triton_attention.TILE_BYTES)
    assert triton_attention.supports(problem)
    assert (pieces.runs > 1) == (processors > 1)
    assert pieces.blocks > 1
    expected = attend_stored(query, key, value, scale=0.1, valid=valid, bias=bias)
    assert distance(triton_attention.attend_triton(problem), expected) < GATES[dtype]


@pytest.mark.compile
def test_kernels_are_built_for_gpus_that_are_not_here(run_python: Runner, tmp_path: Path) -> None:
    """Built, not run: types fit, memory suffices, and one tensor's tiles are read once."""
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = run_python(["-m", "tests.nn.decoding.built_for_gpus"], cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert {facts["capability"] for facts in built} == {80, 90}
    for facts in built:
        is_widest = facts["case"] == "widest"
        assert facts["halvings"] == is_widest, facts
        reads = 2 if facts["case"] == "two tensors" else 1
        assert is_widest or facts["tiles_read"] == reads, facts
