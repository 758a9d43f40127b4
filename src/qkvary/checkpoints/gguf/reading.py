"""A GGUF file as one of our networks: configuration and weights.

Only the architectures and forms that this program computes are read. Everything else is refused
with the reason.
"""

from __future__ import annotations

import torch
from torch import Tensor as TorchTensor

from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.gguf.configs import FAMILIES, PAIRED, Sizes, make_config, read_sizes
from qkvary.checkpoints.gguf.files import GgufFile
from qkvary.checkpoints.gguf.rotation import pair_order
from qkvary.checkpoints.latent_reading import LatentSizes, ReadNetwork, read_latent_network
from qkvary.checkpoints.stock_names import TABLES, list_tensors
from qkvary.checkpoints.stock_parts import is_turned, order_channels, rotated_last, split_parts
from qkvary.storage.errors import DamagedError, UsageError


def read_network(file: GgufFile, where: str) -> ReadNetwork:
    """Return the configuration and the weights of a file.

    Args:
        file: Its contents.
        where: Its name in messages.

    Raises:
        UsageError: for a network that this program does not support.
        DamagedError: for sizes that are missing, implausible, or do not match the tensors.
    """
    sizes = read_sizes(file, where)
    config = make_config(sizes)
    if config is not None:
        return ReadNetwork(config, _read_weights(file, sizes.architecture, config, where))
    try:
        return read_latent_network(_read_latent_sizes(sizes), _join_latent(file, sizes), where)
    except UsageError:
        raise
    except ValueError as error:
        raise DamagedError(f"{where} does not describe a network: {error}") from None


def _read_latent_sizes(sizes: Sizes) -> LatentSizes:
    layers = sizes.layers
    rank = sizes.file.metadata.get("deepseek2.attention.q_lora_rank", 0)
    if rank != 0:
        raise UsageError(f"{sizes.where} has a q_lora_rank {rank!r:.40}, expected 0")
    sizes.require("dense layers", sizes.get("leading_dense_block_count", layers), layers)
    epsilon = sizes.epsilon("attention.layer_norm_rms_epsilon")
    rope = sizes.get("rope.dimension_count")
    return LatentSizes(
        d_model=sizes.get("embedding_length"),
        d_ff=sizes.get("feed_forward_length"),
        layers=layers,
        heads=sizes.get("attention.head_count"),
        head_dim=sizes.get("attention.value_length_mla"),
        rope=rope,
        width=sizes.get("attention.kv_lora_rank"),
        max_tokens=sizes.get("context_length"),
        rotary_base=sizes.rotary_base(),
        norm_eps=epsilon,
        kv_norm_eps=epsilon,
    )


def _join_latent(file: GgufFile, sizes: Sizes) -> dict[str, TorchTensor]:
    """Return the weights by the names of transformers, with one tensor for key and value."""
    tensors = {name: torch.tensor(one.values) for name, one in file.tensors.items()}
    for layer in range(sizes.layers):
        key, value = (f"blk.{layer}.attn_{kind}_b.weight" for kind in "kv")
        if not len(sizes.shape(key)) == len(sizes.shape(value)) == 3:
            raise DamagedError(f"{sizes.where} has {key} that is not one matrix per head")
        if tensors[key].mT.shape != tensors[value].shape:
            raise DamagedError(f"{sizes.where} has {key} and {value} whose heads differ")
        both = torch.cat((tensors.pop(key).mT, tensors.pop(value)), dim=1)
        tensors[f"blk.{layer}.attn_kv_b.weight"] = both.flatten(0, 1)
    names = {row.gguf: row.theirs for row in list_tensors("deepseek", sizes.layers)}
    unknown = min(tensors.keys() - names.keys(), default=None)
    if unknown is not None:
        raise UsageError(f"{sizes.where} has {unknown[:80]}, which this program does not compute")
    return {names[name]: tensor for name, tensor in tensors.items()}


def _read_weights(
    file: GgufFile, architecture: str, config: LanguageModelConfig, where: str
) -> dict[str, TorchTensor]:
    """Return the weights by our names, in float32, which holds every stored type exactly."""
    weights = dict[str, TorchTensor]()
    # Divisors of rotary frequencies belong to the configuration.
    left = {name for name in file.tensors if not name.startswith(("rope_freqs", "rope_factors"))}
    family, layer = FAMILIES.get(architecture, architecture), config.layers[0]
    size, rotated = layer.size_per_head, layer.position.rotary_dim(layer.size_per_head)
    pairs = torch.tensor(pair_order(size, rotated)).argsort().tolist()
    order = pairs if architecture in PAIRED else rotated_last(layer)
    for row in list_tensors(TABLES.get(family, "llama"), config.num_layers):
        if row.gguf not in left:
            continue
        left.remove(row.gguf)
        values = torch.tensor(file.tensors[row.gguf].values)
        # Query, key and value are concatenated without change.
        for name, part in split_parts(row._replace(change=""), values, layer).items():
            if is_turned(name) and len(part) % size:
                raise DamagedError(f"{where} has {len(part)} rows for heads of {size} channels")
            weights[name] = order_channels(part, size, order) if is_turned(name) else part
    if left:
        raise UsageError(f"{where} has {min(left)[:80]}, which this program does not compute")
    return weights
