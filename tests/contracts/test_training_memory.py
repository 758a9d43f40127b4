"""What a training plan says is kept for the backward pass is what torch keeps.

Counted are the storages that autograd saves and that grow with the batch, each once: weights, and
copies of weights, do not grow. Left out by the plan, and added here one by one: mean and deviation
of each norm, the logarithm of each head's softmax denominator, and the numbers of the tokens.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkvary.arch.models import as_model
from qkvary.arch.networks import Activation
from qkvary.costs.training import LOGIT_BYTES, activation_bytes, activation_numbers
from qkvary.nn.language_model import LanguageModel
from tests.small_networks import small_config

D_MODEL, HEADS, HEAD_DIM, D_FF, VOCABULARY, TOKENS = 48, 4, 12, 101, 31, 7
FLOAT = 4
NORM_NUMBERS = 2
TOKEN_NUMBERS = 8 // FLOAT
LABELS = (
    *("QKV", "Q-K=V", "Q=K-V", "Q=K=V", "Q=V", "GQA-2", "MQA", "Q-GQA-2", "Q-MQA"),
    *("I-K-V", "I-K=V", "Q-I-V", "Q-K-I", "I-I-I", "Q-K[d/4]-V", "QKV@w3"),
    *("Q-K=V@decoupled-4", "Q-GQA-2@decoupled-4", "QKV@decoupled-4"),
    *("Q-K=V@latent-8", "Q-GQA-2@latent-8"),
)


def kept_bytes(run: Callable[[int], object], batch: int) -> int:
    """Bytes of the storages that autograd saves, each once."""
    found: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # The tensor is held so that no other one gets its address.
        found[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = run(batch)
    assert output is not None
    return sum(size for size, _ in found.values())


def kept_numbers(run: Callable[[int], object]) -> float:
    """Floats of a token, from what two sequences more add."""
    more = kept_bytes(run, 5) - kept_bytes(run, 3)
    assert more % (2 * TOKENS * FLOAT) == 0
    return more // (2 * TOKENS * FLOAT)


def make_network(label: str, *, num_layers: int, activation: Activation = "gelu") -> LanguageModel:
    sizes = {"d_model": D_MODEL, "num_heads": HEADS, "d_ff": D_FF, "num_layers": num_layers}
    texts = {"vocabulary": VOCABULARY, "max_tokens": TOKENS}
    fields = {**sizes, **texts, "activation": activation, "kernel": "sdpa"}
    return LanguageModel(small_config(label, **fields))


def run_network(network: LanguageModel, *, with_loss: bool = False) -> Callable[[int], Tensor]:
    def run(batch: int) -> Tensor:
        tokens = torch.arange(batch * TOKENS).view(batch, TOKENS) % VOCABULARY
        logits = network(tokens)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten()) if with_loss else logits

    return run


@pytest.mark.parametrize(
    ("label", "activation", "spared"),
    [
        *((label, "gelu", 0) for label in LABELS),
        ("GQA-2", "swiglu", 0),
        # ReLU needs its output only, which the next matrix keeps as well.
        ("GQA-2", "relu", D_FF),
    ],
)
def test_a_block_keeps_what_the_plan_says(label: str, activation: Activation, spared: int) -> None:
    one, two = (make_network(label, num_layers=n, activation=activation) for n in (1, 2))
    found = kept_numbers(run_network(two)) - kept_numbers(run_network(one))
    expected = activation_numbers(as_model(one.config).layers[0], D_MODEL)
    assert found == expected - spared + 2 * NORM_NUMBERS + HEADS


@pytest.mark.parametrize("label", ["QKV", "Q-K=V", "MQA"])
def test_a_whole_network_with_its_loss(label: str) -> None:
    layers = 3
    network = make_network(label, num_layers=layers)
    found = kept_numbers(run_network(network, with_loss=True))
    planned = activation_bytes(as_model(network.config), tokens=TOKENS, precision="fp32")
    # The plan has the gradient of the logits too, which comes into being afterwards.
    assert LOGIT_BYTES == 2 * FLOAT
    forward = planned / TOKENS / FLOAT - VOCABULARY
    norms = (2 * layers + 1) * NORM_NUMBERS
    # The tokens are the targets here, and kept once.
    assert found == forward + norms + layers * HEADS + TOKEN_NUMBERS


def test_checkpointing_keeps_the_inputs_of_blocks() -> None:
    layers = 3
    network = make_network("QKV", num_layers=layers)
    network.stack.recompute_blocks = True
    # The input of the first block is the embedding, which only the block itself keeps.
    found = kept_numbers(run_network(network))
    model = as_model(network.config)
    planned = activation_bytes(model, tokens=TOKENS, precision="fp32", checkpointing=True)
    block = activation_numbers(model.layers[0], D_MODEL)
    again = block - D_MODEL
    forward = planned / TOKENS / FLOAT - 2 * VOCABULARY - again
    assert found == forward + NORM_NUMBERS + TOKEN_NUMBERS
    whole = activation_bytes(model, tokens=TOKENS, precision="fp32")
    assert whole - planned == (layers - 1) * again * TOKENS * FLOAT
