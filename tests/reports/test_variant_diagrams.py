import html
import re

from qkvary.arch.equations import write_equation
from qkvary.arch.labels import parse_variant
from qkvary.reports import variant_diagrams as diagrams
from tests.contracts.variant_cases import EVERY_LABEL


def test_every_variant_has_a_diagram_that_shows_its_printed_equation() -> None:
    """With what each role reads in place of its letter, the drawn texts are the equation."""
    bare = str.maketrans("", "", "() ")
    for label in EVERY_LABEL:
        variant = parse_variant(label)
        chart = diagrams.diagram(label)
        assert chart is not None
        drawn = chart.draw().to_svg("b")
        sources = {*variant.sharing.roles.values()}
        assert drawn.count("box learned") == len(sources.intersection(variant.projections)), label
        assert drawn.count("kept") == len(sources.intersection(variant.cached)), label
        assert drawn.count('class="role"') == 3
        texts = re.findall("<text[^>]*>([^<]*)</text>", drawn)
        # The input, the notes and the three letters come first.
        *scores, mixture = texts[max(texts.index(letter) for letter in "QKV") + 1 :]
        scores = [text for text in scores if not re.fullmatch(r"\d+ KV|heads?", text)]
        drawing = html.unescape(mixture.replace("weights", " ".join(scores)))
        symbols: dict[str, str] = {}
        for letter, source in zip("QKV", variant.sharing.roles.values(), strict=True):
            learned = f"x A{source} B{source}" if variant.rank(source) else f"x W{source}"
            symbols[letter] = "xₕ" if source == "x" else learned
        found = re.sub("[QKV](?![a-z])", lambda one, of=symbols: of[one[0]], drawing)
        assert found.translate(bare) == write_equation(variant).translate(bare), label
