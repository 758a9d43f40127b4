import dataclasses
import re
from collections import Counter
from typing import Any

import html5lib
import pytest

from qkvary.costs.devices import Device
from qkvary.planning.plans import Plan, ServingAnswer
from qkvary.reports.plan_page import PAGE_NAME, plan_files, render_plan
from tests.conftest import Runner
from tests.reports.hostile import PAYLOADS, UNICODE
from tests.reports.plan_examples import make_plan, renamed
from tests.reports.test_page import dangers, shape

SVG = "{http://www.w3.org/2000/svg}"


def tree(page: str) -> Any:
    return html5lib.parse(page, treebuilder="etree", namespaceHTMLElements=False)


def texts(root: Any, path: str) -> list[str]:
    return ["".join(node.itertext()).replace("\u2060", "") for node in root.findall(path)]


def test_page_has_the_question_the_answers_and_their_limits() -> None:
    plan = make_plan()
    root = tree(render_plan(plan))
    assert texts(root, ".//h1") == [
        "What serves 100 users of 32,768 tokens with 300M on NVIDIA A100 40GB?"
    ]
    assert texts(root, ".//ul[@class='answers']/li") == list(plan.answer.advice)
    assert texts(root, ".//aside/ul/li") == [*plan.answer.caveats, *plan.notes]
    facts = dict(zip(texts(root, ".//dl/div/dt"), texts(root, ".//dl/div/dd"), strict=True))
    assert facts["cache a user, bf16"] == "2.5 GiB"
    assert facts["after 10 % reserve"] == "33.5 GiB"
    assert facts["devices, as it is"] == "8"


def test_page_has_its_sections_in_order() -> None:
    page = render_plan(make_plan())
    order = ["savings", "variants", "context", "memory", "published"]
    places = [page.index(f'<section id="{name}"') for name in order]
    assert places == sorted(places)
    links = re.findall(r'<a href="#([a-z]+)">', page)
    assert links == order


def test_exact_savings_come_first_and_lossy_ones_are_marked() -> None:
    root = tree(render_plan(make_plan()))
    words = texts(root, ".//dl[@class='savings']/dt")
    assert words[0].startswith("exact: layer input")
    assert words[1].startswith("possible, needs the weights")
    assert words[-1] == "lossy: fp8 1.25 GiB, int8 1.33 GiB and int4 720 MiB a user"
    llama = tree(render_plan(make_plan("llama-3.1-8b")))
    assert texts(llama, ".//dl[@class='savings']/dt")[0] == "exact: nothing"


def test_pictures_have_words_and_tables_and_unique_names() -> None:
    root = tree(render_plan(make_plan()))
    identifiers = Counter(node.attrib["id"] for node in root.iter() if "id" in node.attrib)
    assert max(identifiers.values()) == 1
    drawings = [node for node in root.iter(f"{SVG}svg") if node.attrib.get("role") == "img"]
    assert len(drawings) == 4
    for drawing in drawings:
        for identifier in drawing.attrib["aria-labelledby"].split():
            assert identifiers[identifier] == 1
        assert drawing.find(f"{SVG}title").text
        assert drawing.find(f"{SVG}desc").text
    tables = {node.attrib["id"] for node in root.iter("table")}
    assert tables == {"t-variants", "t-cache", "t-users", "t-quality-0", "t-quality-1"}


def test_the_published_picture_comes_with_its_caveats() -> None:
    root = tree(render_plan(make_plan("llama-3.1-8b")))
    section = root.find(".//section[@id='published']")
    assert texts(section, ".//figcaption") == [
        "The papers’ 1.2B networks",
        "The papers’ 300M networks",
    ]
    said = " ".join(texts(section, ".//ul[@class='note']/li"))
    for words in (
        "One network was trained per variant",
        "the padding counts in the loss",
        "The released script for Q-GQA has 8 KV heads",
        "Reported at step 7,500 of 8,477",
        "an estimate, not a measurement",
    ):
        assert said.count(words) == 1


