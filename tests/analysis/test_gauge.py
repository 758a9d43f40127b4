"""A change of basis in every head: the network stays, what is free of it stays, the rest moves."""

import dataclasses
import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkvary.analysis.measurement import analyze_windows
from qkvary.analysis.results import KeyValueReading, LayerAnalysis
from tests.analysis.networks import change_basis, make_network, make_windows
from tests.conftest import examples

MOVES = {"plain_similarity"}
"""The figures of a KV head that change with the basis."""
FIGURES = {field.name for field in dataclasses.fields(KeyValueReading)} - MOVES
CASES: Mapping[str, tuple[int, ...]] = {
    "QKV": (2, 3),
    "QKV@rotary": (2, 3),
    "GQA-2": (4,),
    "MQA": (3,),
    "GQA-2@rotary": (4,),
    "QKV@alibi": (3,),
}


@st.composite
def networks(draw: st.DrawFn) -> dict[str, object]:
    label = draw(st.sampled_from(sorted(CASES)))
    heads = draw(st.sampled_from(CASES[label]))
    return {
        "label": label,
        "heads": heads,
        "head_dim": draw(st.sampled_from([2, 4, 5] if "rotary" not in label else [4, 6])),
        "d_model": draw(st.sampled_from([11, 14])),
        "bias": draw(st.booleans()) and "rotary" not in label,
        "seed": draw(st.integers(0, 99)),
    }


def analyze(options: dict[str, object], gauge: int | None) -> tuple[LayerAnalysis, ...]:
    network = make_network(**options)  # pyright: ignore[reportArgumentType]
    if gauge is not None:
        change_basis(network, gauge)
    return analyze_windows(network, make_windows(5, 61, 53), context=64).layers


@examples(10)
@given(options=networks(), gauge=st.integers(0, 99))
def test_what_is_free_of_the_basis_stays_and_the_rest_moves(
    options: dict[str, object], gauge: int
) -> None:
    before, after = analyze(options, None), analyze(options, gauge)
    for one, other in zip(before, after, strict=True):
        for head, changed in zip(one.key_values, other.key_values, strict=True):
            for name in FIGURES:
                found, expected = getattr(changed, name), getattr(head, name)
                assert found == pytest.approx(expected, rel=1e-5, abs=1e-7), name
            assert not math.isclose(head.plain_similarity, changed.plain_similarity, rel_tol=1e-4)
        for pair, changed in zip(one.cosines, other.cosines, strict=True):
            assert pair.flattened is not None
            assert changed.flattened is not None
            assert not math.isclose(pair.flattened, changed.flattened, rel_tol=1e-4)
        for rank, changed in zip(one.ranks, other.ranks, strict=True):
            same = rank.found.entropy == pytest.approx(changed.found.entropy, rel=1e-6)
            assert same == (rank.matrix == "query-key"), rank.matrix
        for head, changed in zip(one.attention, other.attention, strict=True):
            assert dataclasses.astuple(changed) == pytest.approx(
                dataclasses.astuple(head), rel=1e-6, abs=1e-9
            )


@pytest.mark.parametrize("seed", [3, 5, 7])
def test_unrelated_heads_have_a_low_cosine_in_every_basis(seed: int) -> None:
    """No change of basis lifts a cosine above the largest one of the two subspaces."""
    draw = torch.Generator().manual_seed(seed)
    key, value = (torch.randn(1024, 64, generator=draw).double() for _ in range(2))
    bases = [torch.linalg.qr(matrix).Q for matrix in (key, value)]
    left, cosines, right = torch.linalg.svd(bases[0].mT @ bases[1])
    assert 0.4 < float(cosines[0]) < 0.5
    # A basis that comes close to it, and one of chance.
    nearly = [torch.diag(torch.tensor([1.0] + [1e-3] * 63).double())] * 2
    chance = [torch.randn(64, 64, generator=draw).double() for _ in range(2)]
    found: list[float] = []
    for one, other in (nearly, chance):
        changed = bases[0] @ left @ one, bases[1] @ right.mT @ other
        found.append(float(torch.cosine_similarity(*(x.flatten() for x in changed), dim=0)))
    assert found[0] == pytest.approx(float(cosines[0]), rel=1e-3)
    assert abs(found[1]) < found[0]
