"""Parameters that are printed; ``tests/contracts`` compares every part with what is built."""

import pytest

from qkvary.costs.parameters import network_parameters
from tests.arch.synthetic_networks import synthetic_encoder


@pytest.mark.parametrize(
    ("label", "published"),
    [
        ("QKV", 72_586),
        # The published 64,288 counts 11 numbers a layer that this variant never uses.
        ("Q=K-V", 64_288 - 22),
        ("(Q=K-V)+", 64_288),
    ],
)
def test_synthetic_networks_have_the_published_counts(label: str, published: int) -> None:
    assert network_parameters(synthetic_encoder(label)).total == published
