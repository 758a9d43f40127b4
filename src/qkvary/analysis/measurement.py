"""The analysis of a network on a text: one pass, in memory that does not grow with the text."""

import copy
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from qkvary.analysis.layers import LayerStatistics
from qkvary.analysis.observation import check_layers, read_window
from qkvary.analysis.results import NetworkAnalysis
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
"""Default context in tokens if the maximum of the network is longer."""
MAP_TOKENS = 48
"""Number of tokens in the attention maps, from the start of the first window."""
TOKENS_PER_HEAD_CHANNEL = 4
"""Minimum tokens per channel of a head. With fewer, even random keys and values seem alike."""

FEWEST_TOKENS = 2
"""Minimum tokens per window: one to read and one to predict."""


def analyze_network(
    loaded: LoadedModel,
    text: Sequence[Path],
    *,
    tokens: int = 10_240,
    context: int | None = None,
    seed: int = 0,
    on_progress: Progress = ignore,
) -> NetworkAnalysis:
    """Analyze the attention layers of a language model.

    Args:
        loaded: The network and its tokenizer. The network is left unchanged. A half-precision
            network is analyzed as a float32 copy. Any other network is frozen and in evaluation
            mode during the analysis.
        text: Text files (.txt or .jsonl), or folders of such files.
        tokens: The maximum number of tokens to read.
        context: Maximum tokens per window; ``None`` for the network's maximum, but at most 1,024
            and half of ``tokens``.
        seed: The seed for random weights and for the tokens and keys that are sampled.
        on_progress: Called after each window with the number of windows read and the total.

    Raises:
        UsageError: if there is no tokenizer or no text, the text is too short or has tokens outside
            the network's vocabulary, the context exceeds the network's maximum, or a layer does not
            apply a softmax to products of query and key.
        ResourceError: if a window does not fit in memory.
    """
    if loaded.tokenizer is None:
        raise UsageError("expected a checkpoint with a tokenizer, got one without")

    with _prepare(loaded.network) as network:
        size = _choose_context(network, tokens, context)
        documents = read_documents(text)
        return analyze_windows(
            network,
            read_windows(documents, loaded.tokenizer, tokens=tokens, context=size),
            context=size,
            seed=seed,
            expected=math.ceil(tokens / size),
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
    """Analyze the attention layers of a network on windows of shape [tokens].

    The network must be in evaluation mode.
    """
    layers: list[LayerStatistics] = []
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
        weights = [one.add(layer) for one, layer in zip(layers, reading.layers, strict=True)]
        maps = _keep_maps(weights) if count == 1 else maps
        tokens += len(window)
        loss += reading.loss
        on_progress(count, max(count, expected))
    fewest = TOKENS_PER_HEAD_CHANNEL * max(layer.size_per_head for layer in network.config.layers)
    if tokens < fewest:
        raise UsageError(
            f"expected a text of at least {fewest:,} tokens, {TOKENS_PER_HEAD_CHANNEL} for each "
            f"channel of a head, got {tokens:,}"
        )
    return NetworkAnalysis(
        layers=tuple(layer.result() for layer in layers),
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
    """Yield windows of tokens in order. No window contains tokens of two documents.

    A document starts with the tokenizer's beginning token. If the tokenizer has no such token, the
    document ends with the separator. Windows of a single token are left out, and only the part of a
    text that is read is encoded.
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
    """Yield the network, frozen and in evaluation mode, and restore its state afterwards.

    A half-precision network is replaced by a float32 copy.
    """
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


def _choose_context(network: LanguageModel, tokens: int, requested: int | None) -> int:
    config = network.config
    # A forecast needs two windows: one chooses a tensor, the other evaluates it.
    part = max(FEWEST_TOKENS, tokens // 2)
    context = requested or min(config.max_tokens, LONGEST_CONTEXT, part)
    if not FEWEST_TOKENS <= context <= config.max_tokens:
        raise UsageError(
            f"expected a context of {FEWEST_TOKENS} to {config.max_tokens:,} tokens, the maximum "
            f"of the network, got {context:,}"
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
    """Return the attention maps of all layers for the first tokens.

    Layers with fewer heads are padded with zeros.
    """
    heads = max(len(one) for one in weights)
    size = min(MAP_TOKENS, weights[0].shape[-1])
    kept = np.zeros((len(weights), heads, size, size))
    for place, one in zip(kept, weights, strict=True):
        place[: len(one)] = one[:, :size, :size].double().cpu().numpy()
    return kept
