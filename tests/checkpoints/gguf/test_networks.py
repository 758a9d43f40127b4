"""Our networks in GGUF: logits of the graphs of llama.cpp, in double precision, and back."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.gguf.headers import TensorType
from qkvary.checkpoints.models import LoadedModel
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from tests.checkpoints.equal_networks import same_weights
from tests.checkpoints.huggingface.causal_models import make_network
from tests.contracts.variant_cases import randomize
from tests.reference import llama_cpp
from tests.small_networks import small_config

TOKENS = [3, 0, 12, 7, 7, 1, 11, 5, 2, 9, 4]
NARROW = 1e-6
"""Of the largest logit: weights are stored in 32 bits."""


def rotary_config(label: str, *, fraction: float, **fields: Any) -> LanguageModelConfig:
    """A network that llama.cpp's Llama may express, unless the label forbids it."""
    usual: dict[str, Any] = {
        "num_heads": 4,
        "head_dim": 6,
        "d_model": 24,
        "kernel": "explicit",
        "rotary_fraction": fraction,
        "rotary_base": 500.0,
        "value_rope": "none",
        "bias": False,
        "out_bias": False,
        "block": BlockConfig(d_ff=11, activation="swiglu", norm="rmsnorm", bias=False),
    }
    variant = dataclasses.replace(parse_variant(label), positions="rotary")
    return small_config(variant, **(usual | fields))


PORTABLE = (
    "Q-K=V@decoupled-4@kv-norm",
    "Q-GQA-2@decoupled-4@kv-norm",
    "Q-MQA@decoupled-2@kv-norm",
    "I-K=V@decoupled-4@kv-norm",
    "Q=K=V@decoupled-4@kv-norm",
    "Q-K=V@t0.5@decoupled-4@kv-norm",
    "Q-GQA-2@decoupled-4@latent-7@kv-norm",
    "Q-K=V@decoupled-4@latent-9@kv-norm",
    "Q-GQA-2@decoupled-4",
    "Q-K=V@decoupled-4@latent-9",
)


def portable_config(label: str, **fields: Any) -> LanguageModelConfig:
    """Keys and values of one normalised tensor, and embeddings as small as after training."""
    config = rotary_config("QKV", fraction=1.0, **fields)
    block = dataclasses.replace(config.block, norm_eps=1e-6)
    return dataclasses.replace(config, block=block).with_variant(parse_variant(label))


def build_portable(label: str, **fields: Any) -> LanguageModel:
    network = build(portable_config(label, **fields))
    with torch.no_grad():
        network.embedding.normal_(std=0.02, generator=torch.Generator().manual_seed(7))
    return network


def build(config: LanguageModelConfig) -> LanguageModel:
    """Weights that 32 bits hold exactly."""
    network = LanguageModel(config)
    randomize(network, 5)
    return network.eval()


@torch.no_grad()
def logits_of(network: LanguageModel) -> Tensor:
    return network.double()(torch.tensor([TOKENS]))[0]


def write(network: LanguageModel, folder: Path, kind: TensorType = "f32") -> Path:
    export_gguf(LoadedModel(network, None), folder / "a.gguf", kind)
    return folder / "a.gguf"


def distance_of(found: Any, expected: Tensor) -> float:
    return float(np.abs(found - expected.numpy()).max() / expected.abs().max())


@pytest.mark.parametrize("fraction", [1.0, 0.67, 0.34])
@pytest.mark.parametrize("label", ["QKV", "GQA-2", "MQA", "Q=K-V", "Q-K=V", "I-K-V", "QKV@t0.5"])
def test_llama_gives_equal_logits(label: str, fraction: float, tmp_path: Path) -> None:
    network = build(rotary_config(label, fraction=fraction, tied_head=label != "MQA"))
    exported = export_gguf(LoadedModel(network, None), tmp_path / "a.gguf")
    assert ("cache holds" in " ".join(exported.notes)) == (label == "Q-K=V")
    file = llama_cpp.read_file(tmp_path / "a.gguf")
    assert file.architecture == "llama"
    assert distance_of(llama_cpp.logits(file, TOKENS), logits_of(network)) < NARROW


