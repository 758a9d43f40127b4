"""Look up what the papers claim: a verdict for each claim, its figure and the command for it."""

import importlib
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from qkvary.cli._options import Json
from qkvary.cli._output import show, show_lines
from qkvary.reports.report import ReportFormat

VerdictChoice = Literal[
    "holds", "holds-with-a-condition", "does-not-hold", "not-distinguished", "not-tested-here"
]


Name = Annotated[
    str,
    Parameter(
        name="CLAIM",
        help="Claims by their names, such as poster-3.",
        completer=lambda _: _papers("claim").claim_names(),
    ),
]
Document = Annotated[
    tuple[str, ...],
    Parameter(
        show_default=False,
        help="Only claims of this document; repeat it for more.",
        completer=lambda _: _papers("catalog").document_names(),
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
    if out is not None:
        from qkvary.reports.files import check_target

        check_target(out)
    found = _papers("claims").claims(
        *claims, document=document, verdict=verdict, search=search, studies=studies, check=check
    )
    if check is not None:
        said = found.report.question.removesuffix(".")
        show_lines(found.report.data, [said], json_output=json_output)
        return
    show(found.report, json_output=json_output, target=out, formats=FORMATS)


def _papers(name: str) -> Any:
    return importlib.import_module(f"qkvary.papers.{name}")
