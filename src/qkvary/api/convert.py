"""Rewrite a language model into another that computes the same: fewer or other matrices."""

import os
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from qkvary.api.arguments import open_checkpoint
from qkvary.api.options import Checkpoint, NetworkDtype, NetworkOptions
from qkvary.api.results import Result, add_data
from qkvary.checkpoints.catalog import check_output, read_config
from qkvary.conversions.catalog import load_rewrite, rewrite_names
from qkvary.storage.durable import check_folder
from qkvary.storage.paths import StrPath, read_path

if TYPE_CHECKING:
    from qkvary.conversions.rewriting import Rewriting


def convert(
    model: Checkpoint,
    rewrite: Annotated[str, Parameter(name="--rewrite", completer=lambda _: rewrite_names())],
    *,
    layer: int | None = None,
    seed: int = 0,
    dtype: NetworkDtype | None = None,
    out: StrPath | None = None,
) -> "Result[Rewriting]":
    """Rewrite a language model into another that computes the same: fewer or other matrices.

    Conditions are checked, and differences of logits are measured, before anything is written.

    Args:
        model: The checkpoint, or what ``qk.load`` returned.
        rewrite: What to do, such as gauge or identity-query; an unknown name lists all.
        layer: Only this layer, the first being 1.
        seed: Seed of random choices.
        dtype: Number format; as stored if not given.
        out: Folder to write, another than that of the checkpoint; figures alone if not given.

    Returns:
        A result whose ``value.network`` is the new network.

    Raises:
        ValueError: for an unknown rewrite, one whose conditions do not hold, or ``out`` that would
            replace the checkpoint.
        DamagedError: if the checkpoint is damaged.
    """
    load_rewrite(rewrite)
    path = model if isinstance(model, str | os.PathLike) else None
    if out is not None:
        if path is not None:
            check_output(path, out)
        check_folder(read_path(out, "the path of a folder").absolute().parent)

    from qkvary.checkpoints.models import save_model
    from qkvary.conversions.draft import RewriteOptions
    from qkvary.conversions.rewriting import check_rewrite, run_rewrite
    from qkvary.reports.conversion import conversion_report

    options = RewriteOptions(layer=layer, seed=seed)
    config = None if path is None else read_config(path)
    if config is not None:
        check_rewrite(rewrite, config, options)
    loaded, name = open_checkpoint(model, options=NetworkOptions(dtype=dtype))
    made = run_rewrite(rewrite, loaded.network, options)
    report = conversion_report(made, name)
    written = () if out is None else (read_path(out),)
    if out is not None:
        save_model(out, made.network, loaded.tokenizer)
    return Result(made, add_data(report, out=out), files=written)
