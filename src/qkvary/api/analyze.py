"""Explain a trained network: how alike keys and values are, and what tying them would cost."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.options import (
    SILENT,
    Checkpoint,
    CheckpointTokenizer,
    NetworkOptions,
    Terminal,
    Texts,
    open_checkpoint,
)
from qkvary.api.results import Result
from qkvary.text.numbers import Count, check_seed

if TYPE_CHECKING:
    from qkvary.analysis.results import NetworkAnalysis


@verb
def analyze(
    model: Checkpoint,
    text: Annotated[Texts, Parameter(name="--text")],
    *,
    tokens: Count = 10_240,
    context: Count | None = None,
    seed: int = 0,
    tokenizer: CheckpointTokenizer = None,
    device: str | None = None,
    terminal: Terminal = SILENT,
) -> "Result[NetworkAnalysis]":
    """Explain a trained network: how alike keys and values are, and what tying them would cost.

    Every measure of the weights is compared with the same measure of random weights. Measures of
    keys and values do not depend on the basis of a head. A network that is passed in is not
    changed; if its weights are in half precision, a float32 copy is analysed.

    Args:
        model: The checkpoint, or what ``qk.load`` returned.
        text: Text to run the network on: files or folders of .txt and .jsonl.
        tokens: Maximum number of tokens to take from the text.
        context: Maximum tokens per window. If not given, the network's maximum, at most 1k.
        seed: Seed of the random weights, and of the random choice of tokens and keys.
        tokenizer: The tokenizer to use if the checkpoint has none.
        device: Device: cpu, cuda, cuda:1, mps. If not given, a checkpoint is loaded on the CPU.
        terminal: Shows the progress.

    Raises:
        ValueError: if there is no such checkpoint or text, the text is too short, the tokenizer
            belongs to another network, or a layer does not apply softmax to query-key
            products.
        DamagedError: if the checkpoint is damaged.
        ResourceError: if a window does not fit into this machine's memory.
    """
    from qkvary.analysis.measurement import analyze_network
    from qkvary.reports.analysis import analysis_report

    check_seed(seed)
    loaded, name = open_checkpoint(model, tokenizer, NetworkOptions(device=device), speaks=True)
    with terminal.show_progress("analyzing", "windows") as on_progress:
        analysis = analyze_network(
            loaded, text, tokens=tokens, context=context, seed=seed, on_progress=on_progress
        )
    return Result(analysis, analysis_report(analysis, name))
