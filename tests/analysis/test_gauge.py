"""A change of basis in every head: the network stays, what is free of it stays, the rest moves."""

import dataclasses
import math
from collections.abc import Mapping

import pytest
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