@pytest.mark.parametrize("label", ["QKV", "Q-K=V", "MQA", "Q[residual]-K-V", "I-K=V"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_gpt2_gives_equal_logits_where_gelu_is_exact(
    label: str, positions: str, tmp_path: Path
) -> None:
    network = make_network(label, torch.float32, positions=positions, tied_head=label == "QKV")
    file = llama_cpp.read_file(write(network, tmp_path))
    assert file.architecture == "gpt2"
    assert distance_of(llama_cpp.logits(file, TOKENS), logits_of(network)) < NARROW


@pytest.mark.parametrize("label", PORTABLE)
def test_deepseek2_gives_equal_logits(label: str, tmp_path: Path) -> None:
    network = build_portable(label, tied_head="MQA" not in label)
    file = llama_cpp.read_file(write(network, tmp_path))
    assert file.architecture == "deepseek2"
    assert distance_of(llama_cpp.logits(file, TOKENS), logits_of(network)) < NARROW


@pytest.mark.parametrize("label", [one for one in PORTABLE if "@t" not in one and one[0] == "Q"])
def test_a_written_latent_network_is_read(label: str, tmp_path: Path) -> None:
    network = build_portable(label, tied_head=False)
    found = load_checkpoint(write(network, tmp_path)).network
    if "=K=" in label:
        # Its query becomes a projection of its own.
        assert distance_of(logits_of(found).numpy(), logits_of(network)) < NARROW
        return
    assert found.config.layers[0].variant == network.config.layers[0].variant
    assert same_weights(found, network)


@pytest.mark.parametrize("label", ["QKV", "GQA-2"])
@pytest.mark.parametrize("fraction", [1.0, 0.67, 0.34])
def test_a_written_network_is_read_to_the_bit(label: str, fraction: float, tmp_path: Path) -> None:
    network = build(rotary_config(label, fraction=fraction, bias=True, out_bias=label == "QKV"))
    found = load_checkpoint(write(network, tmp_path)).network
    assert found.config.attention.position.rotary_dim(6) == max(2, 2 * int(fraction * 3))  # type: ignore[union-attr]
    assert same_weights(found, network)


@pytest.mark.parametrize(
    ("kind", "types"),
    [("f16", {"F16", "F32"}), ("bf16", {"BF16", "F32"}), ("q8_0", {"Q8_0", "F16", "F32"})],
)
def test_matrices_have_the_type_asked_for(
    kind: TensorType, types: set[str], tmp_path: Path
) -> None:
    network = build(rotary_config("QKV", fraction=0.5, d_model=32, head_dim=8))
    exported = export_gguf(LoadedModel(network, None), tmp_path / "a.gguf", kind)
    file = llama_cpp.read_file(tmp_path / "a.gguf")
    assert set(file.types.values()) == types
    assert {file.types[name] for name in file.types if "norm" in name} == {"F32"}
    # The only rows of 11 numbers.
    assert file.types["blk.0.ffn_down.weight"] == ("F16" if kind == "q8_0" else kind.upper())
    assert ("2 tensors are stored in f16" in " ".join(exported.notes)) == (kind == "q8_0")
    found = load_checkpoint(tmp_path / "a.gguf").network
    assert distance_of(llama_cpp.logits(file, TOKENS), logits_of(found)) < NARROW


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (make_network("Q-K=V@rotary"), "values that are rotated keys (counter)"),
        (make_network("QKV@alibi"), "alibi positions"),
        (
            build(portable_config("QKV@decoupled-4")),
            "two different tensors; train a network of the form Q-K=V@decoupled-16@kv-norm",
        ),
    ],
)
def test_what_llama_cpp_cannot_compute_is_refused(
    network: LanguageModel, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        write(network, tmp_path)
    assert message in str(caught.value)
    assert "llama.cpp" in str(caught.value)
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("label", ["Q-GQA-2@decoupled-4", "Q-K=V@decoupled-4@latent-9"])
def test_a_tensor_without_a_norm_goes_through_any_epsilon(label: str, tmp_path: Path) -> None:
    config = portable_config(label)
    block = dataclasses.replace(config.block, norm_eps=1e-5)
    network = build(dataclasses.replace(config, block=block))
    with torch.no_grad():
        for index, part in enumerate(network.stack.blocks):
            # Of any size; nothing of it is lost.
            part.attention.get_parameter("k_proj.weight").mul_(10.0 ** (3 * index - 1))
            part.attention_norm.get_parameter("weight").mul_(1 + 3 * index)
    path = write(network, tmp_path)
    found = llama_cpp.logits(llama_cpp.read_file(path), TOKENS)
    assert distance_of(found, logits_of(network)) < NARROW
    again = load_checkpoint(path).network
    assert again.config.block.norm_eps == 1e-5
    assert same_weights(again, network.float())
    # What half precision would lose is stored in single.
    file = llama_cpp.read_file(write(network, tmp_path, "f16"))
    assert file.types["blk.0.attn_kv_a_mqa.weight"] == "F32"
    assert file.types["blk.0.attn_q.weight"] == "F16"


@pytest.mark.parametrize(
    ("kind", "largest", "limit"), [("f16", 65_504, "65,504"), ("q8_0", 127 * 65_504, "8,319,008")]
)
def test_weights_beyond_the_end_of_a_type_are_refused(
    kind: TensorType, largest: float, limit: str, tmp_path: Path
) -> None:
    network = build(rotary_config("QKV", fraction=0.5, d_model=32, head_dim=8))
    with torch.no_grad():
        network.embedding[0, 0] = largest
    file = llama_cpp.read_file(write(network, tmp_path, kind))
    assert file.types["token_embd.weight"] == kind.upper()
    assert file.tensors["token_embd.weight"][0, 0] == largest
    with torch.no_grad():
        network.embedding[0, 0] = 2 * largest
    message = f"token_embd.weight has weights above {limit}, the largest value of {kind}$"
    with pytest.raises(UsageError, match=message):
        write(network, tmp_path, kind)
