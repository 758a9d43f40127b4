"""All costs in one value."""

import json

import pytest

from qkvary.arch.named_networks import gpt_300m
from qkvary.costs.network import network_costs
from tests.arch.synthetic_networks import synthetic_encoder


def test_costs_are_json_with_units_last() -> None:
    found = network_costs(synthetic_encoder("Q=K-V"), length=16).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["parameters"]["total"] == 64_266
    assert found["cache_bytes_per_token"] is None
    assert found["macs"]["total"] == found["macs_per_sequence"]


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a length of at least 1 token, got 0"):
        network_costs(synthetic_encoder("QKV"), length=0)
    with pytest.raises(ValueError, match="expected dtype to be one of"):
        network_costs(gpt_300m("QKV"), dtype="int3")  # type: ignore[arg-type]
