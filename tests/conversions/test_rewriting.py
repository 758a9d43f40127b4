"""How much logits differ, also where there is nothing to divide by."""

import math

import torch

from qkvary.conversions.rewriting import MOST_DIFFERENCE, measure_difference
from tests.conversions.networks import convert, make_network


def test_logits_of_zero_have_a_relative_difference() -> None:
    zeros = torch.zeros(2, 3).double()
    assert measure_difference(zeros, zeros, torch.float64).relative == 0.0
    assert measure_difference(zeros, zeros + 1e-30, torch.float64).relative == math.inf
    broken = measure_difference(zeros, zeros * math.nan, torch.float64).relative
    assert not broken <= MOST_DIFFERENCE


def test_a_network_whose_logits_are_zero_is_rewritten() -> None:
    network = make_network("QKV")
    network.embedding.data.zero_()
    made = convert(network, "gauge")
    assert (made.exact.largest, made.exact.relative, made.exact.changed) == (0.0, 0.0, 0.0)
