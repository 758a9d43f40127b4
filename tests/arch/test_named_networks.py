"""The networks that have a name, and the one function that finds them."""

import dataclasses

import pytest

from qkvary.arch.families.sizes import load_size
from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.models import as_model
from qkvary.arch.named_networks import ALIASES, NETWORKS, canonical_name, find_network, gpt_300m
from qkvary.training.presets import find_preset


def test_a_name_is_one_network_for_costs_and_for_training() -> None:
    for name in [*NETWORKS, *ALIASES, "300M", "LM_300M", " Lm-300M "]:
        network = find_network(name)
        assert find_preset(name).network == network
        assert load_size(name) == as_model(network, name=canonical_name(name) or "")


def test_another_variant_keeps_the_positions_of_the_network() -> None:
    varied = find_network("lm-10m", "Q-K=V").layers[0].variant
    assert format_label(varied) == "Q-K=V@rotary"
    assert find_network("lm-10m", parse_variant("Q-K=V")).layers[0].variant == varied
    assert format_label(find_network("300M", "MQA@alibi").layers[0].variant) == "MQA@alibi"
    plain = dataclasses.replace(find_network("300M", "Q-K=V"), attention=gpt_300m().attention)
    assert plain == gpt_300m()


def test_an_unknown_name_gets_a_near_one_or_all() -> None:
    with pytest.raises(ValueError, match="name of a network, got 'lm-300'; did you mean lm-300m"):
        find_network("lm-300")
    with pytest.raises(ValueError, match=r"got 'zzz'; choices: lm-300m, lm-300m-poster,"):
        find_network("zzz")
