"""Loads GGUF, the file format of llama.cpp, as one of our networks; a file may be split.

Only what our networks can compute is loaded. Everything else is refused, with the reason.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from qkvary.arch.families.fields import Fields
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.gguf.configs import (
    FAMILIES,
    PAIRED,
    Sizes,
    describe_latent,
    make_config,
    read_sizes,
)
from qkvary.checkpoints.gguf.files import unpack_tensor
from qkvary.checkpoints.gguf.headers import GgufFile, list_files, read_file
from qkvary.checkpoints.gguf.reading_vocabularies import read_tokenizer
from qkvary.checkpoints.latent_networks import LATENT, read_latent_network, read_latent_sizes
from qkvary.checkpoints.models import LoadedModel, build_model
from qkvary.checkpoints.stock_parts import Weights, paired_first, read_weights, rotated_first
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import only_file


def load(path: Path) -> LoadedModel:
    """Load a network, and its tokenizer if the file contains a tokenizer."""
    file = read_file(only_file(path, list_files(path)))
    config, weights = _read_network(file, str(path))
    return build_model(config, weights, read_tokenizer(file.metadata, str(path)), str(path))


def _read_network(file: GgufFile, where: str) -> tuple[LanguageModelConfig, Weights]:
    """Return the configuration and the weights; float32 holds every stored type exactly."""
    sizes = read_sizes(file, where)
    config, family = make_config(sizes), sizes.family
    tensors = {
        name: torch.tensor(unpack_tensor(one))
        for name, one in file.tensors.items()
        # Divisors of rotary frequencies are part of the configuration.
        if not name.startswith(("rope_freqs", "rope_factors"))
    }
    if config is not None:
        order = paired_first if family in PAIRED else rotated_first
        family = FAMILIES.get(family, family)
        return config, read_weights(tensors, family, config, "gguf", order, where)
    try:
        latent = read_latent_sizes(Fields(describe_latent(sizes), LATENT))
    except ValueError as error:
        raise UsageError(f"{where} cannot be used: {error}") from None
    # llama.cpp has one epsilon for all norms.
    latent = replace(latent, kv_norm_eps=latent.norm_eps)
    return read_latent_network(latent, _join_latent(tensors, sizes), "gguf", where)


def _join_latent(tensors: dict[str, Tensor], sizes: Sizes) -> dict[str, Tensor]:
    for layer in range(sizes.num_layers):
        name = f"blk.{layer}.attn_kv_b.weight"
        key, value = (tensors.pop(name.replace("kv_b", f"{kind}_b"), None) for kind in "kv")
        if key is None or value is None or key.dim() != 3 or key.mT.shape != value.shape:
            raise DamagedError(f"{sizes.where} has no k_b and v_b of matching shape for {name}")
        tensors[name] = torch.cat((key.mT, value), dim=1).flatten(0, 1)
    return tensors
