"""The analysis of a network on a text: one pass, in memory that does not grow with the text."""

import copy
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from qkvary.analysis.layers import LayerStatistics
from qkvary.analysis.observation import check_layers, read_window
from qkvary.analysis.results import LayerAnalysis, NetworkAnalysis
from qkvary.analysis.settings import FEWEST_TOKENS, AnalysisSettings
from qkvary.checkpoints.models import LoadedModel
from qkvary.data.documents import Document
from qkvary.data.encoding import encode_start
from qkvary.data.sources import read_documents
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.decoder import device_of
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import require_memory
from qkvary.storage.errors import UsageError
from qkvary.text.progress_line import Progress, ignore

LONGEST_CONTEXT = 1024
"""Default context for networks whose maximum is longer, in tokens."""
MAP_TOKENS = 48
"""Number of tokens at the start of the first window whose attention is shown."""
TOKENS_PER_HEAD_CHANNEL = 4
"""Minimum tokens per channel of a head: with fewer, keys and values of random weights seem
alike."""

FEWEST_WINDOWS = 2
"""Minimum number of windows for a forecast: one half chooses a tensor, the other evaluates it."""


def analyze_network(
    loaded: LoadedModel,
    settings: AnalysisSettings,
    *,
    on_progress: Progress = ignore,
) -> NetworkAnalysis:
    """Analyze the attention layers of a language model.

    Args:
        loaded: The network and its tokenizer. The network is left unchanged. A half-precision one
            is analyzed as a float32 copy; any other is frozen and in evaluation mode during the
            analysis.
        settings: The text, and how it is read.
        on_progress: Called after each step with the number of steps done and the total.

    Raises:
        UsageError: if there is no tokenizer or no text, the text is too short or has tokens outside
            the network's vocabulary, the context exceeds the network's maximum, or a layer has no
            softmax over products of query and key.
        ResourceError: if a window does not fit in memory.
    """
    if loaded.tokenizer is None:
        raise UsageError("expected a checkpoint with a tokenizer, got one without")

    with _prepare(loaded.network) as network:
        context = _choose_context(network, settings)
        documents = read_documents(settings.text)
        windows = read_windows(documents, loaded.tokenizer, tokens=settings.tokens, context=context)
        return analyze_windows(
            network,
            windows,
            context=context,
            seed=settings.seed,
            expected=math.ceil(settings.tokens / context),
            on_progress=on_progress,
        )


def analyze_windows(
    network: LanguageModel,
    windows: Iterable[Tensor],
    *,
    context: int,
    seed: int = 0,
    expected: int = 1,
    on_progress: Progress = ignore,
) -> NetworkAnalysis:
    """Analyze the attention layers of a network in evaluation mode on windows, [tokens] each."""
    layers: list[LayerStatistics] = []
    depth, done = network.config.num_layers, 0
    # Windows are read one by one, their statistics are added up, and the figures are computed at
    # the end.
    total = (2 * max(1, expected) + 1) * depth

    def step(steps: int = 1) -> None:
        nonlocal done
        done += steps
        on_progress(min(done, total), total)

    generator = torch.Generator().manual_seed(seed)
    tokens = count = 0
    loss, maps = 0.0, np.zeros((0, 0, 0, 0))
    for count, window in enumerate(windows, start=1):
        _check_tokens(network, window)
        reading = read_window(network, window.to(device_of(network)), generator)
        layers = layers or [
            LayerStatistics(layer.attention, number, seed)
            for number, layer in enumerate(reading.layers, start=1)
        ]
        step(depth)
        weights: list[Tensor] = []
        for one, layer in zip(layers, reading.layers, strict=True):
            weights.append(one.add(layer))
            step()
        maps = _keep_maps(weights) if count == 1 else maps
        tokens += len(window)
        loss += reading.loss
    fewest = TOKENS_PER_HEAD_CHANNEL * max(layer.size_per_head for layer in network.config.layers)
    if tokens < fewest:
        raise UsageError(
            f"expected a text of at least {fewest:,} tokens, {TOKENS_PER_HEAD_CHANNEL} for each "
            f"channel of a head, got {tokens:,}"
        )
    figures: list[LayerAnalysis] = []
    done = max(done, total - depth)
    for layer in layers:
        figures.append(layer.result())
        step()
    return NetworkAnalysis(
        layers=tuple(figures),
        tokens=tokens,
        windows=count,
        context=context,
        # The first token of a window is not predicted.
        loss=loss / (tokens - count),
        d_model=network.config.d_model,
        vocabulary=network.config.vocabulary,
        seed=seed,
        maps=maps,
    )


def read_windows(
    documents: Iterable[Document], tokenizer: Tokenizer, *, tokens: int, context: int
) -> Iterator[Int[Tensor, " tokens"]]:
    """Yield windows of one document each, in order.

    A document starts with the tokenizer's beginning token. If the tokenizer has none, the document
    ends with the separator. Windows of a single token are left out, and only the part of a text
    that is read is encoded.
    """
    left = tokens
    for document in documents:
        encoded = encode_start(tokenizer, document, tokens=left)[:left]
        for start in range(0, len(encoded), context):
            window = encoded[start : start + context]
            if len(window) >= FEWEST_TOKENS:
                left -= len(window)
                yield torch.tensor(window)
        if left < FEWEST_TOKENS:
            return


@contextmanager
def _prepare(network: LanguageModel) -> Generator[LanguageModel]:
    """Yield the network frozen in evaluation mode, or a float32 copy; restore it afterwards."""
    try:
        check_layers(network)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if device_of(network).type == "mps":
        raise UsageError("expected a device with float64, such as cpu or cuda, got mps")
    if network.embedding.dtype in (torch.float16, torch.bfloat16):
        yield copy.deepcopy(network).float().eval().requires_grad_(requires_grad=False)
        return
    modes = [(module, module.training) for module in network.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in network.parameters()]
    try:
        yield network.eval().requires_grad_(requires_grad=False)
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def _choose_context(network: LanguageModel, settings: AnalysisSettings) -> int:
    config = network.config
    part = max(FEWEST_TOKENS, settings.tokens // FEWEST_WINDOWS)
    context = settings.context or min(config.max_tokens, LONGEST_CONTEXT, part)
    if context > config.max_tokens:
        raise UsageError(
            f"expected a context of at most {config.max_tokens:,} tokens, those of the network, "
            f"got {context:,}"
        )
    heads = max(layer.num_heads for layer in config.layers)
    moments = 8 * config.d_model**2 * config.num_layers
    # Scores, their softmax and the maps that are compared with their transposes; logits and
    # gradients.
    window = 4 * context * (6 * heads * context + 4 * config.vocabulary)
    require_memory(
        moments + window,
        f"reading a window of {context:,} tokens takes",
        "use a smaller --context",
    )
    return context


def _check_tokens(network: LanguageModel, window: Tensor) -> None:
    highest, vocabulary = int(window.max()), network.config.vocabulary
    if highest >= vocabulary:
        raise UsageError(
            f"expected tokens below {vocabulary:,}, the vocabulary of the network, got "
            f"{highest:,}: the tokenizer belongs to another network"
        )


def _keep_maps(weights: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return every layer's attention maps of the first tokens, with zeros for missing heads."""
    heads = max(len(one) for one in weights)
    size = min(MAP_TOKENS, weights[0].shape[-1])
    kept = np.zeros((len(weights), heads, size, size))
    for place, one in zip(kept, weights, strict=True):
        place[: len(one)] = one[:, :size, :size].double().cpu().numpy()
    return kept
