"""Times a training step with two and one projections over one with three, by Table 4's shapes.

The network is a tenth of paper 1's of 300M parameters: it has two of the twenty layers and a tenth
of the vocabulary, with the same width, heads and inner width, so that layers and head keep their
shares. A step has one row of 1,024 of the 2,048 tokens, in float32 on one thread, where the paper
has bfloat16 on eight devices. It computes the loss, its gradients, clipping and fused AdamW. The
goal of a ratio is the published one: seconds per token from the printed tokens per second. A quick
round has a small network; nothing is published of it. ``tiny_imagenet`` measures Tiny ImageNet,
``training_step`` the synthetic tasks.
"""

import dataclasses
from collections.abc import Callable

import torch

from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import LanguageModelConfig
from qkvary.nn.language_model import LanguageModel
from qkvary.training.config import OptimizerConfig
from qkvary.training.optimizers import make_optimizer
from qkvary.training.presets import find_preset
from timing.interleaved import Effort, print_case, read_effort, take_turns

FULL = Effort(rounds=7, turn_seconds=0.0)
QUICK = Effort(rounds=1, turn_seconds=0.0)
PART, TOKENS, QUICK_TOKENS = 10, 1_024, 8
TOKENS_PER_SECOND = {"QKV": 423e3, "Q-K=V": 427e3, "Q=K-V": 440e3, "Q=K=V": 460e3}
"""Table 4 of paper 1, with three, two and one projections."""
OPTIMIZER = OptimizerConfig(name="adamw", learning_rate=1e-4, weight_decay=0.1, gradient_clip=1.0)


def make_network(label: str, *, small: bool) -> LanguageModelConfig:
    """Return a tenth of the network of Table 4, or a small one for a quick round."""
    whole = find_preset("lm-300m").network
    part = dataclasses.replace(
        whole, num_layers=whole.num_layers // PART, vocabulary=whole.vocabulary // PART
    )
    if small:
        attention = dataclasses.replace(part.layers[0], d_model=64, num_heads=4)
        part = dataclasses.replace(part, attention=attention, num_layers=1, vocabulary=97)
    return part.with_variant(parse_variant(label))


def training_step(label: str, *, small: bool) -> Callable[[], None]:
    """Return a call that makes one step on one fixed row."""
    config = make_network(label, small=small)
    network = LanguageModel(config).train()
    optimizer = make_optimizer(network, config, OPTIMIZER)
    tokens = torch.randint(config.vocabulary, (1, 1 + (QUICK_TOKENS if small else TOKENS)))

    def call() -> None:
        network(tokens[:, :-1], targets=tokens[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def main() -> None:
    """Measure all variants, in a quick round those of a small network."""
    effort = read_effort(full=FULL, quick=QUICK)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    small = effort == QUICK
    calls = {label: training_step(label, small=small) for label in TOKENS_PER_SECOND}
    shape = f"width 64, {QUICK_TOKENS} tokens" if small else f"a tenth of lm-300m, {TOKENS} tokens"
    timing = take_turns(calls, effort)
    for label, printed in TOKENS_PER_SECOND.items():
        if label != "QKV":
            print_case(
                "training_cost",
                f"{label} over QKV: {shape}",
                timing.ratio(label, "QKV"),
                goal=1.0 if small else TOKENS_PER_SECOND["QKV"] / printed,
                better="lower",
                timing=timing,
            )


if __name__ == "__main__":
    main()
