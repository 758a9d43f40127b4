"""Costs, derived from the configuration alone, equal what is built, computed and held."""

import dataclasses
import re
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from qkvary.arch.attention import LINEAR_CHUNK, Kernel
from qkvary.arch.caches import CacheOptions
from qkvary.arch.labels import parse_label
from qkvary.arch.models import as_model
from qkvary.arch.networks import BlockConfig, EncoderConfig, LanguageModelConfig
from qkvary.costs.macs import (
    TRAINING_FACTOR,
    attention_projection_macs_per_token,
    decode_macs,
    forward_macs,
    score_macs,
)
from qkvary.costs.network import network_costs
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from tests.contracts.flops import FlopCounter, count_macs
from tests.contracts.variant_cases import (
    BIDIRECTIONAL,
    LABELS,
    NETWORKS,
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
        found[next(one for one in PARTS if re.search(PARTS[one], name))] += parameter.numel()
        found["total"] += parameter.numel()
        found["biases"] += parameter.numel() if name.split(".")[-1].endswith("bias") else 0
    return found


PARTS = {
    "positions": "^position_embedding",
    "embedding": "^embedding",
    "attention": r"\.attention\.",
    "feed_forward": r"\.feed_forward\.",
    "norms": "norm",
    "head": "^head",
}
"""The names of parameters, the first that fits."""


def check_costs(config: LanguageModelConfig | EncoderConfig) -> None:
    """Parameters of every part, multiply-accumulates of a forward pass, bytes of the cache."""
    costs, network = network_costs(config, length=TOKENS.shape[1]), NETWORKS[type(config)](config)
    found, expected = count_parts(network), costs.parameters.to_dict()
    assert found["total"] == sum(parameter.numel() for parameter in network.parameters())
    found["weights"] = found["total"] - found["biases"]
    assert {part: found[part] for part in expected} == expected
    assert count_macs(network, TOKENS) == costs.macs_per_sequence
    if isinstance(config, LanguageModelConfig):
        cache = KVCache(config.layers)
        network(TOKENS, cache=cache)
        assert cache.nbytes == costs.cache_bytes_per_sequence
    else:
        assert costs.cache_bytes_per_token is None


@variant_pairs("label", LABELS)
def test_language_models(label: str) -> None:
    check_costs(make_language_model_config(label))


@variant_values("label", BIDIRECTIONAL)
def test_encoders(label: str) -> None:
    check_costs(make_encoder_config(label))


def count_training_macs(model: LanguageModel, texts: Tensor) -> float:
    with FlopCounter() as counter:
        model(texts, targets=texts).backward()
    return counter.total / 2


@variant_values("label", LABELS)
def test_training_steps(label: str) -> None:
    model = LanguageModel(make_language_model_config(label))
    tokens, counted = TOKENS.shape[1], as_model(model.config)
    found = 2 * count_training_macs(model, TOKENS)
    expected = 2 * TRAINING_FACTOR * forward_macs(counted, tokens=tokens, pairs="square").total
    # The sinusoids of "+" are constants without a gradient.
    assert 0.995 * expected < found < expected if "+" in label else found == expected


@variant_values("label", LABELS)
def test_decoded_tokens(label: str) -> None:
    config = make_language_model_config(label)
    # A decoded token meets the latent itself; without a kernel for decoding it is expanded.
    options = CacheOptions(kernel="matmul" if "latent" in label else "layer")
    model, cache = LanguageModel(config).eval(), KVCache(config.layers, options=options)
    for index in range(TOKENS.shape[1]):
        macs = decode_macs(as_model(config), context=index + 1)
        assert count_macs(model, TOKENS[:, index : index + 1], cache=cache) == macs.total


LENGTHS = (1, 2, LINEAR_CHUNK, LINEAR_CHUNK + 3, 2 * LINEAR_CHUNK, 131)


def make_long_config(label: str, tokens: int, kernel: Kernel) -> LanguageModelConfig:
    layer = dataclasses.replace(make_config(label, causal=True), kernel=kernel)
    config = make_language_model_config(label)
    return dataclasses.replace(config, attention=layer, max_tokens=tokens)


@pytest.mark.parametrize("label", ["QKV@linear", "Q-GQA-2@linear-identity@decay-learned"])
@pytest.mark.parametrize("tokens", LENGTHS[2:])
def test_linear_attention_in_chunks(label: str, tokens: int) -> None:
    """As it is trained; the map of all pairs is what the other cases count."""
    config = make_long_config(label, tokens, "auto")
    model, texts = LanguageModel(config), torch.arange(tokens)[None] % 13
    assert count_macs(model, texts) == network_costs(config, length=tokens).macs_per_sequence
    macs = TRAINING_FACTOR * forward_macs(as_model(config), tokens=tokens, pairs="square").total
    assert count_training_macs(model, texts) == macs


@pytest.mark.parametrize("kernel", ["auto", "explicit"])
@pytest.mark.parametrize("label", ["QKV@linear", "Q-GQA-2@linear-identity@decay-learned", "QKV"])
def test_prompts_that_fill_a_cache(label: str, kernel: Kernel) -> None:
    """A state of all tokens is left, also by the last chunk."""
    for tokens in LENGTHS:
        config = make_long_config(label, tokens, kernel)
        texts, cache = torch.arange(tokens)[None] % 13, KVCache(config.layers)
        found = count_macs(LanguageModel(config), texts, cache=cache)
        expected = forward_macs(as_model(config), tokens=tokens, pairs="square", fills_cache=True)
        assert found == expected.total, tokens


@pytest.mark.parametrize("label", ["QKV@linear", "MQA@linear", "Q-GQA-2@linear-identity"])
def test_bidirectional_linear_attention_takes_the_order_of_fewer_products(label: str) -> None:
    config = dataclasses.replace(make_config(label, causal=False), kernel="auto")
    layer = Attention(config)
    for tokens in (2, 3, 5, 7, 40):
        macs = tokens * attention_projection_macs_per_token(config)
        found = count_macs(layer, torch.zeros(1, tokens, config.d_model))
        assert found == macs + score_macs(config, tokens, "square"), tokens
    assert score_macs(config, 40, "visible") < 2 * 40 * 40 * config.d_model


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
        positions = "learned" if tied else "sinusoidal"
        head = {"tied_head": tied, "head_bias": not tied}
        check_costs(make_language_model_config("Q-K=V", block=block, positions=positions, **head))
    encoder = make_encoder_config("Q=K=V", positions="learned")
    check_costs(dataclasses.replace(encoder, block=block))


def test_layers_that_share_differently() -> None:
    wanted = parse_label("I-K-V*1,Q-GQA-2*2,QKV*1")
    plain = dataclasses.replace(make_language_model_config("QKV"), num_layers=4)
    config = plain.with_variant(wanted)
    assert config.variant == wanted
    check_costs(config)
    # A model of the same layers, whoever gave it the variants.
    assert as_model(plain).with_variant(wanted) == as_model(config)
    for one in (plain, as_model(plain)):
        with pytest.raises(ValueError, match=r"expected variants for the 4 layers of .*, got 3"):
            one.with_variant(parse_label("QKV*1,Q-K=V*2"))
    with pytest.raises(
        ValueError,
        match="expected one attention configuration for shared blocks, got several",
    ):
        dataclasses.replace(plain, shared_blocks=True).with_variant(wanted)


def test_blocks_that_share_their_weights() -> None:
    config = make_language_model_config("Q-GQA-2")
    check_costs(dataclasses.replace(config, num_layers=5, shared_blocks=True))
