"""The networks that can decode: they return next-token logits and use a cache of the caller."""

import torch

from qkvary.nn.encoder_decoder import EncoderDecoder
from qkvary.nn.language_model import LanguageModel

Decoder = LanguageModel | EncoderDecoder
"""Inference uses ``config``, ``features``, ``head`` and ``token_losses`` of a network, and calls
it; ``forward(tokens)`` equals ``head(features(tokens))``."""


def device_of(model: Decoder) -> torch.device:
    """Return the device of a network's parameters."""
    return next(model.parameters()).device
