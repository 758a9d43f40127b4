"""The report on the claims of the papers, the poster and the article.

It lists each claim with its verdict and the numbers or tests that decide the verdict.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from qkvary.papers.claim import ClaimedDocument
from qkvary.papers.claim_verdicts import JudgedClaim
from qkvary.papers.findings import CLAIM_VERDICTS, ClaimVerdict, Finding
from qkvary.papers.published_report import count_table
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Cell, Table, Tone, dataset, pick, tabulate, word
from qkvary.text.names import count

MEANINGS = (
    "Every verdict follows by rule from evidence: from a recomputed number of the document, from a "
    "test of this project, or from a figure that a study of this project measured in small "
    "networks, with an interval. The verdict is 'not distinguished' if the "
    "interval lies partly inside and partly outside the claimed range, if the networks are too "
    "small for the claim, or if no figure or test decides the claim. Paths in the folders studies "
    "and tests, and commands that run pytest or python, need a clone of the repository. An "
    "installed package does not contain these two folders."
)
CAVEATS = (
    "The claims are paraphrased. Below each claim, a line says where the document makes the claim.",
    (
        "A study judges a claim only for the networks that it trained. The size of these networks "
        "is part of the verdict: what holds at 1.6 million parameters may fail at a billion, and "
        "vice versa."
    ),
    (
        "A figure that follows from other figures of its document shows that the arithmetic is "
        "right. It does not show that a repetition would give the same figure."
    ),
    (
        "Ranges in round brackets follow from the rounding of published numbers. If the brackets "
        "name a standard error, a document prints the deviations that it follows from. An assumed "
        "spread is an estimate of this project, explained in docs/decisions/0030-claims.md: no "
        "document prints it."
    ),
    (
        "Intervals in square brackets come from studies, with 95 % confidence. In most studies "
        "they hold simultaneously for all comparisons of their table. In studies that run a script "
        "of their own, some intervals hold one at a time, and some are the least and the largest "
        "of several measurements: the page of the study says which."
    ),
)
FOLDED = 3
"""Maximum number of findings of a claim that the report shows in full. If a claim has more, the
report shows one finding per record and counts the others. Findings that only the size of their
networks leaves undecided, tests, and a single figure of a published table are always shown."""
MANY = 5
"""Maximum number of findings of a claim for one finding per record. If a claim has more findings,
the report shows one finding that does not hold (if there is one) and counts the others."""
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
    near: str = "",
) -> Report:
    """Return the report on some claims.

    If the user asked for these claims (``asked``), the terminal prints each claim. If no claim was
    found, the report suggests the search word ``near``.
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
        question="What do the documents claim, and is it true?",
        lead=MEANINGS,
        answer=tuple(_answer(judged, near)),
        caveats=CAVEATS,
        sections=(summary, *sections),
        datasets=(dataset("claims", map(_flat, judged)),) if judged else (),
        data={
            "documents": [pick(one, "name title source") for one in documents],
            "claims": [claim_data(one) for one in judged],
        },
    )


def claim_data(one: JudgedClaim) -> dict[str, Any]:
    """Return a judged claim as JSON data."""
    return {
        **pick(
            one,
            "name=claim.name document=claim.document place=claim.place claim=claim.text "
            "kind=claim.kind main=claim.main same_as=claim.same_as verdict condition scale "
            "note=claim.note needs",
        ),
        "findings": [
            pick(
                finding,
                "verdict what figure value low high detectable condition study record check",
            )
            for finding in one.findings
        ],
    }


def _answer(judged: Sequence[JudgedClaim], near: str) -> Iterator[str]:
    if not judged:
        yield f"No claim was found; did you mean {near}?" if near else "No claim was found."
        return
    yield f"{count(len(judged), 'claim')}, by verdict: {_tally(judged)}."
    named = {one.claim.name for one in judged}
    distinct = [one for one in judged if one.claim.same_as not in named]
    if len(distinct) < len(judged):
        repeated = count(
            len(judged) - len(distinct), "claim that repeats another", "claims that repeat others"
        )
        yield (
            f"Without {repeated}, the total is {count(len(distinct), 'statement')}. "
            f"Their verdicts: {_tally(distinct)}."
        )
    main = [one for one in distinct if one.claim.main]
    if main and len(main) < len(judged):
        yield (
            f"Abstracts and conclusions contain {len(main)} of these. "
            f"Their verdicts: {_tally(main)}."
        )


