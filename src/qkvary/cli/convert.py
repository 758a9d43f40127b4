"""Rewrite a language model into another that computes the same: fewer or other matrices."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.checkpoints.catalog import check_output, load_checkpoint, read_config
from qkvary.cli._options import Checkpoint, Full, Json, NetworkDtype
from qkvary.cli._output import console, print_line, show
from qkvary.conversions.catalog import load_rewrite, rewrite_names
from qkvary.storage.durable import check_folder

Rewrite = Annotated[
    str,
    Parameter(
        help=f"What to do: {', '.join(rewrite_names())}.", completer=lambda _: rewrite_names()
    ),
]
Layer = Annotated[int | None, Parameter(help="Only this layer, the first being 1.")]
Seed = Annotated[int, Parameter(help="Seed of random choices.")]
Out = Annotated[Path | None, Parameter(help="Folder to write; figures alone if not given.")]


def command(
    checkpoint: Checkpoint,
    /,
    *,
    rewrite: Rewrite,
    layer: Layer = None,
    seed: Seed = 0,
    dtype: NetworkDtype = None,
    out: Out = None,
    full: Full = False,
    json_output: Json = False,
) -> None:
    """Rewrite a language model into another that computes the same: fewer or other matrices.

    Conditions are checked, and differences of logits are measured and printed, before anything is
    written.
    """
    load_rewrite(rewrite)
    if out is not None:
        check_output(checkpoint, out)
        check_folder(out.absolute().parent)

    from qkvary.checkpoints.models import save_model
    from qkvary.conversions.draft import RewriteOptions
    from qkvary.conversions.rewriting import check_rewrite, run_rewrite
    from qkvary.reports.conversion import conversion_report

    options = RewriteOptions(layer=layer, seed=seed)
    config = read_config(checkpoint)
    if config is not None:
        check_rewrite(rewrite, config, options)
    loaded = load_checkpoint(checkpoint).to("cpu", dtype)
    made = run_rewrite(rewrite, loaded.network, options)
    report = conversion_report(made, str(checkpoint))
    if not json_output:
        show(report, json_output=False, full=full)
    if out is not None:
        save_model(out, made.network, loaded.tokenizer)
    if json_output:
        show(report, json_output=True, out=out)
    elif out is not None:
        print_line(console(), f"written: {out}")
