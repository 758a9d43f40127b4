"""A GGUF file as one of our networks: configuration and weights.

Only the architectures and forms that this program computes are read. Everything else is refused
with the reason.
"""

from __future__ import annotations

import torch
from torch import Tensor as TorchTensor

from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.gguf.configs import Sizes, make_config, read_sizes
from qkvary.checkpoints.gguf.files import GgufFile
from qkvary.checkpoints.gguf.rotation import pair_order
from qkvary.checkpoints.latent_reading import LatentSizes, ReadNetwork, read_latent_network
from qkvary.checkpoints.stock_names import StockArchitecture, list_tensors
from qkvary.storage.errors import DamagedError, UsageError


def read_network(file: GgufFile, where: str) -> ReadNetwork:
    """Return the configuration and the weights of a file.

    Args:
        file: Its contents.
        where: Its name in messages.

    Raises:
        UsageError: for a network that this program does not compute.
        DamagedError: for sizes that are missing, implausible, or not those of the tensors.
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
            raise DamagedError(f"{sizes.where} has {key} that is not one matrix a head")
        if tensors[key].mT.shape != tensors[value].shape:
            raise DamagedError(f"{sizes.where} has {key} and {value} of different heads")
        both = torch.cat((tensors.pop(key).mT, tensors.pop(value)), dim=1)
        tensors[f"blk.{layer}.attn_kv_b.weight"] = both.flatten(0, 1)
    names = {row.gguf: row.theirs for row in list_tensors("deepseek", sizes.layers)}
    unknown = min(tensors.keys() - names.keys(), default=None)
    if unknown is not None:
        raise UsageError(f"{sizes.where} has {unknown[:80]}, which this program does not compute")
    return {names[name]: tensor for name, tensor in tensors.items()}


def _read_weights(
    file: GgufFile, architecture: StockArchitecture, config: LanguageModelConfig, where: str
) -> dict[str, TorchTensor]:
    """Return the weights by our names, in float32, which holds every stored type exactly."""
    weights = dict[str, TorchTensor]()
    # Read by _read_rotation.
    left = set(file.tensors) - ({"rope_freqs.weight"} if architecture == "llama" else set())
    for row in list_tensors(architecture, config.num_layers):
        if row.gguf in left:
            left.remove(row.gguf)
            values = torch.tensor(file.tensors[row.gguf].values)
            values = _restore_order(config, row.change, values, where)
            names = row.ours.split(",")
            weights |= zip(names, values.chunk(len(names)), strict=True)
    if left:
        raise UsageError(f"{where} has {min(left)[:80]}, which this program does not compute")
    return weights


def _restore_order(
    config: LanguageModelConfig, change: str, values: TorchTensor, where: str
) -> TorchTensor:
    if not change.endswith("pairs"):
        return values
    layer = config.layers[0]
    size = layer.size_per_head
    if len(values) % size:
        raise DamagedError(f"{where} has {len(values)} rows in heads of {size} channels")
    order = torch.tensor(pair_order(size, layer.position.rotary_dim(size)))
    return values.unflatten(0, (-1, size))[:, order.argsort()].flatten(0, 1)
