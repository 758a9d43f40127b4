import html
import itertools
import re

import pytest

from qkvary.arch.equations import write_equation
from qkvary.arch.labels import parse_variant
from qkvary.arch.sharing import SHARINGS, Sharing
from qkvary.arch.variants import Variant
from qkvary.reports import variant_diagrams as diagrams
from qkvary.reports.report import Chart
from tests.contracts.variant_cases import EVERY_LABEL
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
    ("label", "scores", "mixture"),
    [
        ("QKV", "softmax(s Q Kᵀ)", "weights V"),
        ("Q=K-V", "softmax(s K Kᵀ)", "weights V"),
        ("(Q=K=V)+", "softmax(τ s K Kᵀ + 1 gᵀ)", "weights V"),
        ("Q[map]=K-V", "softmax(s (K M) Kᵀ)", "weights V"),
        ("Q[residual-gelu]-K-V", "softmax(s (xₕ + gelu(Q)) Kᵀ)", "weights V"),
        ("I-K-V", "softmax(s Q Kᵀ)", "weights V"),
        ("QKV@relative", "softmax(s Q Kᵀ + b(i-j))", "weights V"),
        ("QKV@key-bias", "softmax(τ s Q Kᵀ + 1 bᵀ)", "weights V"),
        ("QKV@t0.5", "softmax((s Q Kᵀ) / 0.5)", "weights V"),
        ("QKV@w64", "softmax(s Q Kᵀ; |i-j| < 64)", "weights V"),
        ("Q-K=V@kv-norm", "softmax(s Q N(K)ᵀ)", "weights N(V)"),
        ("Q-K=V@rotary", "softmax(s R(Q) R(K)ᵀ)", "R⁻¹(weights R(V))"),
    ],
)
def test_the_drawing_shows_what_is_computed(label: str, scores: str, mixture: str) -> None:
    texts = re.findall("<text[^>]*>([^<]*)</text>", drawn(label)[1])
    assert html.escape(scores) in " ".join(texts)
    assert mixture in texts


@pytest.mark.parametrize("label", EVERY_LABEL)
def test_the_drawing_shows_the_printed_equation(label: str) -> None:
    """With what each role reads in place of its letter, the drawn texts are the equation."""
    variant = parse_variant(label)
    texts = [html.unescape(one) for one in re.findall("<text[^>]*>([^<]*)</text>", drawn(label)[1])]
    # The input, the notes and the three letters come first.
    *scores, mixture = texts[max(texts.index(letter) for letter in "QKV") + 1 :]
    scores = [text for text in scores if not re.fullmatch(r"\d+ KV|heads?", text)]
    drawing = mixture.replace("weights", " ".join(scores))
    roles = variant.sharing.roles
    symbols = {
        letter: "xₕ"
        if source == "x"
        else f"x A{source} B{source}"
        if variant.rank(source)
        else f"x W{source}"
        for letter, source in zip("QKV", roles.values(), strict=True)
    }
    found = re.sub("[QKV](?![a-z])", lambda letter: symbols[letter[0]], drawing)
    bare = str.maketrans("", "", "() ")
    assert found.translate(bare) == write_equation(variant).translate(bare)


def test_a_name_that_is_no_label_has_no_diagram() -> None:
    assert diagrams.diagram("<script>") is None
