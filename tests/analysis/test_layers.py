"""One layer from its weights and its tokens: the right weights meet the right moments."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from qkvary.analysis.layers import LayerStatistics
from qkvary.analysis.observation import LayerReading, read_window
from qkvary.analysis.results import KeyValueReading
from qkvary.analysis.tying import forecast_tie
from qkvary.nn.language_model import LanguageModel
from tests.analysis.networks import draw_gains, make_network, make_windows
from tests.reference import analysis as reference


def measure(network: LanguageModel) -> tuple[LayerStatistics, list[LayerReading]]:
    """The second layer on all windows."""
    statistics = LayerStatistics(network.stack.blocks[1].attention, 2, 0)
    readings = [
        read_window(network, window, torch.Generator().manual_seed(1)).layers[1]
        for window in make_windows()
    ]
    for reading in readings:
        statistics.add(reading)
    return statistics, readings


def check_equal(
    found: Sequence[KeyValueReading], expected: Sequence[KeyValueReading], *, rel: float
) -> None:
    for one, other in zip(found, expected, strict=True):
        for field in dataclasses.fields(one):
            figures = [getattr(each, field.name) for each in (one, other)]
            assert figures[0] == pytest.approx(figures[1], rel=rel), field.name


@pytest.mark.parametrize("label", ["GQA-2@rotary@qk-norm", "GQA-2@qk-norm-wide@cap0.7"])
def test_normalised_keys_are_compared_with_values_token_by_token(label: str) -> None:
    network = draw_gains(make_network(label, d_model=16, heads=4, head_dim=4))
    statistics, readings = measure(network)
    layer, moments = statistics.result(), statistics.moments
    keys, values = (
        torch.cat([getattr(one, name) for one in readings], dim=1).numpy()
        for name in ("key", "value")
    )
    output = network.stack.blocks[1].attention.o_proj.weight.numpy().T
    for head, found in enumerate(layer.key_values):
        joint = np.cov(np.hstack([keys[head], values[head]]).T, bias=True)
        assert moments.pair_covariance()[head].numpy() == pytest.approx(joint)
        part = slice(8 * head, 8 * head + 8)
        explained = reference.explained_share(
            keys[head], values[head], np.hstack([*output[part].reshape(2, 4, 16)])
        )
        assert found.explained == pytest.approx(explained, abs=1e-8)
        expected = forecast_tie(torch.from_numpy(joint), moments.curvature()[head])
        assert found.fitted_forecast == pytest.approx(expected.forecast)
    assert [one.forecast for one in statistics.ties()] == pytest.approx(
        [one.fitted_forecast for one in layer.key_values]
    )


@pytest.mark.parametrize("label", ["GQA-2@rotary@qk-norm", "QKV@qk-norm@cap0.7"])
def test_what_a_norm_divides_out_changes_no_figure(label: str) -> None:
    network = draw_gains(make_network(label, d_model=16, heads=4, head_dim=4))
    before = measure(network)[0].result()
    key = network.stack.blocks[1].attention.k_proj
    assert key is not None
    for part in (key.weight, key.bias):
        part[:4] *= 30
    after = measure(network)[0].result()
    check_equal(before.key_values, after.key_values, rel=1e-4)
    for one, other in zip(before.attention, after.attention, strict=True):
        assert dataclasses.astuple(other) == pytest.approx(dataclasses.astuple(one), rel=1e-4)


def test_a_wide_cap_changes_next_to_nothing() -> None:
    capped = make_network("GQA-2@rotary@cap100000.0", d_model=16, heads=4)
    plain = make_network("GQA-2@rotary", d_model=16, heads=4)
    found, expected = (measure(each)[0].result().key_values for each in (capped, plain))
    check_equal(found, expected, rel=1e-6)


def test_a_group_counts_all_of_its_query_heads() -> None:
    network = make_network("GQA-2", d_model=16, heads=4, head_dim=3)
    attention = network.stack.blocks[1].attention
    statistics = LayerStatistics(attention, 2, 0)
    inputs: list[reference.Array] = []
    for window in make_windows():
        reading = read_window(network, window, torch.Generator()).layers[1]
        statistics.add(reading)
        inputs.append(reading.input.numpy())
    layer, x = statistics.result(), np.concatenate(inputs)
    assert (layer.number, layer.label, layer.is_shared) == (2, "GQA-2", False)
    weights = {
        name: getattr(attention, f"{name}_proj").weight.numpy().T for name in ("q", "k", "v", "o")
    }
    for head in range(2):
        own = slice(3 * head, 3 * head + 3)
        key, value = weights["k"][:, own], weights["v"][:, own]
        queries, outputs = np.zeros((3, 3)), np.zeros((3, 3))
        for query in (2 * head, 2 * head + 1):
            part = slice(3 * query, 3 * query + 3)
            bias = attention.q_proj.bias.numpy()[part]  # pyright: ignore[reportOptionalMemberAccess]
            q = (x @ weights["q"][:, part] + bias) * 3**-0.5
            queries += q.T @ q / len(x)
            outputs += weights["o"][part] @ weights["o"][part].T
        found = layer.key_values[head]
        covariance = statistics.moments.covariance().numpy()
        expected = reference.joint_spectrum(covariance, key, value, queries, outputs)
        assert found.spectrum == pytest.approx(expected[:6], abs=1e-8)
        assert found.weight_cosines == pytest.approx(reference.principal_cosines(key, value))
        assert found.weight_chance == 3 / 16
        # But for the damping of the covariance.
        output = np.hstack([weights["o"][slice(6 * head + at, 6 * head + at + 3)] for at in (0, 3)])
        explained = reference.explained_share(x @ key, x @ value, output)
        assert found.explained == pytest.approx(explained, abs=0.01)
        assert found.forecast > 0
