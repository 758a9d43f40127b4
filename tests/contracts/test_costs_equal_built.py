"""Costs, derived from the configuration alone, equal what is built, computed and held."""

import dataclasses
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkvary.arch.attention import LINEAR_CHUNK, Kernel
from qkvary.arch.caches import CacheOptions
from qkvary.arch.labels import parse_label
from qkvary.arch.models import as_model
from qkvary.arch.networks import BlockConfig, EncoderConfig, LanguageModelConfig
from qkvary.costs.macs import (
    attention_projection_macs_per_token,
    decode_macs,
    forward_macs,
    score_macs,
)
from qkvary.costs.network import network_costs
from qkvary.costs.parameters import ParameterCount
from qkvary.costs.training import training_macs_per_token
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache
from qkvary.nn.encoder import Encoder
from qkvary.nn.language_model import LanguageModel
from tests.contracts.flops import FlopCounter
from tests.contracts.variant_cases import (
    BIDIRECTIONAL,
    LABELS,
    make_config,
    make_encoder_config,
    make_language_model_config,
    variant_pairs,
    variant_values,
)

TOKENS = torch.arange(7)[None]


def count_parts(network: nn.Module) -> Counter[str]:
    """Numbers of every part of a network that was built."""
    found: Counter[str] = Counter()
    for name, parameter in network.named_parameters():
        found[_part_of(name)] += parameter.numel()
        found["total"] += parameter.numel()
        found["biases"] += parameter.numel() if name.split(".")[-1].endswith("bias") else 0
    return found


def _part_of(name: str) -> str:
    if name.startswith("position_embedding"):
        return "positions"
    if name.startswith("embedding"):
        return "embedding"
    for part in ("attention", "feed_forward"):
        if f".{part}." in name:
            return part
    if "norm" in name:
        return "norms"
    assert name.startswith("head"), name
    return "head"


def assert_parts_equal(network: nn.Module, expected: ParameterCount) -> None:
    found = count_parts(network)
    assert found["total"] == sum(parameter.numel() for parameter in network.parameters())
    found["weights"] = found["total"] - found["biases"]
    assert {part: found[part] for part in expected.to_dict()} == expected.to_dict()


def count_macs(network: nn.Module) -> int:
    """Half of the floating-point operations that torch counts in one forward pass."""
    with FlopCounter() as counter, torch.no_grad():
        network(TOKENS)
    assert counter.total % 2 == 0
    return counter.total // 2


@variant_pairs("label", LABELS)
def test_language_models(label: str) -> None:
    config = make_language_model_config(label)
    costs = network_costs(config, length=TOKENS.shape[1])
    model = LanguageModel(config)
    assert_parts_equal(model, costs.parameters)
    assert count_macs(model) == costs.macs_per_sequence
    cache = KVCache(config.layers)
    model(TOKENS, cache=cache)
    assert cache.nbytes == costs.cache_bytes_per_sequence


@variant_values("label", LABELS)
def test_training_steps(label: str) -> None:
    model = LanguageModel(make_language_model_config(label))
    with FlopCounter() as counter:
        model(TOKENS, targets=TOKENS).backward()
    tokens = TOKENS.shape[1]
    macs = training_macs_per_token(as_model(model.config), tokens=tokens, pairs="square")
    found, expected = counter.total, round(2 * macs * tokens)
    # The sinusoids of "+" are constants without a gradient.
    assert 0.995 * expected < found < expected if "+" in label else found == expected


@variant_values("label", LABELS)
def test_decoded_tokens(label: str) -> None:
    config = make_language_model_config(label)
    # A decoded token meets the latent itself; without a kernel for decoding it is expanded.
    options = CacheOptions(kernel="matmul" if "latent" in label else "layer")
    model, cache = LanguageModel(config).eval(), KVCache(config.layers, options=options)
    for index in range(TOKENS.shape[1]):
        with FlopCounter() as counter, torch.no_grad():
            model(TOKENS[:, index : index + 1], cache=cache)
        macs = decode_macs(as_model(config), context=index + 1)
        assert counter.total == 2 * macs.total


@pytest.mark.parametrize("label", ["QKV@linear", "Q-GQA-2@linear-identity@decay-learned"])
@pytest.mark.parametrize("tokens", [LINEAR_CHUNK, LINEAR_CHUNK + 3, 2 * LINEAR_CHUNK, 131])
def test_linear_attention_in_chunks(label: str, tokens: int) -> None:
    """As it is trained; the map of all pairs is what the other cases count."""
    layer = dataclasses.replace(make_config(label, causal=True), kernel="auto")
    config = dataclasses.replace(
        make_language_model_config(label), attention=layer, max_tokens=tokens
    )
    model, texts = LanguageModel(config), torch.arange(tokens)[None] % 13
    with FlopCounter() as counter, torch.no_grad():
        model(texts)
    assert counter.total == 2 * network_costs(config, length=tokens).macs_per_sequence
    with FlopCounter() as counter:
        model(texts, targets=texts).backward()
    macs = training_macs_per_token(as_model(config), tokens=tokens, pairs="square")
    assert counter.total == round(2 * macs * tokens)


