"""Explain a trained network: how alike keys and values are, and what tying them would cost."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from qkvary.analysis.settings import DEFAULT_TOKENS, AnalysisSettings
from qkvary.api.arguments import reads_arguments
from qkvary.api.options import (
    Checkpoint,
    CheckpointTokenizer,
    Count,
    NetworkOptions,
    Texts,
    open_checkpoint,
    read_texts,
)
from qkvary.api.results import Result
from qkvary.text.numbers import read_count
from qkvary.text.progress_line import ShowProgress, no_progress

if TYPE_CHECKING:
    from qkvary.analysis.results import NetworkAnalysis


@reads_arguments
def analyze(
    model: Checkpoint,
    text: Annotated[Texts, Parameter(name="--text")],
    *,
    tokens: Count = DEFAULT_TOKENS,
    context: Count | None = None,
    seed: int = 0,
    tokenizer: CheckpointTokenizer = None,
    device: str | None = None,
    show_progress: ShowProgress = no_progress,
) -> "Result[NetworkAnalysis]":
    """Explain a trained network: how alike keys and values are, and what tying them would cost.

    Every value of weights is compared with that of random weights. Measures of keys and values do
    not depend on the basis of a head. A given network is not changed. Half precision is read as
    a copy in float32.

    Args:
        model: The checkpoint, or what ``qk.load`` returned.
        text: Text to read: files or folders of .txt and .jsonl.
        tokens: Maximum number of tokens.
        context: Maximum tokens per window. If not given, the network's maximum, at most 1k.
        seed: Seed of random weights and of drawn tokens.
        tokenizer: The tokenizer of a checkpoint without one.
        device: Device: cpu, cuda, cuda:1, mps. If not given, a checkpoint is loaded on the CPU.
        show_progress: Opens a progress display.

    Raises:
        ValueError: if there is no such checkpoint or text, the text is too short or has other
            tokens, or a layer has no softmax over products of query and key.
        DamagedError: if the checkpoint is damaged.
        ResourceError: if this machine has no memory for a window.
    """
    from qkvary.analysis.measurement import analyze_network
    from qkvary.reports.analysis import analysis_report

    settings = AnalysisSettings(
        text=read_texts(text),
        tokens=read_count(tokens, "tokens"),
        context=read_count(context, "context"),
        seed=seed,
    )
    loaded, name = open_checkpoint(model, tokenizer, NetworkOptions(device=device), speaks=True)
    with show_progress("analyzing", "steps") as on_progress:
        analysis = analyze_network(loaded, settings, on_progress=on_progress)
    return Result(analysis, analysis_report(analysis, name))
