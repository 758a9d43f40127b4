"""The page of speeds is that of the kept lines of the benchmarks."""

import json
from pathlib import Path

from tests.studies_scripts.loading import folder_of, load_script

FOLDER = folder_of("speed")
script = load_script("speed", "measure")


def test_the_page_follows_from_the_kept_lines(tmp_path: Path) -> None:
    script.main(["--kept", "--to", str(tmp_path)])
    assert (tmp_path / "README.md").read_bytes() == (FOLDER / "README.md").read_bytes()


def test_every_line_has_a_row() -> None:
    _, *lines = map(json.loads, (FOLDER / "measured.jsonl").read_text("utf-8").splitlines())
    page = (FOLDER / "README.md").read_text("utf-8").replace("\\", "")
    assert {line["benchmark"] for line in lines} == set(script.TITLES)
    for line in lines:
        end = "yes" if line["met"] else "no"
        assert any(
            row.startswith(f"| {line['case']} | ") and row.endswith(f"| {end} |")
            for row in page.splitlines()
        )
