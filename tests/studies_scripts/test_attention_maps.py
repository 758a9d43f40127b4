"""Ranks of attention maps and the weight on a mirrored token, on maps that are known."""

import pytest
import torch
from torch import Tensor

from tests.studies_scripts.loading import load_script

script = load_script("attention-maps", "measure")
TOKENS = 11


def stack(*maps: Tensor) -> Tensor:
    """Two equal sequences of one layer with these heads."""
    return torch.stack(maps)[None, None].expand(2, 1, len(maps), TOKENS, TOKENS)


def test_the_share_of_singular_values_of_known_maps() -> None:
    equal, own = torch.full((TOKENS, TOKENS), 1 / TOKENS), torch.eye(TOKENS)
    assert script.rank_share(stack(equal)) == pytest.approx(1 / TOKENS)
    # Ten of eleven equal values hold 91 %, nine 82 %.
    assert script.rank_share(stack(own)) == pytest.approx(10 / TOKENS)
    assert script.rank_share(stack(equal, own)) == pytest.approx(5.5 / TOKENS)


def test_the_weights_of_the_head_that_mirrors_most() -> None:
    mirror = torch.eye(TOKENS).flip(0)
    beside = torch.zeros(TOKENS, TOKENS)
    for row in range(TOKENS):
        places = [one for one in (TOKENS - 2 - row, TOKENS - row) if 0 <= one < TOKENS]
        beside[row, places] = 1 / len(places)
    found = script.read_reverse(stack(torch.eye(TOKENS), 0.7 * mirror + 0.3 * beside))
    assert found[script.TARGET] == pytest.approx(0.7)
    # 0.15 on each of two neighbours, and 0.3 on the only one of the two rows at the ends.
    places = 2 * (TOKENS - 1)
    assert found[script.NEIGHBOURS] == pytest.approx(0.3 * TOKENS / places)


def test_a_row_for_each_task_and_quantity() -> None:
    def network(value: float, accuracy: float | None) -> object:
        mixed = value * torch.eye(TOKENS).flip(0) + (1 - value) / TOKENS
        return script.Network(stack(mixed), 7, accuracy)

    pairs = [(network(0.0, None), network(0.8 + 0.01 * seed, 1.0)) for seed in range(3)]
    rows = list(script.figure_rows({"reverse": pairs, "characters": pairs}))
    assert [(row["table"], row["reference"], row["quantity"]) for row in rows] == [
        *(
            (task, reference, script.RANK)
            for task in ("reverse", "characters")
            for reference in ("", script.BEFORE)
        ),
        *(("reverse", "", name) for name in (script.TARGET, script.NEIGHBOURS, script.ACCURACY)),
    ]
    before = 1 / TOKENS
    assert rows[1]["value"] == pytest.approx(rows[0]["value"] - before)
    assert rows[4]["value"] == pytest.approx(0.81 + 0.19 / TOKENS)
    assert {(row["runs"], row["parameters_least"]) for row in rows} == {(3, 7)}
