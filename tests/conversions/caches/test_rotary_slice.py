"""The rotated key for all heads: held to rotations in plain loops."""

import math

import pytest
import torch
from torch import Tensor

from qkvary.conversions.caches.rotary_slice import RotarySlice, cut_slice
from tests.conversions.caches.networks import copy_heads, make_config, make_network, read

INPUTS = torch.randn(50, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def turn(vector: Tensor, position: int, rotated: int) -> Tensor:
    """Rotate the last channels of a vector by a position: each pair by its own angle."""
    found, half = vector.clone(), rotated // 2
    for pair in range(half):
        angle = position * 10_000 ** (-2 * pair / rotated)
        first = len(vector) - rotated + pair
        one, other = float(vector[first]), float(vector[first + half])
        found[first] = one * math.cos(angle) - other * math.sin(angle)
        found[first + half] = one * math.sin(angle) + other * math.cos(angle)
    return found


def augment(x: Tensor) -> Tensor:
    return torch.cat((x, torch.ones(1, dtype=x.dtype)))


@pytest.mark.parametrize(
    ("variant", "fraction", "bias"),
    [("GQA-2@rotary", 1.0, False), ("GQA-3@rotary", 0.5, True), ("MQA@rotary", 1.0, True)],
)
def test_rotated_rests_give_the_scores_of_the_layer(
    variant: str, fraction: float, bias: bool
) -> None:
    """A unitary matrix at each frequency changes no score, if all parts are rotated."""
    network = make_network(make_config(variant, fraction=fraction, bias=bias))
    maps = read(network, INPUTS)
    found, rotated = cut_slice(maps), maps.config.rotated_channels
    x, y = augment(INPUTS[0]), augment(INPUTS[1])
    for head in range(6):
        group = head // maps.heads_of_group
        query, key = x @ maps.query[:, head], y @ maps.key[:, group]
        expected = turn(query, 7, rotated) @ turn(key, 3, rotated)
        sliced = turn(x @ found.query[:, head], 7, rotated) @ turn(y @ found.key, 3, rotated)
        rest = turn(query, 7, rotated) @ turn(y @ found.rest[:, group], 3, rotated)
        assert sliced + rest == pytest.approx(float(expected), rel=1e-10)


def test_copies_of_one_key_leave_no_rest() -> None:
    network = make_network(make_config("GQA-3@rotary"))
    copy_heads(network, "k", groups=3)
    found = cut_slice(read(network, INPUTS))
    assert float(found.rest.abs().max()) < 1e-12
    for block in network.stack.layers:
        heads = block.attention.get_parameter("k_proj.weight").data.view(3, 8, 24)
        # A phase at each frequency is no other key.
        for column in range(24):
            heads[1, :, column] = turn(heads[0, :, column], 2, 8)
    found = cut_slice(read(network, INPUTS))
    assert float(found.rest.abs().max()) < 1e-12
    network = make_network(make_config("GQA-3@rotary"))
    assert float(cut_slice(read(network, INPUTS)).rest.abs().max()) > 0.1


def lose(maps_query: Tensor, found: RotarySlice, times: int) -> float:
    """The mean square of what is left of the products of rotated queries and keys."""
    inputs = torch.cat((INPUTS, torch.ones(50, 1, dtype=torch.float64)), dim=1)
    keys = torch.einsum("nd,dgi->ngi", inputs, found.rest).repeat_interleave(times, dim=1)
    queries = torch.einsum("nd,dhi->nhi", inputs, maps_query)
    # Energies at each frequency, which no rotation changes.
    energy = keys.unflatten(2, (2, -1)).square().sum(2).mean(0)
    read_by = queries.unflatten(2, (2, -1)).square().sum(2).mean(0)
    return float((energy * read_by).sum())


def test_the_slice_keeps_more_than_any_key_of_the_layer() -> None:
    network = make_network(make_config("GQA-3@rotary"))
    maps = read(network, INPUTS)
    found = cut_slice(maps)
    best = lose(maps.query, found, 2)
    for group in range(3):
        rest = maps.key.clone()
        rest[:, group] = 0
        assert best < lose(maps.query, found._replace(rest=rest), 2)


@pytest.mark.parametrize("channels", [4, 2])
def test_fewer_channels_have_the_highest_frequency_of_their_neighbours(channels: int) -> None:
    network = make_network(make_config("MQA@rotary"))
    maps = read(network, INPUTS)
    found = cut_slice(maps, channels=channels)
    assert found.key.shape == (25, channels)
    x, y = augment(INPUTS[0]), augment(INPUTS[1])
    # At one position nothing is rotated: slice and rest are the scores, however few channels.
    for head in range(6):
        expected = (x @ maps.query[:, head]) @ (y @ maps.key[:, 0])
        sliced = (x @ found.query[:, head]) @ (y @ found.key)
        rest = (x @ maps.query[:, head]) @ (y @ found.rest[:, 0])
        assert float(sliced + rest) == pytest.approx(float(expected), rel=1e-10)
