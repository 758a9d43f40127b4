"""Look up the claims of the papers, with a verdict and the deciding figures for each claim."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.results import Result
from qkvary.papers.catalog import document_names, read_documents
from qkvary.papers.claim import ByStudy, load_document
from qkvary.papers.claim_checks import find_wrong, read_verdicts
from qkvary.papers.claim_verdicts import JudgedClaim, judge_claim
from qkvary.papers.claims_report import claim_data, claims_report
from qkvary.papers.kept_figures import FindKept, find_packaged
from qkvary.reports.report import Report
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.text.names import count, near_names

VerdictChoice = Literal[
    "holds", "holds-with-a-condition", "does-not-hold", "not-distinguished", "not-tested-here"
]
Name = Annotated[str, Parameter(name="CLAIM")]


@verb
def claims(
    *claims: Name,
    document: tuple[str, ...] = (),
    verdict: tuple[VerdictChoice, ...] = (),
    search: tuple[str, ...] = (),
    studies: Path | None = None,
    check: Path | None = None,
) -> Result[tuple[JudgedClaim, ...]]:
    """Look up the claims of the papers, with a verdict and the deciding figures for each claim.

    Without a claim or a filter, the command prints the number of claims per document and verdict.
    Otherwise it prints the selected claims. Each claim has the figures that judge it, the report
    page or test with each figure, and the command that reproduces the figure.

    Args:
        claims: Names of claims, such as poster-3.
        document: Only claims of this document, such as poster (can be repeated).
        verdict: Only claims with this verdict (can be repeated).
        search: Only claims that contain these words: in the claim, in its place in the document,
            in its figures, or in the terms that the document uses (can be repeated).
        studies: Folder of reports, such as studies or runs/reports. The claims are judged by the
            tables in this folder instead of by the figures in the package.
        check: A JSON document that this command wrote earlier. The command fails if a verdict or
            figure in this document differs from the newly derived one.

    Raises:
        UsageError: for an unknown claim or document, or a folder without tables.
        DamagedError: if a verdict or figure in the document to check differs from the derived one.
    """
    asked = bool(claims or document or verdict or search)
    if check is not None and asked:
        raise UsageError("expected no claims or filters with --check, which checks every claim")
    documents = [load_document(name) for name in read_documents(document)]
    find = _find(studies)
    every = [judge_claim(claim, find) for one in documents for claim in one.claims]
    if check is not None:
        return Result(tuple(every), _check(check, every))
    words = [word.casefold() for phrase in search for word in phrase.split()]
    chosen = _choose(every, claims, verdict, words)
    near = "" if chosen else _near_word(words, every)
    return Result(tuple(chosen), claims_report(documents, chosen, asked=asked, near=near))


def _check(path: Path, derived: Sequence[JudgedClaim]) -> Report:
    """Raise a DamagedError if verdicts in a stored document differ from newly derived verdicts."""
    stored = read_verdicts(path)
    wrong = find_wrong(stored, list(map(claim_data, derived)))
    if wrong:
        raise DamagedError(
            f"expected the verdicts in {path} to follow from their figures; "
            f"{count(len(wrong), 'claim')} differ: {'; '.join(wrong)}"
        )
    said = f"{count(len(stored), 'claim')} in {path}: every verdict follows from its figures."
    return Report(
        subject="claims",
        question=said,
        lead="",
        sections=(),
        data={"claims": len(stored), "wrong": wrong},
    )


def _find(folder: Path | None) -> FindKept:
    if folder is None:
        return find_packaged
    if not folder.is_dir():
        raise UsageError(f"expected a folder of reports for --studies, got {folder}")
    # Reading tables needs numpy, which most uses do not import.
    from qkvary.papers.kept_tables import find_tables, read_kept

    judges = (
        judge
        for name in document_names()
        for claim in load_document(name).claims
        for judge in claim.judges
    )
    named = {judge.study for judge in judges if isinstance(judge, ByStudy)}
    if not any(find_tables(folder, study) for study in named):
        raise UsageError(
            f"expected tables of studies (STUDY/tables/*.csv) in {folder} for --studies, "
            "got no table of a study that judges a claim"
        )
    return partial(read_kept, folder)


def _choose(
    every: list[JudgedClaim],
    names: Sequence[str],
    verdicts: Sequence[VerdictChoice],
    words: list[str],
) -> list[JudgedClaim]:
    known = [one.claim.name for one in every]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"expected a claim, got {unknown[0]!r}; {_near(unknown[0], known)}")
    return [
        one
        for one in every
        if (not names or one.claim.name in names)
        and (not verdicts or one.verdict.replace(" ", "-") in verdicts)
        and all(word in _searched(one) for word in words)
    ]


def _near(name: str, known: list[str]) -> str:
    near = near_names(name, known)
    ends = [one for one in known if one.startswith(f"{name}-")]
    if near or not ends:
        return f"did you mean {near[0]}?" if near else "--search WORD finds claims by their words"
    return f"--document {name} selects all claims of this document"


def _near_word(words: list[str], every: list[JudgedClaim]) -> str:
    """Return the known word that is most similar to an unknown word; empty if none is similar."""
    known = {word for one in every for word in re.findall(r"[\w-]+", _searched(one))}
    unknown = (word for word in words if not any(word in one for one in known))
    return next((near for word in unknown for near in near_names(word, sorted(known))), "")


def _searched(one: JudgedClaim) -> str:
    """Return the text of a claim and its findings in which a search looks for words."""
    claim = one.claim
    parts = (
        *(claim.name, claim.place, claim.kind, claim.text, claim.words),
        *(one.condition, claim.note, one.needs),
    )
    findings = (f"{finding.what} {finding.figure} {finding.record}" for finding in one.findings)
    return " ".join((*parts, *findings)).casefold()
