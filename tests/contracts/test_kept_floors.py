"""Kept results of small studies are those of networks that have learnt their task."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import pytest

from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS

STUDIES = Path(__file__).resolve().parents[2] / "studies" / "ours"


@pytest.mark.parametrize(
    ("study", "setting", "variants", "floor"),
    [
        ("mnist-quick", "mnist", SYNTHETIC_VARIANTS, 0.97),
        ("fashion-quick", "fashion-mnist", SYNTHETIC_VARIANTS, 0.85),
        ("cifar10-quick", "cifar10-15k", SYNTHETIC_VARIANTS, 0.50),
        ("anomaly-quick", "shuffled", ["QKV"], 0.30),
        ("translation-quick", "en-de", ["QKV"], 20.0),
    ],
)
def test_means_over_seeds_are_above_their_floor(
    study: str, setting: str, variants: Sequence[str], floor: float
) -> None:
    scores: dict[str, list[float]] = defaultdict(list)
    with (STUDIES / study / "tables" / "runs.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["setting"] == setting:
                assert row["state"] == "done"
                scores[row["variant"]].append(float(row["value"]))
    for variant in variants:
        assert len(scores[variant]) == 3
        assert mean(scores[variant]) >= floor, variant
