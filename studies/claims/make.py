"""Judges every claim by the tables in this repository, and writes the results to files.

    python studies/claims/make.py

The script writes the figures that the package contains (``kept_figures.json``), and then the page,
the README, the JSON document and the table in this folder. With ``--check`` it writes nothing, and
fails if one of these files does not follow from the tables.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from qkvary.papers.catalog import document_names
from qkvary.papers.claim import ByStudy, load_document
from qkvary.papers.claim_verdicts import judge_claim
from qkvary.papers.claims_report import claims_report
from qkvary.papers.kept_figures import NAME, KeptFigure, encode_kept
from qkvary.papers.kept_tables import read_kept
from qkvary.reports.files import make_files
from qkvary.storage.durable import make_directory, write_output

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ROOT / "src" / "qkvary" / "papers" / NAME
RECORD = re.compile(
    r"studies/(?P<study>[a-z0-9_/\\-]+)/README\.md"
    r"|pytest (?P<test>tests/[\w/\\]+\.py)::[\w\\]+"
    r"|qkvary published [a-z0-9.-]*[a-z0-9]"
    r"|(?P<page>docs/decisions/[\w-]+\.md)"
)
"""The page of a study, a test, a published table and a decision as the report names them."""
LINKS = {"report.md": "[{}]({})", "report.html": '<a href="{1}">{0}</a>'}
"""A link with its words and its target, in each format."""
RUN_AGAIN = """
## Make it again

    python studies/claims/make.py

The script reads the tables of the kept studies (`studies/*/*/tables`) and the figures and claims
in the package (`src/qkvary/papers`). It trains nothing. With `--check`, it writes nothing, but
fails if this page does not follow from the tables. `qkvary claims --search WORD` shows the same
claims in the terminal, judged by the figures that the package contains. The commands beside the
claims reproduce the figures: `qkvary study NAME` trains a study, which takes minutes to hours;
`qkvary published TABLE` recomputes a table; and `pytest TEST` runs a test in a clone of the
repository.
"""


def kept_figures(studies: Path) -> dict[str, KeptFigure]:
    """Return the figures for which claims ask, from the tables of a folder."""
    judges = [
        judge
        for name in document_names()
        for claim in load_document(name).claims
        for judge in claim.judges
        if isinstance(judge, ByStudy)
    ]
    found = {judge.key: read_kept(studies, judge) for judge in judges}
    missing = sorted(key for key, figure in found.items() if figure is None)
    if missing:
        raise SystemExit(f"no table has {'; '.join(missing)}")
    return {key: figure for key, figure in found.items() if figure is not None}


def page_files(studies: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files of this folder."""
    documents = [load_document(name) for name in document_names()]
    find = partial(read_kept, studies)
    judged = [judge_claim(claim, find) for one in documents for claim in one.claims]
    report = claims_report(documents, judged, asked=True)
    names = {"report.md": "README.md", "report.json": "claims.json"}
    for name, data in make_files(report, ("html", "markdown", "csv", "json")).items():
        text = data.decode()
        if name in LINKS:
            text = RECORD.sub(partial(link, LINKS[name]), text)
        more = RUN_AGAIN if name == "report.md" else ""
        yield studies / "claims" / names.get(name, name), (text + more).encode()


def link(form: str, found: re.Match[str]) -> str:
    """Return a record as a link from this folder."""
    study, test = found["study"], found["test"]
    if study:
        return form.format(f"studies/{study}", f"../{_plain(study)}/README.md")
    target = _plain(test) if test else found["page"] or "docs/reproduce.md"
    return form.format(found[0], f"../../{target}")


def _plain(text: str) -> str:
    """Return text without the backslashes that Markdown has before underscores."""
    return text.replace("\\", "")


def main(words: list[str]) -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    check = parser.parse_args(words).check
    studies = ROOT / "studies"
    files = {PACKAGED: encode_kept(kept_figures(studies)).encode(), **dict(page_files(studies))}
    if check:
        wrong = [path for path, data in files.items() if path.read_bytes() != data]
        for path in wrong:
            sys.stdout.write(f"{path.relative_to(ROOT)} does not follow any more\n")
        return 1 if wrong else 0
    for path, data in files.items():
        make_directory(path.parent)
        write_output(path, data)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
