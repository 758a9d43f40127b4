import html
import re

import pytest

from qkvary.arch.equations import write_equation
from qkvary.arch.labels import parse_variant
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


def test_the_drawing_shows_the_printed_equation() -> None:
    """With what each role reads in place of its letter, the drawn texts are the equation."""
    for label in EVERY_LABEL:
        check_equation(label)


def check_equation(label: str) -> None:
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
    assert found.translate(bare) == write_equation(variant).translate(bare), label