@pytest.mark.parametrize("kernel", ["auto", "explicit"])
@pytest.mark.parametrize("label", ["QKV@linear", "Q-GQA-2@linear-identity@decay-learned", "QKV"])
@pytest.mark.parametrize("tokens", [1, 2, LINEAR_CHUNK, LINEAR_CHUNK + 3, 2 * LINEAR_CHUNK, 131])
def test_prompts_that_fill_a_cache(label: str, tokens: int, kernel: Kernel) -> None:
    """A state of all tokens is left, also by the last chunk."""
    layer = dataclasses.replace(make_config(label, causal=True), kernel=kernel)
    config = dataclasses.replace(
        make_language_model_config(label), attention=layer, max_tokens=tokens
    )
    model = LanguageModel(config)
    with FlopCounter() as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(torch.arange(tokens)[None] % 13, cache=KVCache(config.layers))
    expected = forward_macs(as_model(config), tokens=tokens, pairs="square", fills_cache=True)
    assert counter.total == 2 * expected.total


@pytest.mark.parametrize("label", ["QKV@linear", "MQA@linear", "Q-GQA-2@linear-identity"])
@pytest.mark.parametrize("tokens", [2, 3, 5, 7, 40])
def test_bidirectional_linear_attention_takes_the_order_of_fewer_products(
    label: str, tokens: int
) -> None:
    config = dataclasses.replace(make_config(label, causal=False), kernel="auto")
    layer = Attention(config)
    with FlopCounter() as counter, torch.no_grad():
        layer(torch.zeros(1, tokens, config.d_model))
    macs = tokens * attention_projection_macs_per_token(config)
    assert counter.total == 2 * (macs + score_macs(config, tokens, "square"))
    assert score_macs(config, 40, "visible") < 2 * 40 * 40 * config.d_model


@variant_values("label", BIDIRECTIONAL)
def test_encoders(label: str) -> None:
    config = make_encoder_config(label)
    costs = network_costs(config, length=TOKENS.shape[1])
    encoder = Encoder(config)
    assert_parts_equal(encoder, costs.parameters)
    assert count_macs(encoder) == costs.macs_per_sequence
    assert costs.cache_bytes_per_token is None


BLOCKS = (
    BlockConfig(d_ff=11, norm="rmsnorm", activation="swiglu"),
    BlockConfig(d_ff=11, norm_placement="post", bias=False),
    BlockConfig(d_ff=11, norm="rmsnorm", norm_placement="post", activation="relu"),
    BlockConfig(d_ff=11, norm_placement="post-final", activation="relu"),
    BlockConfig(d_ff=11, bias=False, activation="swiglu"),
    BlockConfig(d_ff=11, norm="none", skips="attention"),
)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_kind_of_block_position_and_head(block: BlockConfig) -> None:
    for tied in (True, False):
        model: LanguageModelConfig = dataclasses.replace(
            make_language_model_config("Q-K=V"),
            block=block,
            positions="learned" if tied else "sinusoidal",
            tied_head=tied,
            head_bias=not tied,
        )
        network = LanguageModel(model)
        costs = network_costs(model, length=TOKENS.shape[1])
        assert_parts_equal(network, costs.parameters)
        assert count_macs(network) == costs.macs_per_sequence
    encoder: EncoderConfig = dataclasses.replace(
        make_encoder_config("Q=K=V"), block=block, positions="learned"
    )
    costs = network_costs(encoder, length=TOKENS.shape[1])
    assert_parts_equal(Encoder(encoder), costs.parameters)
    assert count_macs(Encoder(encoder)) == costs.macs_per_sequence


def test_layers_that_share_differently() -> None:
    wanted = parse_label("I-K-V*1,Q-GQA-2*2,QKV*1")
    plain = dataclasses.replace(make_language_model_config("QKV"), num_layers=4)
    config = plain.with_variant(wanted)
    assert config.variant == wanted
    costs = network_costs(config, length=TOKENS.shape[1])
    network, cache = LanguageModel(config), KVCache(config.layers)
    assert_parts_equal(network, costs.parameters)
    assert count_macs(network) == costs.macs_per_sequence
    network(TOKENS, cache=cache)
    assert cache.nbytes == costs.cache_bytes_per_sequence
    # A model of the same layers, whoever gave it the variants.
    assert as_model(plain).with_variant(wanted) == as_model(config)
    with pytest.raises(ValueError, match="expected variants of the 4 layers of the network, got 3"):
        plain.with_variant(parse_label("QKV*1,Q-K=V*2"))
    with pytest.raises(ValueError, match="expected variants of the 4 layers of the network, got 3"):
        as_model(plain).with_variant(parse_label("QKV*1,Q-K=V*2"))
    with pytest.raises(ValueError, match="expected one attention layer for all with shared blocks"):
        dataclasses.replace(plain, shared_blocks=True).with_variant(wanted)


def test_blocks_that_share_their_weights() -> None:
    config = dataclasses.replace(
        make_language_model_config("Q-GQA-2"), num_layers=5, shared_blocks=True
    )
    network, costs = LanguageModel(config), network_costs(config, length=TOKENS.shape[1])
    assert_parts_equal(network, costs.parameters)
    assert count_macs(network) == costs.macs_per_sequence
    cache = KVCache(config.layers)
    network(TOKENS, cache=cache)
    assert cache.nbytes == costs.cache_bytes_per_sequence
