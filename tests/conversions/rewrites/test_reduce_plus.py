"""The position term + as a temperature and a bias of key positions."""

import pytest

from qkvary.costs.network import network_costs
from tests.conversions.networks import EXACT, convert, count, judge, labels, make_network


@pytest.mark.parametrize(
    ("label", "per_head", "features"),
    [("(Q=K-V)+", True, 1), ("(Q-GQA-2)+@alibi@t0.5", False, 10), ("(Q=K=V)+@diag-mean", True, 21)],
)
def test_the_published_form_is_reduced(label: str, per_head: bool, features: int) -> None:
    network = make_network(label, plus_features=features, plus_per_head=per_head)
    made = convert(network, "reduce-plus").network
    # The reference computes + in its published construction.
    assert judge(network, made) < EXACT
    assert all("@key-bias" in one and "+" not in one for one in labels(made))
    sets = 4 if per_head else 1
    assert count(made) == count(network) + 2 * sets * ((1 + 9) - (features + 1))
    assert network_costs(made.config, length=7).parameters.total == count(made)
