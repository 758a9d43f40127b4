"""How much logits differ, also where there is nothing to divide by."""

from tests.conversions.networks import convert, make_network


def test_a_network_whose_logits_are_zero_is_rewritten() -> None:
    network = make_network("QKV")
    network.embedding.data.zero_()
    made = convert(network, "gauge")
    assert (made.exact.largest, made.exact.relative, made.exact.changed) == (0.0, 0.0, 0.0)
