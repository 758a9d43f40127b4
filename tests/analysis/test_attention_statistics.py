"""Entropy, distance, diagonal and asymmetry against loops over pairs of tokens."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from qkvary.analysis.attention_statistics import AttentionStatistics
from qkvary.analysis.observation import read_window
from tests.analysis.networks import make_network, make_windows
from tests.reference import analysis as reference


@pytest.mark.parametrize("label", ["QKV", "GQA-2@rotary", "QKV@alibi", "QKV@w4", "(Q=K-V)+"])
def test_statistics_equal_loops(label: str) -> None:
    network = make_network(label, d_model=16, heads=4)
    attention, windows = network.stack.blocks[1].attention, make_windows(2, 13, 7)
    statistics = AttentionStatistics(attention)
    maps: list[list[reference.Array]] = [[], [], [], []]
    for window in windows:
        reading = read_window(network, window, torch.Generator()).layers[1]
        weights = statistics.add(reading)
        scores = reading.scores.multiply()
        bias = reading.scores.cooled_pair_bias()
        scores = (scores if bias is None else scores + bias)[0, 2].numpy()
        size = len(window)
        span = attention.config.variant.window or size
        seen = np.tri(size, dtype=bool) & ~np.tri(size, k=-span, dtype=bool)
        masked = softmax(np.where(seen, scores, -np.inf), axis=-1)
        assert weights[2].numpy() == pytest.approx(masked, abs=1e-9)
        symmetric = softmax(np.where(seen, (scores + scores.T) / 2, -np.inf), axis=-1)
        for some, one in zip(
            maps, (scores, softmax(scores, axis=-1), masked, symmetric), strict=True
        ):
            some.append(one)
    found = statistics.result()[2]
    assert found.head == 3
    asymmetries = (
        found.score_asymmetry,
        found.unmasked_asymmetry,
        found.asymmetry,
        found.mask_asymmetry,
    )
    assert asymmetries == pytest.approx([reference.asymmetry(some) for some in maps])
    lengths = [13, 7]
    described = np.average(
        [reference.describe_attention(one) for one in maps[2]], axis=0, weights=lengths
    )
    assert (found.entropy, found.distance, found.diagonal) == pytest.approx(described)
    span = attention.config.variant.window or 99
    uniform = [
        reference.describe_attention(
            np.array(
                [[float(0 <= i - j < span) / min(i + 1, span) for j in range(n)] for i in range(n)]
            )
        )
        for n in lengths
    ]
    assert (found.uniform_entropy, found.uniform_distance, found.uniform_diagonal) == pytest.approx(
        np.average(uniform, axis=0, weights=lengths), rel=1e-6
    )


def test_one_projection_for_query_and_key_has_symmetric_scores() -> None:
    network = make_network("Q=K-V", d_model=16, heads=4)
    statistics = AttentionStatistics(network.stack.blocks[0].attention)
    for window in make_windows():
        statistics.add(read_window(network, window, torch.Generator()).layers[0])
    for head in statistics.result():
        assert head.score_asymmetry < 1e-12
        # The softmax divides each row by its own sum, and the mask hides one side.
        assert head.unmasked_asymmetry > 0.01
        assert head.asymmetry == pytest.approx(head.mask_asymmetry)
