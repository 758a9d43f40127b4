"""The sentences of an analysis follow from its figures by rule."""

import dataclasses

import pytest

from qkvary.analysis.findings import count_directions, find_answers, find_caveats, is_uncertain
from qkvary.analysis.results import NetworkAnalysis
from tests.analysis.examples import change_heads, change_layers, make_analysis


def with_heads(analysis: NetworkAnalysis, **changes: object) -> NetworkAnalysis:
    layers = tuple(change_heads(layer, **changes) for layer in analysis.layers)
    return dataclasses.replace(analysis, layers=layers)


def test_the_cost_is_that_of_one_layer_and_of_all() -> None:
    analysis = with_heads(make_analysis(), score_change=0.4)
    layers = tuple(
        change_heads(layer, forecast=forecast)
        for layer, forecast in zip(analysis.layers, (0.01, 0.00001, 0.03), strict=True)
    )
    analysis = dataclasses.replace(analysis, layers=layers, loss=1.25)
    # Rotated keys prevent tying, which is said before what it would cost.
    assert find_answers(analysis)[1].startswith("Keys are rotated, so they cannot be tied")
    # Two KV heads each.
    cost = "rise by less than 0.0001 (layer 2 alone) to 0.060 (layer 3 alone) nats per token,"
    assert "the loss of 1.250 is forecast to" in find_answers(analysis)[2]
    assert cost in find_answers(analysis)[2]
    assert find_answers(analysis)[2].endswith(", and by 0.080 in all 3 layers together.")
    alone = dataclasses.replace(analysis, layers=layers[:1])
    assert "by 0.020 (layer 1) nats per" in find_answers(alone)[2]
    none = dataclasses.replace(analysis, layers=(change_heads(layers[0], forecast=1e-6), layers[1]))
    assert "rise by less than 0.0001 nats per token in all 2 layers" in find_answers(none)[2]


FITS = (0.96**0.5, 0.03**0.5, 0.01**0.5, 0.0)
TOO_MANY = (0.4**0.5, 0.3**0.5, 0.2**0.5, 0.1**0.5)


# The mean of the last, 3 of 2 directions, would say that no head fits.
@pytest.mark.parametrize(
    ("spectra", "found", "directions"),
    [((FITS, FITS), 6, "2"), ((TOO_MANY, TOO_MANY), 0, "4"), ((FITS, TOO_MANY), 3, "2 to 4")],
)
def test_room_is_counted_by_head(
    spectra: tuple[tuple[float, ...], ...], found: int, directions: str
) -> None:
    analysis = make_analysis()
    heads = tuple(
        dataclasses.replace(head, spectrum=spectrum)
        for head, spectrum in zip(analysis.layers[0].key_values, spectra, strict=True)
    )
    counted = [count_directions(head) for head in heads]
    assert counted == [2 if spectrum is FITS else 4 for spectrum in spectra]
    sentence = find_answers(change_layers(analysis, key_values=heads))[-1]
    assert f"in {found} of 6 heads. Per head, 99 %" in sentence
    assert sentence.endswith(f"lies in {directions} directions, and one tensor has room for 2.")


def test_a_network_with_one_tensor_has_nothing_to_tie() -> None:
    analysis = make_analysis("Q-K=V")
    answers = find_answers(analysis)
    assert answers[0] == "Key and value are one tensor in all 3 layers, so there is nothing to tie."
    assert answers[1].startswith("Attention has an asymmetry of 0.")
    assert not any("forecast" in caveat for caveat in find_caveats(analysis))
    for layer in analysis.layers:
        assert layer.forecast == pytest.approx(0, abs=1e-12)
        assert layer.explained == pytest.approx(1)
    mixed = make_analysis("QKV").layers[:1] + analysis.layers[1:]
    answers = find_answers(dataclasses.replace(analysis, layers=mixed))
    assert "(mean of the 1 layer with separate keys and values)" in answers[0]
    assert answers[-2].startswith("The key and the value of a head fit into one tensor in ")
    assert " of 4 heads." in answers[-2]
    assert answers[-1] == "In 2 more layers, key and value are one tensor already."


def test_caveats_follow_from_positions_and_tokens() -> None:
    analysis = make_analysis("QKV")
    calm = with_heads(analysis, score_change=0.9, forecast=0.1)
    assert not is_uncertain(calm.layers[0])
    assert is_uncertain(change_heads(calm.layers[0], forecast=0.6))
    assert is_uncertain(change_heads(calm.layers[0], score_change=1.1))
    assert not any("rotated" in answer for answer in find_answers(analysis))
    assert any("rotated" in answer for answer in find_answers(make_analysis()))
    few, enough = (
        " ".join(find_caveats(dataclasses.replace(analysis, tokens=tokens)))
        for tokens in (159, 160)
    )
    assert "The covariance of 16 channels is estimated from only 159 tokens" in few
    assert "estimate the covariance" not in enough
