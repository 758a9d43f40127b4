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
