"""An analysis of a small network, made once."""

import dataclasses
import functools

from qkvary.analysis.measurement import analyze_windows
from qkvary.analysis.results import KeyValueReading, LayerAnalysis, NetworkAnalysis
from tests.analysis.networks import make_network, make_windows


@functools.cache
def make_analysis(label: str = "GQA-2@rotary") -> NetworkAnalysis:
    network = make_network(label, d_model=16, heads=4, bias="rotary" not in label, num_layers=3)
    return analyze_windows(network, make_windows(1, 59, 31), context=64)


def change_layers(analysis: NetworkAnalysis, **changes: object) -> NetworkAnalysis:
    """The same with other fields of every layer."""
    layers = [dataclasses.replace(layer, **changes) for layer in analysis.layers]
    return dataclasses.replace(analysis, layers=tuple(layers))


def change_heads(layer: LayerAnalysis, **changes: object) -> LayerAnalysis:
    """The same with other fields of every KV head."""
    heads: tuple[KeyValueReading, ...] = tuple(
        dataclasses.replace(head, **changes) for head in layer.key_values
    )
    return dataclasses.replace(layer, key_values=heads)
