"""Turns the results of an analysis into answers: plain sentences, derived by rule.

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
"""Up to this difference of shares, key and value count as about as alike as random ones."""
LARGE_SCORE_CHANGE = 1.0
"""A second-order forecast is not trusted if scores change by more than this."""
LARGE_FORECAST = 0.5
"""A second-order forecast is not trusted if it exceeds this, in nats per token."""
ENERGY = 0.99
MOST_NOISE = 2.0
"""The text is too short if the forecast is more than this many times the fitted forecast."""
TOKENS_PER_INPUT_CHANNEL = 10
"""The input's covariance is called uncertain with fewer tokens per channel than this."""


def find_answers(analysis: NetworkAnalysis) -> tuple[str, ...]:
    """Return sentences on how alike keys and values are, what tying them costs, and why."""
    separate = [layer for layer in analysis.layers if not layer.is_shared]
    shared = len(analysis.layers) - len(separate)
    if not separate:
        where = _all_layers(shared, shared)
        return (
            f"Key and value are one tensor in {where}: nothing is left to tie.",
            _say_asymmetry(analysis),
        )
    found = [_say_likeness(separate, analysis)]
    if any("rotary" in layer.label for layer in separate):
        found.append(
            "Keys are rotated, so they cannot be tied to values in the unchanged network: before "
            "the rotation, a key would have to be computed from the shared tensor by a map, and "
            "the query cannot absorb that map. The forecasts assume that the layer has such a map."
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
            "The forecast is a second-order estimate on this text. It assumes one tensor for key "
            "and value, chosen on half of the text, with query and output adapted to it, and "
            "treats changes of different tokens as independent. It serves to compare layers and "
            "is not an upper bound: if query and output are adapted less, tying costs more."
        )
        found += _say_noise(separate, analysis)
    if analysis.tokens < TOKENS_PER_INPUT_CHANNEL * analysis.d_model:
        found.append(
            f"The covariance of {analysis.d_model:,} channels is estimated from only "
            f"{analysis.tokens:,} tokens. The values for random weights have the same "
            "estimation error. Use more text with --tokens."
        )
    found.append(
        "Cosines and ranks of weights depend on the basis of each head, which is arbitrary: they "
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
        f"Keys and values are {verdict} two random projections of the same text: a linear map of "
        f"the key predicts {percent(explained, 0)} of what the value adds to the output, and "
        f"{percent(chance, 0)} with random projections "
        f"(mean of {_all_layers(len(layers), len(analysis.layers))})."
    )


def _say_cost(layers: Sequence[LayerAnalysis], analysis: NetworkAnalysis) -> Iterator[str]:
    trusted = [layer for layer in layers if not is_uncertain(layer)]
    lost = [layer for layer in layers if is_uncertain(layer)]
    where = _all_layers(len(layers), len(analysis.layers))
    total = _nats(sum(layer.forecast for layer in layers))
    together = f", and by {total} in {where} together" if len(layers) > 1 and not lost else ""
    if trusted:
        yield (
            "If one tensor replaces key and value and the network is not trained further, the loss "
            f"of {fixed(analysis.loss)} is forecast to rise by {_say_range(trusted)} nats per token"
            f"{together}."
        )
    if lost:
        total = _nats(sum(layer.forecast for layer in lost))
        where = count(len(lost), "layer") if trusted else where
        most = max(layer.score_change for layer in lost)
        yield (
            f"What tying costs in {where} cannot be forecast: one tensor would move scores by up "
            f"to {real(most, 2)} (root mean square), and the loss can rise by much more than the "
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
            "The text is short for a forecast. For these layers the forecast is "
            f"{_nats(found)} nats per token on text that was not used to choose the tensors, but "
            f"{_nats(fitted)} on the text that was used. With more text (--tokens), the two "
            "numbers approach each other, and the forecast falls."
        )


def _say_range(layers: Sequence[LayerAnalysis]) -> str:
    least, most = (choose(layers, key=attrgetter("forecast")) for choose in (min, max))
    if len(layers) == 1:
        return f"{_nats(least.forecast)} (layer {least.number})"
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
        f"{count(len(heads), 'head')}: {percent(ENERGY, 0)} of their joint energy lies in "
        f"{_span(directions)} directions, and one tensor has room for {_span(sizes)}."
    )


def _span(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def _say_asymmetry(analysis: NetworkAnalysis) -> str:
    heads = [head for layer in analysis.layers for head in layer.attention]
    found = fmean(head.asymmetry for head in heads)
    mask = fmean(head.mask_asymmetry for head in heads)
    return (
        f"Attention has an asymmetry of {fixed(found, 2)}, where 0 means symmetric; if the scores "
        f"were symmetric, the causal mask alone would give {fixed(mask, 2)}."
    )


def _nats(value: float) -> str:
    return "less than 0.0001" if 0 <= value < 1e-4 else real(value, 2)


def _all_layers(number: int, total: int) -> str:
    if number < total:
        return f"the {count(number, 'layer')} with separate keys and values"
    return "its layer" if number == 1 else f"all {number} layers"
