"""``qk.analyze``: why a trained network does what it does."""

from collections.abc import Sequence

from qkvary.analysis.measurement import analyze_network
from qkvary.analysis.results import NetworkAnalysis
from qkvary.analysis.settings import DEFAULT_TOKENS, AnalysisSettings
from qkvary.api.arguments import open_checkpoint, read_count, read_texts
from qkvary.api.options import Checkpoint
from qkvary.api.results import Result
from qkvary.reports.analysis import analysis_report
from qkvary.storage.paths import StrPath


def analyze(
    model: Checkpoint,
    text: StrPath | Sequence[StrPath],
    *,
    tokens: int | str = DEFAULT_TOKENS,
    context: int | str | None = None,
    seed: int = 0,
) -> Result[NetworkAnalysis]:
    """Explain a trained network: how alike keys and values are, and what tying them would cost.

    A given network is as before after the analysis. Half precision is read as a copy in float32.

    Args:
        model: The name or path of a checkpoint, or what ``qk.load`` returned.
        text: Files or folders of .txt and .jsonl.
        tokens: Maximum number of tokens to read.
        context: Maximum tokens of a window; by default that of the network, at most 1,024.
        seed: Seed of random weights and of drawn tokens.

    Raises:
        ValueError: if there is no such checkpoint or text, the text is too short or has other
            tokens, or a layer has no softmax over products of query and key.
        DamagedError: if the checkpoint is damaged.
        ResourceError: if this machine has no memory for a window.
    """
    loaded, name = open_checkpoint(model)
    settings = AnalysisSettings(
        text=read_texts(text),
        tokens=read_count(tokens),
        context=None if context is None else read_count(context),
        seed=seed,
    )
    analysis = analyze_network(loaded, settings)
    return Result(analysis, analysis_report(analysis, name))
