import ast
import dataclasses
import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import html5lib
import pytest

from qkvary.reports import contents, labelling
from qkvary.reports.page import render_page, store_digest
from qkvary.studies.results.summary import RunRow, Summary
from tests.conftest import Runner
from tests.reports.hostile import PAYLOADS, UNICODE
from tests.reports.synthetic import (
    MORE_VARIANTS,
    make_attention,
    make_summary,
    renamed,
)

BIG = 5_000_000
SVG = "{http://www.w3.org/2000/svg}"


def small_summary() -> Summary:
    summary = make_summary(("QKV", "Q-K=V", "MQA"), 2)
    settings = {run.setting for run in summary.runs if run.task in ("reverse", "characters")}
    curves = tuple(curve for curve in summary.curves if curve.setting in settings)
    return dataclasses.replace(summary, curves=curves)


def render(summary: Summary) -> str:
    return render_page(summary, make_attention(summary, 5)[:4])


def tree(page: str) -> Any:
    return html5lib.parse(page, treebuilder="etree", namespaceHTMLElements=False)


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


@pytest.fixture
def level_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name is equally wide, so that no label needs a leader that another one does not."""
    monkeypatch.setattr(labelling, "text_width", lambda _text: 40.0)


def mixture(start: int) -> Callable[[str, str], str]:
    """Give every text of the summary one of the payloads, always the same for the same text."""

    def rename(_field: str, text: str) -> str:
        return PAYLOADS[(start + zlib.crc32(text.encode())) % len(PAYLOADS)] + "~ " + text

    return rename


def check_payloads(starts: range) -> int:
    benign = shape(tree(render(renamed(small_summary(), lambda _field, text: f"plain {text}"))))
    used: set[tuple[str, str]] = set()
    for start in starts:
        rename = mixture(start)

        def noted(field: str, text: str, rename: Callable[[str, str], str] = rename) -> str:
            used.add((field, rename(field, text)))
            return rename(field, text)

        page = render(renamed(small_summary(), noted))
        root = tree(page)
        assert shape(root) == benign
        assert dangers(root) == []
    return len(used)


@pytest.mark.usefixtures("level_labels")
def test_payloads_in_every_field_stay_text() -> None:
    """Every text field of the summary at once, each with another of the 300 payloads (R1)."""
    assert check_payloads(range(0, 300, 12)) > 3_000


@pytest.mark.slow
@pytest.mark.usefixtures("level_labels")
def test_every_payload_in_every_field_stays_text() -> None:
    assert check_payloads(range(300)) > 50_000


def test_every_payload_reaches_the_page_as_text() -> None:
    summary = small_summary()
    for payload in ("<script>alert(1)</script>", "{{ 7 * 7 }}", "</title><b>x</b>"):
        page = render(dataclasses.replace(summary, question=payload))
        root = tree(page)
        assert root.find(".//h1/bdi").text == payload
        assert payload in root.find(".//title").text


def test_data_for_programs_is_json_without_markup() -> None:
    summary = dataclasses.replace(small_summary(), question="</script><!-- & \u2028 \ud800")
    page = render(summary)
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    assert not set("<>&") & set(text[1])
    data = json.loads(text[1])
    assert data["question"] == summary.question
    assert data["schema_version"] == 1
    assert len(data["runs"]) == len(summary.runs)


def test_page_allows_nothing_but_its_own_script() -> None:
    page = render(small_summary())
    policy = tree(page).find(".//meta[@http-equiv]").attrib["content"]
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", policy)
    assert not re.search(
        r"(https?:)?//(?!evil)[a-z]", re.sub(r"<script.*", "", page, flags=re.DOTALL)
    )


@pytest.mark.parametrize("text", UNICODE)
def test_odd_characters_keep_the_document_valid(text: str) -> None:
    """R3: right-to-left overrides, joiners, NUL, lone surrogates, ten thousand letters."""
    summary = renamed(small_summary(), lambda _field, old: f"{text}{old}")
    page = render(summary)
    data = page.encode()
    assert data.decode() == page
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", page)
    assert tree(page).find(".//h1/bdi") is not None


def table_rows(page: str, name: str) -> int:
    table = tree(page).find(f".//table[@id='t-{name}']")
    return len(table.findall("./tbody/tr"))


def test_every_planned_run_has_a_row() -> None:
    """R4: nothing is dropped silently."""
    summary = make_summary()
    page = render_page(summary, ())
    assert table_rows(page, "runs") == len(summary.runs) == 240
    assert table_rows(page, "problems") == 3
    assert table_rows(page, "overview") == len(summary.variants)


def test_contrasts_stand_near_the_answer_with_their_correction() -> None:
    summary = make_summary()
    page = render_page(summary, ())
    assert table_rows(page, "contrasts") == len(summary.contrasts) == 4
    table = tree(page).find(".//table[@id='t-contrasts']")
    assert table.find("./caption/bdi").text == (
        "Planned contrasts: paired differences, 95 % intervals corrected for 20 comparisons"
    )
    answers = [node.text for node in tree(page).findall(".//ul[@class='answers']/li/bdi")]
    assert [text.replace("\u2060", "") for text in answers[2:]] == [
        contrast.answer for contrast in summary.contrasts
    ]
    first = contents.contrast_table(summary, "contrasts").rows[0]
    assert first[0].text == "I-K=V against Q=K=V"
    assert first[1].text.startswith("+0.")
    assert first[1].below[0].startswith("▲ [+0.")
    detectable, pairs = first[1].below[1:]
    assert re.fullmatch(r"detectable \d\.\d+", detectable)
    assert pairs == "4 of 5 pairs"


def test_a_page_without_contrasts_has_no_table_of_them() -> None:
    page = render_page(make_summary(("QKV", "Q=K=V"), 2), ())
    assert "t-contrasts" not in page


@pytest.mark.parametrize("seed", range(4))
def test_counts_stand_in_every_table_of_results(seed: int) -> None:
    """R4: whatever became of the runs, the printed counts add up to the plan."""
    draw = random.Random(seed)
    summary = make_summary()
    states = ("done", "failed", "diverged", "missing")
    runs = tuple(dataclasses.replace(run, state=draw.choice(states)) for run in summary.runs)
    changed = dataclasses.replace(summary, runs=runs)
    shown = contents.matrix(changed)
    for row, variant in zip(shown.rows, changed.variants, strict=True):
        own = [run for run in runs if run.variant == variant]
        assert row[-1].raw == sum(run.state == "done" for run in own)
        counted = [
            int(number) for number in re.findall(r"(\d+) (?:failed|diverged|missing)", row[-1].text)
        ]
        assert sum(counted) + int(row[-1].raw) == len(own)


def test_tables_say_what_is_missing_where_it_is_missing() -> None:
    summary = make_summary()
    for table in summary.tables:
        shown = contents.result_table(table, summary, "results")
        for row, cells in zip(table.rows, shown.rows, strict=True):
            assert cells[1].text.startswith(f"{row.counts.done}/{row.counts.planned}")
            assert ("diverged" in cells[1].text) == bool(row.counts.diverged)


def test_empty_store_makes_a_page() -> None:
    summary = make_summary()
    bare = {"state": "missing", "value": None, "metrics": (), "steps_to_solve": None}
    runs = tuple(dataclasses.replace(run, **bare) for run in summary.runs)
    empty = dataclasses.replace(
        summary,
        runs=runs,
        tables=(),
        frontiers=(),
        curves=(),
        published=(),
        environments=(),
        answers=(),
        started=None,
        ended=None,
        training_seconds=0.0,
        total_seconds=0.0,
    )
    page = render_page(empty, ())
    assert table_rows(page, "runs") == len(runs)


def test_equal_summaries_give_equal_bytes(run_python: Runner) -> None:
    """R5, also across processes with other hash seeds."""
    code = (
        "import hashlib\n"
        "from tests.reports.test_page import render, small_summary\n"
        "print(hashlib.sha256(render(small_summary()).encode()).hexdigest())\n"
    )
    digests = {
        run_python(["-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "src:."}).stdout
        for seed in "12"
    }
    assert len(digests) == 1
    assert re.fullmatch(r"[0-9a-f]{64}\n", digests.pop())


def test_digest_changes_with_any_record() -> None:
    runs = make_summary().runs
    changed = (dataclasses.replace(runs[0], metrics=(("test_accuracy", 0.5),)), *runs[1:])
    assert store_digest(runs) != store_digest(changed)
    assert store_digest(runs) == store_digest(
        tuple(RunRow(**dataclasses.asdict(run)) for run in runs)
    )


def test_five_hundred_runs_fit() -> None:
    """R6: 25 variants, 4 settings, 5 seeds."""
    summary = make_summary(MORE_VARIANTS, 5)
    assert len(summary.runs) == 500
    assert len(render_page(summary, make_attention(summary)).encode()) < BIG


def test_many_settings_are_cut_and_said() -> None:
    summary = make_summary()
    more = tuple(
        dataclasses.replace(curve, setting=f"{curve.setting} {copy}")
        for copy in range(8)
        for curve in summary.curves
    )
    page = render_page(dataclasses.replace(summary, curves=more), ())
    assert re.search(r"\d+ more settings would make this page too large", page)
    assert len(page.encode()) < BIG


def test_charts_have_names_and_tables() -> None:
    root = tree(render(small_summary()))
    drawings = [node for node in root.iter(f"{SVG}svg") if node.attrib.get("role") == "img"]
    assert len(drawings) > 20
    identifiers = Counter(node.attrib["id"] for node in root.iter() if "id" in node.attrib)
    assert max(identifiers.values()) == 1
    for drawing in drawings:
        for identifier in drawing.attrib["aria-labelledby"].split():
            assert identifiers[identifier] == 1
        assert drawing.find(f"{SVG}title").text
        assert drawing.find(f"{SVG}desc").text


def test_sections_come_in_their_order() -> None:
    page = render(small_summary())
    order = [
        "results",
        "frontiers",
        "solving",
        "curves",
        "attention",
        "variants",
        "costs",
        "published",
        "rerun",
    ]
    places = [page.index(f'<section id="{name}"') for name in [*order, "problems"]]
    assert places == sorted(places)
    assert page.index("<h1>") < page.index('class="answers"') < places[0]


def test_no_module_of_the_page_imports_torch(run_python: Runner) -> None:
    code = "import sys, qkvary.reports.page; print('torch' in sys.modules)"
    assert ast.literal_eval(run_python(["-c", code]).stdout) is False
