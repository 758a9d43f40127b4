"""A GGUF file as one of our networks: configuration and weights.

Only the architectures and forms that this program computes are read. Everything else is refused
with the reason.
"""

from __future__ import annotations

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
from qkvary.checkpoints.gguf.headers import GgufFile
from qkvary.checkpoints.gguf.rotation import paired_first
from qkvary.checkpoints.latent_reading import read_latent_network
from qkvary.checkpoints.latent_sizes import LATENT, read_latent_sizes
from qkvary.checkpoints.stock_parts import Weights, read_weights, rotated_first
from qkvary.storage.errors import DamagedError, UsageError


def read_network(file: GgufFile, where: str) -> tuple[LanguageModelConfig, Weights]:
    """Return the configuration and the weights of a file.

    The weights are in float32, which holds every stored type exactly.

    Args:
        file: Its contents.
        where: Its name in messages.

    Raises:
        UsageError: for a network that this program does not support.
        DamagedError: for sizes that are missing, implausible, or do not match the tensors.
    """
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
    latent = latent._replace(kv_norm_eps=latent.norm_eps)
    return read_latent_network(latent, _join_latent(tensors, sizes), "gguf", where)


def _join_latent(tensors: dict[str, Tensor], sizes: Sizes) -> dict[str, Tensor]:
    """Return the tensors with one for key and value in each layer."""
    for layer in range(sizes.num_layers):
        key, value = (f"blk.{layer}.attn_{kind}_b.weight" for kind in "kv")
        for name in (key, value):
            if name not in tensors:
                raise DamagedError(f"{sizes.where} has no {name}")
            if tensors[name].dim() != 3:
                raise DamagedError(f"{sizes.where} has {name} that is not one matrix a head")
        if tensors[key].mT.shape != tensors[value].shape:
            raise DamagedError(f"{sizes.where} has {key} and {value} whose heads differ")
        both = torch.cat((tensors.pop(key).mT, tensors.pop(value)), dim=1)
        tensors[f"blk.{layer}.attn_kv_b.weight"] = both.flatten(0, 1)
    return tensors
