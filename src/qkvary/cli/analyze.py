"""Explain a trained network: how alike keys and values are, and what tying them would cost."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.analysis.settings import DEFAULT_TOKENS, AnalysisSettings
from qkvary.checkpoints.catalog import load_checkpoint, require_tokenizer
from qkvary.cli._options import Checkpoint, CheckpointTokenizer, Device, Json, positive
from qkvary.cli._output import show, show_progress
from qkvary.reports.report import ReportFormat
from qkvary.storage.errors import UsageError

Texts = Annotated[
    tuple[Path, ...],
    Parameter(
        consume_multiple=(1, None),
        help="Text to read: files or folders of .txt and .jsonl.",
    ),
]
Tokens = Annotated[int, positive("Maximum number of tokens.")]
Context = Annotated[
    int | None,
    positive("Maximum tokens of a window; that of the network, at most 1k, if not given."),
]
Seed = Annotated[int, Parameter(help="Seed of random weights and of drawn tokens.")]
Out = Annotated[
    Path | None,
    Parameter(
        help="Folder of analysis.html, Markdown, CSV and figures; or a .html, .md or .json file."
    ),
]
Formats = Annotated[
    tuple[ReportFormat, ...],
    Parameter(name="--format", help="Format to write to --out; repeat it for more."),
]


def command(
    checkpoint: Checkpoint,
    /,
    *,
    text: Texts,
    tokens: Tokens = DEFAULT_TOKENS,
    context: Context = None,
    seed: Seed = 0,
    tokenizer: CheckpointTokenizer = None,
    device: Device = "cpu",
    out: Out = None,
    formats: Formats = (),
    json_output: Json = False,
) -> None:
    """Explain a trained network: how alike keys and values are, and what tying them would cost.

    Every figure of weights stands beside that of random weights. Figures of keys and values do not
    depend on the basis of a head.
    """
    if formats and out is None:
        raise UsageError("expected --out with a folder for the files of --format, got none")
    from qkvary.analysis.measurement import analyze_network
    from qkvary.reports.analysis import analysis_report
    from qkvary.reports.files import check_target

    if out is not None:
        check_target(out)
    settings = AnalysisSettings(text=text, tokens=tokens, context=context, seed=seed)
    loaded, _ = require_tokenizer(load_checkpoint(checkpoint), checkpoint, tokenizer)
    with show_progress("analyzing", "steps") as on_progress:
        analysis = analyze_network(loaded.to(device, None), settings, on_progress=on_progress)
    report = analysis_report(analysis, str(checkpoint))
    show(report, json_output=json_output, target=out, formats=formats or None)
