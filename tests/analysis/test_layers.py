"""One layer from its weights and its tokens: the right weights meet the right moments."""

import numpy as np
import pytest
import torch

from qkvary.analysis.layers import LayerStatistics
from qkvary.analysis.observation import read_window
from tests.analysis.networks import make_network, make_windows
from tests.reference import analysis as reference


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