def _tally(judged: Sequence[JudgedClaim]) -> str:
    found = Counter(one.verdict for one in judged)
    return "; ".join(f"{verdict} {found[verdict]}" for verdict in CLAIM_VERDICTS if found[verdict])


def _counts(documents: Sequence[ClaimedDocument], judged: Sequence[JudgedClaim]) -> Table:
    found = {
        document.title: Counter(
            one.verdict for one in judged if one.claim.document == document.name
        )
        for document in documents
    }
    counts = {title: counter for title, counter in found.items() if counter}
    title = "Claims of each document by verdict"
    return count_table(title, "document", "claims", counts, CLAIM_VERDICTS)


def _section(document: ClaimedDocument, judged: Sequence[JudgedClaim], *, brief: bool) -> Section:
    table = tabulate(
        document.name,
        "Claims and verdicts",
        judged,
        word("claim=", write=_claim_cell),
        word("verdict=", write=_verdict_cell),
        notes=[document.source],
    )
    return Section(
        key=document.name, title=document.title, link=document.name, blocks=(table,), brief=brief
    )


def _claim_cell(one: JudgedClaim) -> Cell:
    claim = one.claim
    same = (f"as {claim.same_as}",) if claim.same_as else ()
    below = (" \u00b7 ".join((claim.name, claim.kind, claim.place, *same)),)
    return Cell(raw=claim.text, text=claim.text, below=below, name=True)


def _verdict_cell(one: JudgedClaim) -> Cell:
    scale = f", {one.scale}" if one.scale else ""
    return Cell(
        raw=one.verdict,
        text=f"{one.verdict}{scale}. {one.condition}".rstrip(),
        below=tuple(_evidence(one)),
        tone=_TONES.get(one.verdict, ""),
    )


def _evidence(one: JudgedClaim) -> Iterator[str]:
    """Yield lines with the evidence for a verdict.

    The first lines have the figures, with their record and command. The last lines have the claim's
    note and the requirements of a test, if the claim has them.
    """
    found = len(one.findings)
    refuting = [o for o in one.findings if o.verdict == "does not hold"]
    against = min(refuting, key=lambda o: o.printed, default=None)
    for record, check in dict.fromkeys((o.record, o.check) for o in one.findings):
        group = [o for o in one.findings if (o.record, o.check) == (record, check)]
        first = against if found > MANY else _telling(group)
        alone = len(group) == 1
        shown = [
            o for o in group if o is first or o.is_only_small or o.tested or (o.printed and alone)
        ]
        figures = map(_figure, group) if found <= FOLDED else _folded(group, shown)
        # The page of a study shows its command.
        page = record if group[0].study else ""
        where = "; ".join([page] if page and found > FOLDED else filter(None, (page, check)))
        yield f"{'; '.join(figures)}. {where}"
    if one.claim.note:
        yield one.claim.note
    if one.needs:
        yield one.needs


def _telling(group: Sequence[Finding]) -> Finding:
    """Return the first finding whose verdict is not ``holds``; if all hold, the first finding."""
    return next((one for one in group if one.verdict != "holds"), group[0])


def _folded(group: Sequence[Finding], shown: Sequence[Finding]) -> Iterator[str]:
    """Yield the text of the findings to show, and then the number of other findings per verdict."""
    yield from map(_figure, shown)
    rest = Counter(one.verdict for one in group if one not in shown)
    for verdict, number in rest.items():
        kind = f"{number} more" if shown else count(number, "figure")
        yield f"{kind} with the verdict '{verdict}'"


def _figure(finding: Finding) -> str:
    said = finding.figure.removesuffix(".")
    return f"{finding.what}: {said}" if finding.printed else said


def _flat(one: JudgedClaim) -> dict[str, str]:
    def join(name: str) -> str:
        return " | ".join(getattr(finding, name) for finding in one.findings)

    return {
        **pick(one.claim, "name place kind"),
        "main": "yes" if one.claim.main else "no",
        **pick(
            one,
            "same_as=claim.same_as claim=claim.text verdict condition scale",
        ),
        "figures": join("figure"),
        "records": join("record"),
        "checks": join("check"),
        **pick(one, "note=claim.note needs"),
    }
