"""Kept pages with packed runs open with the answer that the code writes from these runs."""

import dataclasses
import lzma
from pathlib import Path

import pytest

from qkvary.reports.shared_terms import drop_shared_terms
from qkvary.storage.journal import from_line
from qkvary.studies.catalog import load_study
from qkvary.studies.records import from_json
from qkvary.studies.results.analysis import summarise
from qkvary.text import names

STUDIES = Path(__file__).resolve().parents[2] / "studies"
KEPT = {path.parent.name: path.parent for path in sorted(STUDIES.glob("*/*/runs.jsonl.xz"))}
"""Folders by the name of their study."""


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_page_opens_with_the_answer_of_its_runs(name: str) -> None:
    study = load_study(name)
    lines = lzma.decompress((KEPT[name] / "runs.jsonl.xz").read_bytes()).splitlines()
    packed = [from_line(line)["record.json"] for line in lines[1:]]
    records = [from_json(text.encode(), where=name) for text in packed]
    device = records[0].config["device"]
    study = dataclasses.replace(study, device=device)
    summary, _ = drop_shared_terms(summarise(study, records))
    page = (KEPT[name] / "README.md").read_text("utf-8")
    written = [line[2:] for line in page.partition("\n## ")[0].splitlines() if line[:2] == "- "]
    assert written == [names.markdown(one) for one in summary.headline or summary.answers]
