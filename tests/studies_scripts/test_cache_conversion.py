"""The page of the study of smaller caches follows from its records; measured losses are losses."""

import math

import pytest
import torch

from qkvary.conversions.caches.divergence import Comparison
from tests.conversions.caches.networks import make_config, make_network
from tests.studies_scripts.loading import folder_of, load_script

FOLDER = folder_of("cache-conversion")
PAGE = load_script("cache-conversion", "page")
BASE = {"loss": 2.0, "windows": [1.0, 3.0], "stories": 1.0, "bytes_per_token": 100.0}
CHANGED = {**BASE, "loss": 2.5, "windows": [1.4, 3.6], "one shot": 3.0}


def test_rows_are_differences_from_the_network_as_it_is() -> None:
    made = {**CHANGED, "stories": 1.5, "bytes_per_token": 50.0, "cpu_seconds": 4.0}
    exact, coded = {"loss": 7.0, "bytes_per_token": 50}, {"loss": 7.1, "bytes_per_token": 30}
    case = "latent 50%, 6144 tokens of novels"
    records = {"as it is": BASE, case: made, f"{case}, fp16": exact, f"{case}, int8-g64": coded}
    row, both = PAGE.read_rows(records)
    assert (row.kind, row.share) == ("latent", 0.5)
    assert (row.change, row.one_shot, row.stories) == (0.5, 1.0, 0.5)
    assert row.error == pytest.approx(math.sqrt(0.02 / 2))
    assert (both.kind, both.share) == ("8 bits", 0.3)
    assert both.change == pytest.approx(0.6)


def test_losses_are_those_of_the_network() -> None:
    measure = load_script("cache-conversion", "measure")
    network = make_network(make_config())
    windows = torch.randint(37, (3, 20), generator=torch.Generator().manual_seed(0))
    losses = measure._losses(network, windows)
    assert losses.shape == (3, 19)
    expected, _ = Comparison(network, windows).measure(network)
    assert float(losses.mean()) == pytest.approx(expected, rel=1e-6)


def test_healed_networks_have_a_table_without_caches_of_fewer_bits() -> None:
    healed = "latent 50%, x, healed 50000"
    records = {
        "as it is": BASE,
        "latent 50%, x": CHANGED,
        healed: {**CHANGED, "loss": 2.1, "windows": [1.1, 3.1]},
        f"{healed}, fp16": {"loss": 2.2, "bytes_per_token": 100.0},
        f"{healed}, int8-g64": {"loss": 2.3, "bytes_per_token": 50.0},
    }
    (row,) = PAGE.make_healed_table(PAGE.read_rows(records)).rows
    assert [cell.text for cell in row[2:]] == ["+0.500 ± 0.100", "+0.100 ± 0.000", "–", "–"]