def test_training_is_planned_without_pictures_of_a_cache() -> None:
    page = render_plan(make_plan(trains=True))
    root = tree(page)
    assert texts(root, ".//h1")[0].startswith("What trains 300M on sequences of 32,768 tokens")
    assert [node.attrib["id"] for node in root.iter("section")] == ["variants", "published"]
    assert "No picture" not in page


def test_a_training_answer_without_its_regime_is_refused() -> None:
    plan = dataclasses.replace(make_plan(trains=True), regime=None)
    message = "^expected a plan of training with its regime, got none$"
    with pytest.raises(ValueError, match=message):
        render_plan(plan)


def test_tasks_that_decode_nothing_show_no_language_models() -> None:
    plan = dataclasses.replace(make_plan(trains=True), task="set")
    assert 'id="published"' not in render_plan(plan)


def test_a_missing_picture_is_explained() -> None:
    small = Device(name="small", title="a small one", memory_bytes=2**20)
    page = render_plan(make_plan(device=small))
    assert 'id="memory"' not in page
    assert "No picture of users and memory: not one user of any variant fits" in page
    assert "even of 64 times this memory" in page


def payload_shape(plan: Plan) -> Counter[tuple[str, tuple[str, ...]]]:
    root = tree(render_plan(plan))
    assert dangers(root) == []
    return shape(root)


def test_payloads_in_every_field_stay_text() -> None:
    """Names of models and devices, layers, advice, caveats and notes."""
    plan = make_plan()
    benign = payload_shape(renamed(plan, "plain "))
    for payload in PAYLOADS[::4]:
        assert payload_shape(renamed(plan, payload)) == benign, payload


@pytest.mark.slow
@pytest.mark.parametrize("trains", [False, True])
def test_every_payload_in_every_field_stays_text(trains: bool) -> None:
    plan = make_plan(trains=trains)
    benign = payload_shape(renamed(plan, "plain "))
    for payload in PAYLOADS:
        assert payload_shape(renamed(plan, payload)) == benign, payload


def test_templates_in_names_are_not_run() -> None:
    page = render_plan(renamed(make_plan(), "{{ 7 * 7 }}"))
    assert "{{ 7 * 7 }}300M" in tree(page).find(".//h1/bdi").text


@pytest.mark.parametrize("text", UNICODE)
def test_odd_characters_keep_the_document_valid(text: str) -> None:
    page = render_plan(renamed(make_plan(), text))
    assert page.encode().decode() == page
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", page)


def test_page_allows_nothing_but_its_own_script() -> None:
    page = render_plan(make_plan())
    policy = tree(page).find(".//meta[@http-equiv]").attrib["content"]
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", policy)
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"<script.*", "", page, flags=re.DOTALL))


def test_equal_plans_give_equal_bytes(run_python: Runner) -> None:
    code = (
        "import hashlib\n"
        "from qkvary.reports.plan_page import render_plan\n"
        "from tests.reports.plan_examples import make_plan\n"
        "print(hashlib.sha256(render_plan(make_plan()).encode()).hexdigest())\n"
    )
    digests = {
        run_python(["-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "src:."}).stdout
        for seed in "12"
    }
    assert len(digests) == 1
    assert re.fullmatch(r"[0-9a-f]{64}\n", digests.pop())


def test_no_number_is_missing_without_a_word() -> None:
    for plan in (make_plan("deepseek-v3"), make_plan("llama-3.1-405b", context=2**40)):
        page = re.sub(r"<(style|script).*?</\1>", "", render_plan(plan), flags=re.DOTALL)
        assert not re.search(r"\b(NaN|None|inf)\b", page)


def test_the_file_is_the_page() -> None:
    plan = make_plan()
    assert isinstance(plan.answer, ServingAnswer)
    assert plan_files(plan) == {PAGE_NAME: render_plan(plan).encode()}
    assert plan_files(plan, ()) == {}
