"""The report of the documents' claims: each with its verdict, and where the figure comes from."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from qkvary.literature.claim import ClaimedDocument
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Cell, Column, Table, Tone, dataset, named, pick, plain
from qkvary.studies.results.claim_verdicts import (
    CLAIM_VERDICTS,
    ClaimVerdict,
    Finding,
    JudgedClaim,
)
from qkvary.text.names import count

MEANINGS = (
    "Every verdict follows by rule from a figure and its interval: a recomputed figure of the "
    "document, a test of this project, or a difference in a kept study, whose networks are small. "
    "Not distinguished: the interval takes in what is claimed and what is not."
)
CAVEATS = (
    (
        "The claims are in words of this project; the documents say them in theirs, at the place "
        "that stands below each."
    ),
    (
        "A study judges a claim for the networks that it trained. Their size stands in the "
        "verdict: what holds at 1.6 million parameters may not hold at a billion, and the reverse."
    ),
    (
        "A figure that follows from other figures of its document shows that the arithmetic is "
        "right, and not that a repetition would give it."
    ),
)
MAIN_PLACES = ("abstract", "finding")
"""The beginnings of places that hold what a document says first."""
_TONES: dict[ClaimVerdict, Tone] = {
    "holds": "better",
    "does not hold": "worse",
    "not tested here": "quiet",
}


def claims_report(
    documents: Sequence[ClaimedDocument],
    judged: Sequence[JudgedClaim],
    *,
    asked: bool,
    title: str = "What do the documents claim, and is it so?",
) -> Report:
    """Return the report of some claims.

    Args:
        documents: The documents, in this order.
        judged: The claims to show, with their verdicts.
        asked: Whether these claims were asked for, so that the terminal prints each of them.
        title: The question.
    """
    sections = [
        _section(document, own, brief=asked)
        for document in documents
        if (own := [one for one in judged if one.claim.document == document.name])
    ]
    summary = Section(
        key="verdicts",
        title="Verdicts",
        blocks=(_counts(documents, judged),),
        brief=not asked,
    )
    return Report(
        subject="claims of the documents",
        question=title,
        lead=MEANINGS,
        answer=tuple(_answer(judged)),
        caveats=CAVEATS,
        sections=(summary, *sections),
        datasets=(dataset("claims", map(_flat, judged)),) if judged else (),
        data={
            "documents": [pick(one, "name title source") for one in documents],
            "claims": [claim_data(one) for one in judged],
        },
    )


def claim_data(one: JudgedClaim) -> dict[str, Any]:
    """Return a judged claim for programs."""
    return {
        **pick(
            one,
            "name=claim.name document=claim.document place=claim.place claim=claim.text "
            "kind=claim.kind verdict condition scale note=claim.note needs=claim.needs",
        ),
        "findings": [
            pick(
                finding,
                "verdict what figure value low high detectable condition study record check",
            )
            for finding in one.findings
        ],
    }


def _answer(judged: Sequence[JudgedClaim]) -> Iterator[str]:
    if not judged:
        yield "No claim was found."
        return
    yield f"{count(len(judged), 'claim')}: {_tally(judged)}."
    main = [one for one in judged if one.claim.place.startswith(MAIN_PLACES)]
    if main and len(main) < len(judged):
        yield (
            f"Of these, {count(len(main), 'claim')} of abstracts and main findings: {_tally(main)}."
        )


def _tally(judged: Sequence[JudgedClaim]) -> str:
    found = Counter(one.verdict for one in judged)
    return "; ".join(f"{verdict} {found[verdict]}" for verdict in CLAIM_VERDICTS if found[verdict])


def _counts(documents: Sequence[ClaimedDocument], judged: Sequence[JudgedClaim]) -> Table:
    lines = [
        (document.title, Counter(o.verdict for o in judged if o.claim.document == document.name))
        for document in documents
    ]
    lines = [(title, found) for title, found in lines if found]
    return Table(
        key="verdicts",
        title="Claims of each document by verdict",
        columns=(
            Column(key="document", title="document", numeric=False),
            Column(key="claims", title="claims"),
            *(Column(key=one.replace(" ", "_"), title=one) for one in CLAIM_VERDICTS),
        ),
        rows=tuple(
            (
                named(title),
                plain(found.total()),
                *(plain(found[verdict] or None) for verdict in CLAIM_VERDICTS),
            )
            for title, found in [*lines, ("all", Counter(one.verdict for one in judged))]
        ),
        main=True,
    )


def _section(document: ClaimedDocument, judged: Sequence[JudgedClaim], *, brief: bool) -> Section:
    table = Table(
        key=document.name,
        title="In the order of the document",
        columns=(
            Column(key="claim", title="claim", numeric=False),
            Column(key="verdict", title="verdict", numeric=False),
        ),
        rows=tuple((_claim_cell(one), _verdict_cell(one)) for one in judged),
        notes=(document.source,),
    )
    return Section(
        key=document.name, title=document.title, link=document.name, blocks=(table,), brief=brief
    )


def _claim_cell(one: JudgedClaim) -> Cell:
    claim = one.claim
    below = (f"{claim.name}, {claim.kind}", claim.place)
    return Cell(raw=claim.text, text=claim.text, below=below, name=True)


def _verdict_cell(one: JudgedClaim) -> Cell:
    scale = f", {one.scale}" if one.scale else ""
    condition = f": {one.condition}" if one.condition else ""
    return Cell(
        raw=one.verdict,
        text=f"{one.verdict}{scale}{condition}.",
        below=tuple(_evidence(one)),
        tone=_TONES.get(one.verdict, ""),
    )


def _evidence(one: JudgedClaim) -> Iterator[str]:
    """Yield figures with their record and command, the note, and what a test would take."""
    for (record, check), findings in groupby(one.findings, key=lambda one: (one.record, one.check)):
        group = list(findings)
        page = f"{record}; " if group[0].study else ""
        yield f"{'; '.join(map(_figure, group))}. {page}{check}"
    if one.claim.note:
        yield one.claim.note
    if one.claim.needs:
        yield f"It would take {one.claim.needs}."


def _figure(finding: Finding) -> str:
    said = finding.figure.removesuffix(".")
    return f"{finding.what}: {said}" if finding.printed else said


def _flat(one: JudgedClaim) -> dict[str, str]:
    return {
        "name": one.claim.name,
        "place": one.claim.place,
        "kind": one.claim.kind,
        "claim": one.claim.text,
        "verdict": one.verdict,
        "condition": one.condition,
        "scale": one.scale,
        "figures": " | ".join(finding.figure for finding in one.findings),
        "records": " | ".join(finding.record for finding in one.findings),
        "checks": " | ".join(finding.check for finding in one.findings),
        "note": one.claim.note,
        "needs": one.claim.needs,
    }
