"""``qk.convert``: a network as another that computes the same."""

from __future__ import annotations

from pathlib import Path

from qkvary.api.checkpoints import Checkpoint, open_checkpoint
from qkvary.api.results import Result
from qkvary.checkpoints.models import save_model
from qkvary.conversions.draft import RewriteOptions
from qkvary.conversions.rewriting import Rewriting, run_rewrite
from qkvary.reports.conversion import conversion_report


def convert(
    model: Checkpoint,
    rewrite: str,
    *,
    layer: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> Result[Rewriting]:
    """Rewrite a network into another that computes the same, and say how much logits differ.

    Args:
        model: The name or path of a checkpoint, or what ``qk.load`` returned.
        rewrite: Its name, such as ``identity-query``.
        layer: Only this layer, the first being 1; every layer by default.
        seed: Seed of random choices.
        out: The folder to write; nothing is written by default.

    Returns:
        A result whose ``value.network`` is the new network.

    Raises:
        ValueError: for an unknown rewrite, or one whose conditions do not hold.
        DamagedError: if the checkpoint is damaged.
    """
    loaded, name = open_checkpoint(model)
    made = run_rewrite(rewrite, loaded.network, RewriteOptions(layer=layer, seed=seed))
    if out is not None:
        save_model(Path(out).expanduser(), made.network, loaded.tokenizer)
    return Result(made, conversion_report(made, name))
