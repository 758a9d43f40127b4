"""Building and running the tiny models of ``transformers_cases``, and weighing their caches."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.cache_utils import Cache, CacheLayerMixin

from qkvary.arch.families.table import MULTIMODAL, read_model
from qkvary.arch.models import Model
from tests.contracts.flops import FlopCounter
from tests.contracts.transformers_cases import Config

PROMPT = 9
STEPS = 4
ENCODER_TOKENS = 6
NUMBER = 4
"""Bytes of a float32."""


def make_config(family: str, config: Config) -> Any:
    return transformers.AutoConfig.for_model(family, **config)


def read(family: str, config: Config) -> Model:
    return read_model({"model_type": family, **config}, family)


def build(family: str, config: Config) -> nn.Module:
    """The model that transformers builds, with random weights; of several modalities, the text's.

    Each is built once, and belongs to all tests. The grouped kernel for experts asks for sizes that
    no test should have: it is not taken.
    """
    return _build(family, json.dumps(config))


@functools.cache
def _build(family: str, config: str) -> nn.Module:
    made = make_config(family, json.loads(config))
    if family in MULTIMODAL:
        made = made.get_text_config()
    kinds = (
        (transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForSpeechSeq2Seq)
        if made.is_encoder_decoder
        else (transformers.AutoModelForCausalLM,)
    )
    kind = next(kind for kind in kinds if type(made) in kind._model_mapping)
    torch.manual_seed(1)
    return kind.from_config(made, experts_implementation="eager").eval()


def encoder_input(config: Any) -> dict[str, Tensor]:
    """Tokens, or as many frames of sound as the model always takes."""
    if hasattr(config, "num_mel_bins"):
        frames = 2 * config.max_source_positions
        return {"input_features": torch.ones(1, config.num_mel_bins, frames)}
    return {"input_ids": torch.arange(3, 3 + ENCODER_TOKENS)[None]}


class Decoder:
    """One sequence, a prompt first, then token by token."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.config: Any = model.config
        self.cache: Any = None
        self.encoded: Any = None

    @torch.no_grad()
    def feed(self, tokens: int) -> None:
        ids = torch.arange(3, 3 + tokens)[None]
        if not self.config.is_encoder_decoder:
            output = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True)
        else:
            output = self._feed_encoder_decoder(ids)
        self.cache = output.past_key_values

    def _feed_encoder_decoder(self, ids: Tensor) -> Any:
        arguments: dict[str, Any] = {
            "decoder_input_ids": ids,
            "past_key_values": self.cache,
            "use_cache": True,
        }
        if self.encoded is None:
            output = self.model(**encoder_input(self.config), **arguments)
            self.encoded = (output.encoder_last_hidden_state,)
            return output
        return self.model(encoder_outputs=self.encoded, **arguments)


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of more than one number that a cache holds, however it is nested."""
    if isinstance(value, Tensor):
        if value.ndim and value.numel():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Cache | CacheLayerMixin):
        yield from tensors(vars(value))


def held_bytes(cache: Any) -> int:
    """The bytes of the entries; where one tensor serves as two, it counts once."""
    found = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors(cache)}
    return sum(found.values())


def allocated_bytes(cache: Any) -> int:
    """The bytes of the storages that the entries lie in."""
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors(cache)}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def decode(family: str, config: Config) -> tuple[tuple[int, int, int], ...]:
    """A prompt and steps: tokens so far, multiply-accumulates, and bytes that the cache holds.

    Each model is decoded once for all tests.
    """
    return _decode(family, json.dumps(config))


@functools.cache
def _decode(family: str, config: str) -> tuple[tuple[int, int, int], ...]:
    decoder, found = Decoder(_build(family, config)), list[tuple[int, int, int]]()
    for context in range(PROMPT, PROMPT + STEPS + 1):
        macs = multiplied(decoder, PROMPT if context == PROMPT else 1)
        found.append((context, macs, held_bytes(decoder.cache)))
    return tuple(found)


def multiplied(decoder: "Decoder", tokens: int) -> int:
    """Multiply-accumulates that torch counts while these tokens are fed."""
    with FlopCounter() as counter, sdpa_kernel(SDPBackend.MATH):
        decoder.feed(tokens)
    assert counter.total % 2 == 0
    return counter.total // 2
