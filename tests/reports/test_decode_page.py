import dataclasses
import re
from collections import Counter

import pytest

from qkvary.inference.benchmark.findings import find_answers, find_caveats
from qkvary.inference.benchmark.records import DecodeRecord, Fact
from qkvary.reports.decode_page import render_decode
from tests.inference.benchmark.made_up import make_record
from tests.reports.conftest import Open
from tests.reports.hostile import PAYLOADS, UNICODE
from tests.reports.test_page import dangers, shape
from tests.reports.test_plan_browser import CLIPPED, COVERED, OVERFLOW, SMALLEST
from tests.reports.test_plan_page import SVG, texts, tree


def renamed(record: DecodeRecord, text: str) -> DecodeRecord:
    """With a text in every field that holds one."""
    question = dataclasses.replace(record.question, checkpoint=text + "model")
    facts = tuple(Fact(name=text + one.name, value=text + one.value) for one in record.environment)
    return dataclasses.replace(
        record,
        question=question,
        command=text + record.command,
        environment=facts,
        started=text + record.started,
        notes=(text + "note",),
    )


def test_page_says_what_was_found_and_its_limits() -> None:
    record = make_record()
    root = tree(render_decode(record))
    assert texts(root, ".//ul[@class='answers']/li") == list(find_answers(record))
    assert texts(root, ".//aside/ul/li") == list(find_caveats(record))
    facts = dict(zip(texts(root, ".//dl/div/dt"), texts(root, ".//dl/div/dd"), strict=True))
    assert facts["contexts"] == "256"
    assert facts["rounds"] == "7"


def test_pictures_have_words_and_tables_and_unique_names() -> None:
    root = tree(render_decode(make_record()))
    identifiers = Counter(node.attrib["id"] for node in root.iter() if "id" in node.attrib)
    assert max(identifiers.values()) == 1
    drawings = [node for node in root.iter(f"{SVG}svg") if node.attrib.get("role") == "img"]
    assert len(drawings) == 2
    for drawing in drawings:
        for identifier in drawing.attrib["aria-labelledby"].split():
            assert identifiers[identifier] == 1
        assert drawing.find(f"{SVG}title").text
        assert drawing.find(f"{SVG}desc").text
    tables = [node.attrib["id"] for node in root.iter("table")]
    assert tables == ["t-speed-1", "t-memory", "t-gaps", "t-poster"]


def test_links_lead_to_sections() -> None:
    for memory, sections in (
        (True, ["speed", "memory", "poster", "provenance"]),
        (False, ["speed", "poster", "provenance"]),
    ):
        page = render_decode(make_record(memory=memory))
        assert re.findall(r'<section id="([a-z]+)"', page) == sections
        assert re.findall(r'<a href="#([a-z]+)">', page) == sections


def test_without_its_variants_there_is_no_poster() -> None:
    record = make_record()
    alone = tuple(row for row in record.speed if row.case.variant == "MQA")
    page = render_decode(dataclasses.replace(record, speed=alone))
    assert "poster" not in re.findall(r'"#?([a-z]+)"', page)


@pytest.mark.parametrize("stock", [False, True])
def test_no_number_is_missing_without_a_word(stock: bool) -> None:
    page = render_decode(make_record(stock=stock))
    shown = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
    assert not re.search(r"\b(NaN|None|inf)\b", shown)


def test_payloads_stay_text() -> None:
    record = make_record()
    benign = shape(tree(render_decode(renamed(record, "plain "))))
    for payload in PAYLOADS[::4]:
        root = tree(render_decode(renamed(record, payload)))
        assert dangers(root) == []
        assert shape(root) == benign, payload


@pytest.mark.parametrize("text", UNICODE)
def test_odd_characters_keep_the_document_valid(text: str) -> None:
    page = render_decode(renamed(make_record(), text))
    assert page.encode().decode() == page
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", page)


def test_equal_records_give_equal_pages() -> None:
    assert render_decode(make_record()) == render_decode(make_record())


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1440])
def test_page_fits_the_screen_and_its_words_are_whole(
    open_page: Open, tmp_path_factory: pytest.TempPathFactory, width: int
) -> None:
    path = tmp_path_factory.mktemp("decoding") / "report.html"
    path.write_text(render_decode(make_record()), "utf-8")
    page = open_page(path, width)
    assert page.evaluate(OVERFLOW) == 0
    assert page.evaluate(COVERED) == []
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(SMALLEST) >= 9
