import itertools

import pytest

from qkvary.arch.labels import parse_variant
from qkvary.arch.sharing import SHARINGS, Sharing
from qkvary.arch.variants import Variant
from qkvary.reports import variant_diagrams as diagrams
from qkvary.reports.report import Chart
from tests.reports.synthetic import MORE_VARIANTS


def drawn(label: str) -> tuple[Chart, str]:
    chart = diagrams.diagram(label)
    assert chart is not None
    return chart, chart.draw().to_svg("b")


@pytest.mark.parametrize("label", MORE_VARIANTS)
def test_every_variant_has_a_diagram(label: str) -> None:
    _, drawing = drawn(label)
    variant = parse_variant(label)
    assert drawing.count("box learned") == len(variant.projections)
    assert drawing.count("kept") == len(variant.cached)
    assert drawing.count('class="role"') == 3


@pytest.mark.parametrize("sharing", SHARINGS, ids=lambda sharing: sharing.format_tuple({}))
def test_projections_never_cover_each_other(sharing: Sharing) -> None:
    variant = Variant(sharing=sharing)
    places = sorted(diagrams._centres(variant).values())
    assert all(right - left >= 56 for left, right in itertools.pairwise(places))
    assert all(28 <= place <= 208 for place in places)
    if sharing.key == "x":
        assert all(abs(place - 118) > 28 for place in places)


def test_drawing_says_in_words_what_it_shows() -> None:
    chart, drawing = drawn("Q-K=V")
    assert chart.detail == "Query learned; key and value read one projection. A cache keeps K."
    assert f'<desc id="b-d">{chart.detail}</desc>' in drawing


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("I-K=V", "Query is the layer input; key and value read one projection"),
        ("(Q=K-V)+", "a temperature and a bias per key position"),
        ("Q-GQA-2", "2 KV heads, each read by a group of query heads"),
        ("Q-I-V", "A cache keeps x and V."),
    ],
)
def test_words_follow_from_the_variant(label: str, words: str) -> None:
    assert words in diagrams.describe(parse_variant(label))


@pytest.mark.parametrize(
    ("label", "scores"),
    [
        ("QKV", "softmax(QKᵀ)"),
        ("Q=K-V", "softmax(KKᵀ)"),
        ("(Q=K=V)+", "softmax(τ·KKᵀ + g(j))"),
        ("Q[map]=K-V", "softmax(QKᵀ)"),
        ("I-K-V", "softmax(QKᵀ)"),
        ("QKV@relative", "softmax(QKᵀ + b(i,j))"),
    ],
)
def test_scores_name_what_is_multiplied(label: str, scores: str) -> None:
    assert scores in drawn(label)[1]


def test_a_name_that_is_no_label_has_no_diagram() -> None:
    assert diagrams.diagram("<script>") is None
