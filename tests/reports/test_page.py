import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import html5lib
import pytest

from qkvary.reports import label_placement, svg
from qkvary.reports.page import render_fragment, render_page
from qkvary.reports.report import (
    Block,
    Bullets,
    Chart,
    Code,
    Fold,
    Group,
    Legend,
    Pairs,
    Prose,
    Report,
    Section,
)
from qkvary.reports.study import study_report
from qkvary.reports.tables import Cell, Column, Table
from tests.conftest import Runner
from tests.reports.hostile import MARKUP, PAYLOADS
from tests.reports.subjects import SUBJECTS, study
from tests.reports.synthetic import make_summary

SVG = "{http://www.w3.org/2000/svg}"
Make = Callable[[], Report]


def tree(page: str) -> Any:
    return html5lib.parse(page, treebuilder="etree", namespaceHTMLElements=False)


def texts(root: Any, path: str) -> list[str]:
    return ["".join(node.itertext()).replace("\u2060", "") for node in root.findall(path)]


def shape(root: Any) -> Counter[tuple[str, tuple[str, ...]]]:
    return Counter((str(node.tag), tuple(sorted(map(str, node.attrib)))) for node in root.iter())


def dangers(root: Any) -> list[str]:
    found: list[str] = []
    for node in root.iter():
        for key, content in node.attrib.items():
            name, value = str(key).lower(), str(content).strip().lower()
            if name.startswith("on") or ("javascript:" in value and name != "aria-label"):
                found.append(f"{node.tag} {name}={value[:50]}")
            if name.endswith(("href", "src", "action", "data")) and not value.startswith(
                ("#", "data:image/png")
            ):
                found.append(f"{node.tag} {name}={value[:50]}")
    return found


def everything(text: str) -> Report:
    """A report with every kind of block and a text in all its fields."""

    def draw() -> svg.Drawing:
        parts = (svg.text(1, 2, text),)
        return svg.Drawing(width=9, height=9, title=text, description=text, parts=parts)

    table = Table(
        key="t",
        title=text,
        columns=(Column(key="a", title=text, below=text), Column(key="b", title=text)),
        rows=((Cell(raw=text, text=text, name=True), Cell(raw=0.5, text=text, below=(text,))),),
        notes=(text,),
    )
    chart = Chart(draw=draw, caption=text, detail=text)
    blocks: tuple[Block, ...] = (
        Prose(text),
        Bullets((text,)),
        Pairs(((text, text),)),
        Code((text,)),
        table,
        Legend(title=text, entries=((text, svg.text(1, 2, text)),)),
        Fold(title=text, blocks=(Prose(text, small=True),)),
        Group(title=text, detail=text, lead=text, blocks=(chart,), notes=(text,), layout="wide"),
    )
    return Report(
        subject=text,
        question=text,
        lead=text,
        answer=(text,),
        picture=chart,
        caveats=(text,),
        facts=((text, text),),
        sections=(
            Section(
                key="one",
                title=text,
                link=text,
                lead=text,
                blocks=blocks,
                brief=True,
            ),
        ),
    )


def test_payloads_in_every_kind_of_block_stay_text() -> None:
    """No text of a report becomes markup."""
    for render, payloads in ((render_page, PAYLOADS), (render_fragment, PAYLOADS[::2])):
        benign = shape(tree(render(everything("plain"))))
        for payload in payloads:
            root = tree(render(everything(payload + "~")))
            assert shape(root) == benign, payload
            assert dangers(root) == []


def test_payloads_in_every_field_of_a_study_stay_text(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every name is equally wide, so that no label needs a leader that another one does not.
    monkeypatch.setattr(label_placement, "text_width", lambda _text: 40.0)
    benign = shape(tree(render_page(study("plain "))))
    # The end of a script, and an attribute.
    root = tree(render_page(study(f"{MARKUP[1]} {MARKUP[2]}~ ")))
    assert shape(root) == benign
    assert dangers(root) == []


def test_a_label_in_a_sentence_is_not_broken() -> None:
    page = render_page(dataclasses.replace(study(), answer=("Q-K=V is well-known",)))
    assert "Q-\u2060K=V is well-known" in page


def test_a_fragment_has_what_is_brief_and_folds_the_rest() -> None:
    part = Section(key="more", title="More", blocks=(Prose("folded"),), lead="its lead")
    report = everything("shown")
    root = tree(render_fragment(dataclasses.replace(report, sections=(*report.sections, part))))
    folds = root.findall(".//details")
    assert ["".join(fold.find("summary").itertext()).strip() for fold in folds] == [
        "shown",
        "Before you believe it",
        "More",
    ]
    assert "folded" in "".join(folds[-1].itertext())
    assert len(root.findall(".//table")) == 1
    assert len(root.findall(".//style")) == 1
    assert root.findall(".//script") == []


@pytest.mark.parametrize("make", SUBJECTS.values(), ids=SUBJECTS)
def test_page_of_a_subject(make: Make) -> None:
    """No script, links to every section, charts with words, ids that are unique."""
    report = make()
    page = render_page(report)
    root = tree(page)
    policy = root.find(".//meta[@http-equiv]").attrib["content"]
    assert "default-src 'none'" in policy
    assert "<script" not in page
    without_pictures = re.sub(r'"data:image/png;[^"]*"', "", page)
    assert not re.search(r"(https?:)?//[a-z]", without_pictures)
    sections = [section.key for section in report.sections]
    assert re.findall(r'<section id="([a-z-]+)"', page) == sections
    assert re.findall(r'<a href="#([a-z-]+)">', page) == sections
    assert texts(root, ".//ul[@class='answers']/li/bdi") == list(report.answer)
    assert texts(root, ".//aside/ul/li") == list(report.caveats)
    identifiers = Counter(node.attrib["id"] for node in root.iter() if "id" in node.attrib)
    assert max(identifiers.values()) == 1
    drawings = [node for node in root.iter(f"{SVG}svg") if node.attrib.get("role") == "img"]
    assert drawings
    for drawing in drawings:
        for identifier in drawing.attrib["aria-labelledby"].split():
            assert identifiers[identifier] == 1
        assert drawing.find(f"{SVG}title").text
        assert drawing.find(f"{SVG}desc").text
    shown = re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)
    assert not re.search(r"\b(NaN|None|inf)\b", shown)


def test_equal_reports_give_equal_bytes_in_every_process(run_python: Runner) -> None:
    """Each process has another hash seed."""
    code = (
        "import hashlib\n"
        "from qkvary.reports.page import render_page\n"
        "from qkvary.reports.study import study_report\n"
        "from tests.reports.synthetic import make_summary\n"
        "page = render_page(study_report(make_summary(('QKV', 'Q-K=V'), 2)))\n"
        "print(hashlib.sha256(page.encode()).hexdigest())\n"
    )
    # The seed of this process is a random one.
    there = run_python(
        ["-c", code], env={"PYTHONHASHSEED": "1", "PYTHONPATH": "src:.:benchmarks"}
    ).stdout
    page = render_page(study_report(make_summary(("QKV", "Q-K=V"), 2)))
    assert there.strip() == hashlib.sha256(page.encode()).hexdigest()
