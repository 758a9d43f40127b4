"""Tiny Gemma 4 models of transformers with weights that hide nothing, and caches to compare."""

from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import Cache

from tests.contracts.transformers_cases import EQUAL, few

CONFIG = {**few("gemma4_text", **{**EQUAL, "global_head_dim": 24}), "eos_token_id": None}
GLOBAL_LAYERS = (1, 4, 6)
CHUNKS = ((0, 9), (9, 10), (10, 11), (11, 17))
"""A prompt, two single steps and several tokens at once, past the window of the other layers."""


def build(dtype: torch.dtype = torch.float32, *, seed: int = 1, **fields: Any) -> Any:
    """A model with random weights, the gains of its norms far from one and each other."""
    kind = fields.pop("model_type", "gemma4_text")
    config = transformers.AutoConfig.for_model(kind, **{**CONFIG, **fields})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    randomize(model, seed)
    return model.to(dtype)


def randomize(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(1.2 * noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(1 + 0.3 * noise)


def tokens(rows: int, length: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, CONFIG["vocab_size"], (rows, length), generator=generator)


@torch.no_grad()
def decode(model: Any, ids: Tensor, cache: Cache) -> Tensor:
    """The logits of all tokens, fed in chunks."""
    parts = [model(ids[:, a:b], past_key_values=cache).logits for a, b in CHUNKS]
    return torch.cat(parts, dim=1)


def stored(layers: list[Any]) -> Iterator[Tensor]:
    for layer in layers:
        yield from (part for part in (layer.keys, layer.values) if part is not None)


def storage_bytes(layers: list[Any]) -> int:
    """Bytes of the storages that some layers hold, each once."""
    storages = {part.untyped_storage().data_ptr(): part for part in stored(layers)}
    return sum(part.untyped_storage().nbytes() for part in storages.values())
