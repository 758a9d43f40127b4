"""What a network has twice, a method removes exactly; else logits differ, and the refit helps."""

import pytest
import torch

from qkvary.arch.labels import format_label
from qkvary.arch.networks import LanguageModelConfig
from qkvary.conversions.caches.forms import count_numbers
from qkvary.conversions.catalog import method_names
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from tests.contracts.variant_cases import distance
from tests.conversions.caches.networks import (
    convert,
    copy_heads,
    logits,
    make_config,
    make_network,
    reduce_rank,
)

EXACT = 1e-7
"""Of the root mean square of the logits: the roots of moments without full rank."""


def labels(config: LanguageModelConfig) -> set[str]:
    return {format_label(layer.variant) for layer in config.layers}


def spare(method: str) -> tuple[LanguageModel, int, str]:
    """A network that a method loses nothing of, the size, and the new label."""
    if method in ("grouped", "mean-pooled"):
        network = make_network(make_config("QKV@rotary"))
        for role in "kv":
            copy_heads(network, role, groups=2)
        return network, 48, "GQA-3@rotary"
    if method == "shared":
        network = make_network(make_config("MQA@rotary", bias=False))
        reduce_rank(network, "v", 3)
        return network, 11, "Q-MQA@decoupled-8"
    if method == "latent":
        network = make_network(make_config("GQA-3@rotary"))
        copy_heads(network, "k", groups=3)
        return network, 8 + 24, "Q-GQA-3@decoupled-8@latent-24"
    network = make_network(make_config("GQA-2@rotary"))
    for block in network.stack.layers:
        key, value = (
            block.attention.get_parameter(f"{role}_proj.weight").data.unflatten(0, (2, 8))
            for role in "kv"
        )
        # Each value is the key, or its product with a matrix.
        inner = torch.eye(8).double() + (method == "least-squares")
        value.copy_(inner @ key)
    return network, 16, "Q-GQA-2@rotary"


@pytest.mark.parametrize("method", method_names())
def test_what_is_there_twice_is_removed_exactly(method: str) -> None:
    network, numbers, label = spare(method)
    made = convert(network, method, numbers)
    assert labels(made.refitted.config) == {label}
    assert {count_numbers(layer) for layer in made.refitted.config.layers} == {numbers}
    for found in (made.one_shot, made.refitted):
        assert distance(logits(found), logits(network)) < EXACT
    other = make_network(network.config, seed=6)
    assert distance(logits(convert(other, method, numbers).refitted), logits(other)) > 1e-3


def test_heads_without_rotation_are_grouped() -> None:
    network = make_network(make_config("QKV@alibi"))
    for role in "kv":
        copy_heads(network, role, groups=2)
    made = convert(network, "grouped", 48)
    assert labels(made.refitted.config) == {"GQA-3@alibi"}
    assert distance(logits(made.refitted), logits(network)) < EXACT


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("positions", ["alibi", "relative", "cap3.0"])
def test_layers_without_rotation_lose_nothing_at_full_rank(positions: str, *, bias: bool) -> None:
    network = make_network(make_config(f"GQA-2@{positions}", bias=bias))
    # What the layer reads has no more directions than its channels and a one.
    made = convert(network, "latent", 25 if bias else 24)
    assert distance(logits(made.one_shot), logits(network)) < EXACT


def test_biases_before_a_rotated_key_are_kept() -> None:
    network = make_network(make_config("MQA@rotary", bias=True))
    reduce_rank(network, "v", 3)
    for block in network.stack.layers:
        block.attention.get_parameter("v_proj.bias").data.zero_()
    assert distance(logits(convert(network, "shared", 11).one_shot), logits(network)) < EXACT


@pytest.mark.parametrize("method", method_names())
def test_the_refit_lowers_the_error_of_every_layer(method: str) -> None:
    network = make_network(make_config("GQA-2@rotary"))
    made = convert(network, method, 16)
    assert len(made.layers) == 2
    for layer in made.layers:
        assert layer.refitted_error < 0.95 * layer.error
    assert made.refitted.embedding.data_ptr() == network.embedding.data_ptr()


def test_layers_may_have_sizes_of_their_own() -> None:
    network = make_network(make_config("GQA-2@rotary"))
    made = convert(network, "latent", None, 20).refitted
    first, second = made.config.layers
    assert first == network.config.layers[0]
    assert format_label(second.variant) == "Q-GQA-2@decoupled-8@latent-12"
    before = network.stack.layers[0].attention.state_dict()
    for name, value in made.stack.layers[0].attention.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("config", "method", "numbers", "reason"),
    [
        (make_config("Q-K=V@kv-norm@alibi"), "latent", 8, "(kv_norm), which a conversion"),
        (make_config("GQA-2@rotary@qk-norm"), "latent", 8, "each head of query and key is norm"),
        (make_config("Q-GQA-2@rotary"), "latent", 8, "rotated keys (value_rope counter)"),
        (make_config("Q[residual-gelu]-K-V", heads=3), "latent", 8, "is not linear"),
        (make_config("QKV@linear"), "latent", 8, "the core linear, expected the softmax"),
        (make_config(), "latent", 32, "got 32 of 32 values per token and layer; choices: "),
        (make_config(), "shared", 3, "choices: 4 (12%) to 31 (97%)"),
        (make_config("MQA@rotary"), "grouped", 8, "expected several KV heads"),
        (make_config("Q=K-V@diag-mean"), "latent", 8, "its mean (diagonal), which"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_reason(
    config: LanguageModelConfig, method: str, numbers: int, reason: str
) -> None:
    with pytest.raises(UsageError) as refused:
        convert(LanguageModel(config).eval(), method, numbers)
    assert reason in str(refused.value)
