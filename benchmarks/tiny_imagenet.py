"""Minutes of an epoch of Tiny ImageNet with three, two and one projections, against paper 1's.

A training step of ViT-B/16 at 224 pixels on few images, forward and backward, and the optimizer's
step by itself; both are scaled to an epoch in batches of 128. The paper prints 40, 35 and 32
minutes on a machine that it does not name, so that the ratios are compared. Loading is left out.
"""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F

from qkvary.arch.labels import parse_variant
from qkvary.nn.vision_transformer import VisionTransformer
from qkvary.papers.key_value.vision import vit_base
from timing.interleaved import Effort, print_case, read_effort, take_turns

FULL = Effort(rounds=5, turn_seconds=0.0)
QUICK = Effort(rounds=1, turn_seconds=0.0)
IMAGES, BATCH, TIMED = 100_000, 128, 2
PAPER_MINUTES = {"QKV": 40.0, "Q-K=V": 35.0, "Q=K-V": 35.0, "Q=K=V": 32.0}
"""Three, two and one projections."""


def make_calls(label: str, images: int, *, small: bool) -> dict[str, Callable[[], object]]:
    """Forward and backward, and a step of the optimizer."""
    config = vit_base("tiny-imagenet", image_size=224)
    if small:
        config = dataclasses.replace(config, num_layers=1, image_size=32)
    network = VisionTransformer(config.with_variant(parse_variant(label))).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(images, config.channels, config.image_size, config.image_size)
    labels = torch.randint(0, config.classes, (images,))

    def passes() -> None:
        F.cross_entropy(network(inputs), labels).backward()

    passes()
    return {label: passes, f"optimizer, {label}": optimizer.step}


def main() -> None:
    """Measure all variants; in a quick round one layer and one small image."""
    effort = read_effort(full=FULL, quick=QUICK)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = 1 if effort == QUICK else TIMED
    calls = {
        name: call
        for label in PAPER_MINUTES
        for name, call in make_calls(label, images, small=effort == QUICK).items()
    }
    timing = take_turns(calls, effort)

    def minutes(label: str) -> float:
        steps = timing.medians[f"optimizer, {label}"] * (IMAGES // BATCH)
        return (timing.medians[label] * IMAGES / images + steps) / 60

    for label, printed in PAPER_MINUTES.items():
        if label != "QKV":
            print_case(
                "tiny_imagenet",
                f"epoch of ViT-B/16, {label} over QKV, forward and backward",
                timing.ratio(label, "QKV"),
                goal=printed / PAPER_MINUTES["QKV"],
                better="lower",
                timing=timing,
                minutes_per_epoch=round(minutes(label)),
                minutes_of_qkv=round(minutes("QKV")),
                minutes_in_the_paper=printed,
            )


if __name__ == "__main__":
    main()
