from dataclasses import replace

import numpy as np
import pytest

from qkvary.reports import attention_maps as maps
from qkvary.reports.attention_maps import RunAttention


def example(length: int = 5, layers: int = 2, heads: int = 3) -> RunAttention:
    weights = np.full((layers, heads, length, length), 1 / length)
    weights[1, 2] = np.eye(length)[::-1]
    return RunAttention(
        setting="reverse",
        variant="QKV",
        seed=3,
        run_key="",
        maps=weights,
        tokens=tuple("abcdefghijklmnopqrstuvwxyzabcdef"[:length]),
        targets=tuple(range(length - 1, -1, -1)),
    )


def test_mass_is_what_the_right_cells_hold() -> None:
    found = maps.masses(example())
    assert len(found) == 6
    assert found[0].mass == pytest.approx(0.2)
    most = maps.best(example())
    assert most is not None
    assert (most.layer, most.head, most.mass) == (1, 2, 1.0)
    assert maps.chance(example()) == 0.2


def test_a_causal_row_is_uniform_over_the_columns_that_it_sees() -> None:
    lower = np.tril(np.ones((5, 5)))
    uniform = np.broadcast_to(lower / lower.sum(axis=1, keepdims=True), (2, 3, 5, 5))
    causal = replace(example(), maps=uniform, targets=(None, None, 0, None, 3))
    assert maps.chance(causal) == (1 / 3 + 1 / 5) / 2
    assert [one.mass for one in maps.masses(causal)] == [pytest.approx(maps.chance(causal))] * 6


@pytest.mark.parametrize("change", ["negative", "unnormalised", "nan"])
def test_weights_that_are_no_distribution_have_no_mass(change: str) -> None:
    weights = example().maps.copy()
    weights[1, 0, 2, :2] += {"negative": (1, -1), "unnormalised": (0.5, 0), "nan": (np.nan, 0)}[
        change
    ]
    changed = replace(example(), maps=weights)
    heads = [(mass.layer, mass.head) for mass in maps.masses(changed)]
    assert heads == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]
    none = replace(example(), maps=3 * example().maps)
    assert maps.best(none) is None
