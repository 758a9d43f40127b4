"""``qk.convert``: a network as another that computes the same."""

import os

from qkvary.api.arguments import open_checkpoint
from qkvary.api.options import Checkpoint
from qkvary.api.results import Result
from qkvary.checkpoints.catalog import check_output, read_config
from qkvary.checkpoints.models import save_model
from qkvary.conversions.draft import RewriteOptions
from qkvary.conversions.rewriting import Rewriting, check_rewrite, run_rewrite
from qkvary.reports.conversion import conversion_report
from qkvary.storage.paths import StrPath


def convert(
    model: Checkpoint,
    rewrite: str,
    *,
    layer: int | None = None,
    seed: int = 0,
    out: StrPath | None = None,
) -> Result[Rewriting]:
    """Rewrite a network into another that computes the same, and say how much logits differ.

    Args:
        model: The name or path of a checkpoint, or what ``qk.load`` returned.
        rewrite: Its name, such as ``identity-query``.
        layer: Only this layer, the first being 1; every layer by default.
        seed: Seed of random choices.
        out: The folder to write, another than that of the checkpoint; nothing is written by
            default.

    Returns:
        A result whose ``value.network`` is the new network.

    Raises:
        ValueError: for an unknown rewrite, one whose conditions do not hold, or ``out`` that would
            replace the checkpoint.
        DamagedError: if the checkpoint is damaged.
    """
    options = RewriteOptions(layer=layer, seed=seed)
    if out is not None and isinstance(model, str | os.PathLike):
        check_output(model, out)
    if isinstance(model, str | os.PathLike):
        config = read_config(model)
        if config is not None:
            check_rewrite(rewrite, config, options)
    loaded, name = open_checkpoint(model)
    made = run_rewrite(rewrite, loaded.network, options)
    if out is not None:
        save_model(out, made.network, loaded.tokenizer)
    return Result(made, conversion_report(made, name))
