"""Look up what the papers claim: a verdict for each claim, its figure and the command for it."""

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from qkvary.cli._options import Json
from qkvary.cli._output import show, show_lines
from qkvary.literature.claim import ByStudy, ClaimedDocument, document_names, load_document
from qkvary.reports.claims import claim_data, claims_report
from qkvary.reports.report import ReportFormat
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.studies.results.claim_checks import find_wrong, read_verdicts
from qkvary.studies.results.claim_verdicts import (
    CLAIM_VERDICTS,
    ClaimVerdict,
    JudgedClaim,
    judge_claim,
)
from qkvary.studies.results.kept_figures import FindKept, find_packaged
from qkvary.text.names import count, near_names, suggest

VerdictChoice = Literal[
    "holds", "holds-with-a-condition", "does-not-hold", "not-distinguished", "not-tested-here"
]


Name = Annotated[
    str,
    Parameter(
        name="CLAIM",
        help="Claims by their names, such as poster-3.",
        completer=lambda _: [
            claim.name for name in document_names() for claim in load_document(name).claims
        ],
    ),
]
Document = Annotated[
    tuple[str, ...],
    Parameter(
        show_default=False,
        help="Only claims of this document; repeat it for more.",
        completer=lambda _: document_names(),
    ),
]
Verdicts = Annotated[
    tuple[VerdictChoice, ...],
    Parameter(show_default=False, help="Only claims with this verdict; repeat it for more."),
]
Search = Annotated[
    tuple[str, ...],
    Parameter(
        show_default=False,
        help="Only claims with these words in their text, place or figures, or among the "
        "document's own terms.",
    ),
]
Studies = Annotated[
    Path | None,
    Parameter(
        help="Folder of reports, such as studies or runs/reports: judge by its tables instead of "
        "by the figures in the package."
    ),
]
Target = Annotated[
    Path | None,
    Parameter(name="--out", help="Folder of the report, or a file: .html, .md or .json."),
]
Check = Annotated[
    Path | None,
    Parameter(
        help="A JSON document of this command: name each verdict and figure in it that does not "
        "follow any more."
    ),
]
FORMATS: tuple[ReportFormat, ...] = ("html", "markdown", "csv", "json")


def command(
    *claims: Name,
    document: Document = (),
    verdict: Verdicts = (),
    search: Search = (),
    studies: Studies = None,
    out: Target = None,
    check: Check = None,
    json_output: Json = False,
) -> None:
    """Look up what the papers claim: a verdict for each claim, its figure and the command for it.

    Without a claim or a filter: the number of claims per document and verdict. With one: the
    claims, each with the figures that judge it, the page or test where they stand, and the command
    that finds them again.
    """
    if studies is not None and not studies.is_dir():
        raise UsageError(f"expected a folder of reports for --studies, got {studies}")
    find: FindKept = find_packaged
    if studies is not None:
        _check_tables(studies)
        # Reading tables takes numpy, which most uses of the command do not need.
        from qkvary.reports.kept_tables import read_kept

        find = partial(read_kept, studies)
    documents = _documents(document)
    every = [judge_claim(claim, find) for one in documents for claim in one.claims]
    asked = bool(claims or document or verdict or search)
    if check is not None:
        if asked:
            raise UsageError("expected --check without claims and filters: it checks every claim")
        _check(check, every, json_output=json_output)
        return
    words = [word.casefold() for phrase in search for word in phrase.split()]
    chosen = _choose(every, claims, verdict, words)
    if out is not None:
        from qkvary.reports.files import check_target

        check_target(out)
    near = "" if chosen else _near_word(words, every)
    report = claims_report(documents, chosen, asked=asked, near=near)
    show(report, json_output=json_output, target=out, formats=FORMATS)


def _check_tables(folder: Path) -> None:
    """Refuse a folder without a table of any study that judges a claim."""
    judges = (
        judge
        for name in document_names()
        for claim in load_document(name).claims
        for judge in claim.judges
    )
    named = {judge.study for judge in judges if isinstance(judge, ByStudy)}
    if not named & {path.parents[1].name for path in folder.glob("*/tables/*.csv")}:
        raise UsageError(
            f"expected tables of studies (STUDY/tables/*.csv) in {folder} for --studies, "
            "and no study that judges a claim has one there"
        )


def _documents(names: tuple[str, ...]) -> list[ClaimedDocument]:
    unknown = [name for name in names if name not in document_names()]
    if unknown:
        said = suggest(unknown[0], document_names())
        raise UsageError(f"expected a document for --document, got {unknown[0]!r}; {said}")
    return [load_document(name) for name in names or document_names()]


def _choose(
    every: list[JudgedClaim],
    names: tuple[str, ...],
    verdicts: tuple[VerdictChoice, ...],
    words: list[str],
) -> list[JudgedClaim]:
    known = [one.claim.name for one in every]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"expected a claim, got {unknown[0]!r}; {_near(unknown[0], known)}")
    wanted: set[ClaimVerdict] = {one for one in CLAIM_VERDICTS if one.replace(" ", "-") in verdicts}
    return [
        one
        for one in every
        if (not names or one.claim.name in names)
        and (not wanted or one.verdict in wanted)
        and all(word in _searched(one) for word in words)
    ]


def _near(name: str, known: list[str]) -> str:
    near = near_names(name, known)
    ends = [one for one in known if one.startswith(f"{name}-")]
    if near or not ends:
        return f"did you mean {near[0]}?" if near else "--search WORD finds claims by their words"
    return f"those of a document are asked for by --document {name}"


def _near_word(words: list[str], every: list[JudgedClaim]) -> str:
    """Return the word of a claim that is nearest to a word that no claim has; empty for none."""
    known = {word for one in every for word in re.findall(r"[\w-]+", _searched(one))}
    unknown = (word for word in words if not any(word in one for one in known))
    return next((near for word in unknown for near in near_names(word, sorted(known))), "")


def _searched(one: JudgedClaim) -> str:
    """Return the text in which words are searched."""
    claim = one.claim
    parts = (
        *(claim.name, claim.place, claim.kind, claim.text, claim.words),
        *(one.condition, claim.note, one.needs),
    )
    findings = (f"{finding.what} {finding.figure} {finding.record}" for finding in one.findings)
    return " ".join((*parts, *findings)).casefold()


def _check(path: Path, judged: list[JudgedClaim], *, json_output: bool) -> None:
    """Refuse a stored document with verdicts that do not follow."""
    stored = read_verdicts(path)
    wrong = find_wrong(stored, list(map(claim_data, judged)))
    if wrong:
        raise DamagedError(
            f"expected the verdicts in {path} to follow from their figures; "
            f"{count(len(wrong), 'claim')} differ: {'; '.join(wrong)}"
        )
    said = f"{count(len(stored), 'claim')} in {path}: every verdict follows from its figures"
    show_lines({"claims": len(stored), "wrong": wrong}, [said], json_output=json_output)
