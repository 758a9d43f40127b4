"""Cosines of weights against loops over their entries."""

import math

import numpy as np
import pytest

from qkvary.analysis.cosines import read_cosines
from qkvary.nn.role_maps import make_role_maps
from tests.analysis.networks import make_network


def plain_cosine(one: list[float], other: list[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


@pytest.mark.parametrize("label", ["QKV", "GQA-2", "I-K=V", "Q-K=V"])
def test_cosines_equal_loops(label: str) -> None:
    attention = make_network(label, d_model=20, heads=4).stack.blocks[1].attention
    maps = make_role_maps(attention)
    found = {(pair.first, pair.second): pair for pair in read_cosines(maps)}
    assert list(found) == [("query", "key"), ("query", "value"), ("key", "value")]
    query, value = maps.query.weight.numpy(), maps.value.weight.numpy()
    group = len(query) // len(value)
    pair = found["query", "value"]
    heads = [plain_cosine(query[h].ravel(), value[h // group].ravel()) for h in range(4)]
    assert pair.heads == pytest.approx(heads, abs=1e-12)
    columns = [
        plain_cosine(query[h, channel].tolist(), value[h // group, channel].tolist())
        for h in range(4)
        for channel in range(5)
    ]
    assert pair.columns == pytest.approx(np.mean(columns), abs=1e-12)
    flat = [value[h // group].ravel() for h in range(4)]
    assert pair.flattened == pytest.approx(
        plain_cosine(query.ravel(), np.concatenate(flat)), abs=1e-12
    )
    shared = found["key", "value"]
    assert (shared.flattened == pytest.approx(1.0)) == ("=" in label)
