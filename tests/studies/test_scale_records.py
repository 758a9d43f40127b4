"""Ratios are paired by seed, and means of divergences are geometric."""

import math

import pytest

from qkvary.studies.scale_records import BITS, CONFIDENCE, RATIO_BITS, RATIOS, WAYS
from tests.studies.scale_examples import made_up


def test_ratios_are_those_of_pairs() -> None:
    found = {(one.what, one.where, one.bits): one for one in made_up().ratios()}
    matched = "by channel instead of by token, with as many newest tokens as they are"
    by_channel = found[matched, "QKV@alibi", 4]
    assert math.exp(by_channel.log.mean or 0) == pytest.approx(0.1, rel=0.05)
    single = "by channel, newest tokens as they are, one tensor instead of two"
    one = found[single, "Q-K=V@rotary", 8]
    assert math.exp(one.log.mean or 0) == pytest.approx(2.0, rel=0.05)
    turned = found["by channel, keys stored rotated instead of not", "QKV@rotary", 4]
    assert math.exp(turned.log.mean or 0) == pytest.approx(3.0, rel=0.05)
    rotated = found["by token, rotated first instead of not", "Q-K=V@alibi", 8]
    logs = [
        math.log(0.9 * (1 + 0.01 * seed * (8 + 1)) / (1 + 0.01 * seed * 8)) for seed in (0, 1, 2)
    ]
    assert rotated.log.mean == pytest.approx(sum(logs) / 3)
    assert ("by channel, keys stored rotated instead of not", "QKV@alibi", 4) not in found
    assert len(found) == 4 * len(RATIOS) * len(RATIO_BITS) + 2 + 2 * 2 * len(RATIO_BITS)


def test_all_intervals_hold_at_once() -> None:
    ratios = made_up().ratios()
    assert {one.log.confidence for one in ratios} == {1 - (1 - CONFIDENCE) / len(ratios)}
    assert {one.verdict for one in ratios} <= {"lower", "higher", "not distinguished"}
    rotated = [one for one in ratios if one.what == "by channel, rotated first instead of not"]
    assert {one.verdict for one in rotated} == {"higher"}
    assert {one.verdict for one in made_up((0,)).ratios()} == {"no interval"}


def test_summaries_are_over_seeds() -> None:
    study = made_up()
    summaries = {(one.variant, one.layout, one.bits, one.scales): one for one in study.summaries()}
    assert len(summaries) == 4 * len(WAYS) * len(BITS) + 2
    one = summaries["QKV@alibi", "sources", 4, "g32"]
    values = [
        1e-6 * 256 * (1 + 0.04 * seed) * (1 + 0.009 * seed + 0.014 * seed) for seed in (0, 1, 2)
    ]
    assert math.exp(one.mean_kl.mean or 0) == pytest.approx(math.prod(values) ** (1 / 3))
    assert one.perplexity_change.mean == pytest.approx(sum(values) / 30)
    assert (one.seeds, one.meeting, one.drifting) == (3, 0, 0)
    assert summaries["QKV@alibi", "sources", 3, "b32"].drifting == 3
