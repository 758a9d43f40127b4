"""Turns the results of an analysis into answers in plain sentences, by fixed rules.

Never imports torch.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from statistics import fmean

from qkvary.analysis.results import KeyValueReading, LayerAnalysis, NetworkAnalysis
from qkvary.text.names import count
from qkvary.text.numbers import fixed, percent, real

ALIKE_MARGIN = 0.1
"""Keys and values are "about as alike" as random projections below this difference of shares."""
LARGE_SCORE_CHANGE = 1.0
"""A second-order forecast is not trusted if scores change by more than this."""
LARGE_FORECAST = 0.5
"""A second-order forecast is not trusted if it exceeds this, in nats per token."""
ENERGY = 0.99
MOST_NOISE = 2.0
"""The text is called too short if forecast / fitted forecast exceeds this ratio."""
TOKENS_PER_INPUT_CHANNEL = 10
"""Minimum tokens per input channel; with fewer, a caveat calls the covariance uncertain."""

LESS = "less than 0.0001"
"""A number of nats that is too small to be written out."""


def find_answers(analysis: NetworkAnalysis) -> tuple[str, ...]:
    """Return sentences on how alike keys and values are, what tying them costs, and why."""
    separate = [layer for layer in analysis.layers if not layer.is_shared]
    shared = len(analysis.layers) - len(separate)
    if not separate:
        where = _all_layers(shared, shared)
        return (
            f"Key and value are one tensor in {where}, so there is nothing to tie.",
            _say_asymmetry(analysis),
        )
    found = [_say_likeness(separate, analysis)]
    if any("rotary" in layer.label for layer in separate):
        found.append(
            "Keys are rotated, so they cannot be tied to values in the unchanged network. The "
            "layer needs a map that computes the key from the shared tensor before the rotation, "
            "and the query cannot absorb this map. The forecasts assume that the layer has the map."
        )
    found += [*_say_cost(separate, analysis), _say_room(separate)]
    if shared:
        found.append(f"In {count(shared, 'more layer')}, key and value are one tensor already.")
    return tuple(found)


def find_caveats(analysis: NetworkAnalysis) -> tuple[str, ...]:
    """Return the caveats that apply to the answers of ``find_answers``."""
    separate = [layer for layer in analysis.layers if not layer.is_shared]
    found: list[str] = []
    if separate:
        found.append(
            "The forecast is a second-order estimate on this text, for comparing layers. It is "
            "not an upper bound: it assumes that query and output are adapted to the tensor for "
            "key and value, and with less adaptation tying costs more. The tensor is chosen on "
            "half of the text. Changes of different tokens are treated as independent."
        )
        found += _say_noise(separate, analysis)
    if analysis.tokens < TOKENS_PER_INPUT_CHANNEL * analysis.d_model:
        found.append(
            f"The covariance of {analysis.d_model:,} channels is estimated from only "
            f"{analysis.tokens:,} tokens. The values for random weights have the same "
            "estimation error. Use more text with --tokens."
        )
    found.append(
        "Cosines and ranks of weights depend on the arbitrary basis of each head. They "
        "are shown for comparison with published numbers."
    )
    return tuple(found)


def is_uncertain(layer: LayerAnalysis) -> bool:
    """Return whether tying changes a layer too much for its forecast to be trusted."""
    return layer.score_change > LARGE_SCORE_CHANGE or layer.forecast > LARGE_FORECAST


def count_directions(head: KeyValueReading) -> int:
    """Return the number of directions that hold 99 % of the joint energy of key and value."""
    energies = accumulate(value**2 for value in head.spectrum)
    fewer = sum(held < ENERGY for held in energies)
    return min(fewer + 1, len(head.spectrum))


def _say_likeness(layers: Sequence[LayerAnalysis], analysis: NetworkAnalysis) -> str:
    explained = fmean(layer.explained for layer in layers)
    chance = fmean(layer.explained_chance for layer in layers)
    verdict = "more alike than" if explained > chance else "less alike than"
    if abs(explained - chance) < ALIKE_MARGIN:
        verdict = "about as alike as"
    return (
        f"Keys and values are {verdict} two random projections of the same text. A linear map of "
        f"the key predicts {percent(explained, 0)} of the value's contribution to the output; "
        f"for random projections, this share is {percent(chance, 0)} "
        f"(mean of {_all_layers(len(layers), len(analysis.layers))})."
    )


def _say_cost(layers: Sequence[LayerAnalysis], analysis: NetworkAnalysis) -> Iterator[str]:
    trusted = [layer for layer in layers if not is_uncertain(layer)]
    lost = [layer for layer in layers if is_uncertain(layer)]
    where = _all_layers(len(layers), len(analysis.layers))
    total = _nats(sum(layer.forecast for layer in layers))
    if trusted:
        rise = f"{_say_range(trusted)} nats per token"
        if len(layers) > 1 and not lost:
            # If the total is too small for a number, so is each layer.
            rise = f"{LESS} nats per token" if total == LESS else f"{rise}, and by {total}"
            rise += f" in {where} together"
        yield (
            "If one tensor replaces key and value and the network is not trained further, the loss "
            f"of {fixed(analysis.loss)} is forecast to rise by {rise}."
        )
    if lost:
        total = _nats(sum(layer.forecast for layer in lost))
        where = count(len(lost), "layer") if trusted else where
        most = max(layer.score_change for layer in lost)
        yield (
            f"The cost of tying in {where} cannot be forecast. One tensor would change scores by "
            f"up to {real(most, 2)} (root mean square), so the loss can rise by much more than the "
            f"{total} nats per token of the second-order forecast."
        )


def _say_noise(layers: Sequence[LayerAnalysis], analysis: NetworkAnalysis) -> Iterator[str]:
    found = sum(layer.forecast for layer in layers)
    fitted = sum(layer.fitted_forecast for layer in layers)
    if analysis.windows < 2:
        yield (
            "There is only one window, so the tensors are chosen and evaluated on the same text, "
            "and the forecast is too low. Use more text or a smaller --context to get more windows."
        )
    elif found > MOST_NOISE * fitted:
        yield (
            "The text is short for a forecast. The forecast for these layers is "
            f"{_nats(found)} nats per token, but only {_nats(fitted)} if the tensors are evaluated "
            "on the text on which they were chosen. With more text (--tokens), the two numbers "
            "approach each other, and the forecast falls."
        )


def _say_range(layers: Sequence[LayerAnalysis]) -> str:
    least, most = (choose(layers, key=attrgetter("forecast")) for choose in (min, max))
    if len(layers) == 1:
        return f"{_nats(least.forecast)} (layer {least.number})"
    if _nats(least.forecast) == _nats(most.forecast):
        return f"{_nats(most.forecast)} (each layer alone)"
    return (
        f"{_nats(least.forecast)} (layer {least.number} alone) to {_nats(most.forecast)} (layer "
        f"{most.number} alone)"
    )


def _say_room(layers: Sequence[LayerAnalysis]) -> str:
    heads = [head for layer in layers for head in layer.key_values]
    directions = [count_directions(head) for head in heads]
    sizes = [len(head.spectrum) // 2 for head in heads]
    fitting = sum(used <= size for used, size in zip(directions, sizes, strict=True))
    return (
        f"The key and the value of a head fit into one tensor in {fitting} of "
        f"{count(len(heads), 'head')}. Per head, {percent(ENERGY, 0)} of their joint energy lies "
        f"in {_span(directions)} directions, and one tensor has room for {_span(sizes)}."
    )


def _span(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def _say_asymmetry(analysis: NetworkAnalysis) -> str:
    heads = [head for layer in analysis.layers for head in layer.attention]
    found = fmean(head.asymmetry for head in heads)
    mask = fmean(head.mask_asymmetry for head in heads)
    return (
        f"Attention has an asymmetry of {fixed(found, 2)}, where 0 means symmetric. With symmetric "
        f"scores, the causal mask alone would cause {fixed(mask, 2)}."
    )


def _nats(value: float) -> str:
    return LESS if 0 <= value < 1e-4 else real(value, 2)


def _all_layers(number: int, total: int) -> str:
    if number < total:
        return f"the {count(number, 'layer')} with separate keys and values"
    return "its layer" if number == 1 else f"all {number} layers"
