"""A training step of the vision transformer against torch's layers, and its batches against it.

Both networks are our vision transformer; in the other one its blocks are replaced by those of
``torch.nn.TransformerEncoder``. The share of loading is measured where MNIST and the 15,000 images
of CIFAR-10 are on the machine (``QKVARY_DATA``).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.networks import VisionTransformerConfig
from qkvary.data.image_sets import IMAGE_SETS, ImageSetName
from qkvary.nn.layout import Layout
from qkvary.nn.vision_transformer import VisionTransformer
from qkvary.papers.key_value.vision import vision_network, vision_task
from qkvary.storage.environment import data_root
from qkvary.tasks.images import ImageTask
from timing.interleaved import Effort, print_case, read_effort, take_turns

FULL = Effort(rounds=25, turn_seconds=0.1)
QUICK = Effort(rounds=2, turn_seconds=0.0)
HEADS, LAYERS = 4, 2
CASES: tuple[tuple[ImageSetName, int, int, int], ...] = (
    ("mnist", 7, 64, 200),
    ("mnist", 7, 256, 200),
    ("cifar10-15k", 8, 64, 128),
    ("cifar10-15k", 8, 256, 128),
)
"""Data set, patch size, width and batch size: patches and batches are the published ones."""
NOT_SLOWER, LOADING_SHARE = 1.0, 0.05


class ForeignStack(nn.Module):
    """torch's layers where our network has its blocks."""

    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            config.d_model,
            HEADS,
            config.block.d_ff,
            dropout=0.0,
            activation="gelu",
            norm_first=True,
            batch_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, x: Tensor, *, layout: Layout) -> Tensor:
        """Apply them; there is no mask."""
        del layout
        return self.layers(x)


def make_networks(config: VisionTransformerConfig) -> dict[str, VisionTransformer]:
    """Our network, and the same around torch's layers."""
    other = VisionTransformer(config)
    other.stack = ForeignStack(config)
    return {"ours": VisionTransformer(config), "torch.nn": other}


def training_step(network: VisionTransformer, batch: int) -> Callable[[], None]:
    """A call that makes one step on one fixed batch."""
    config = network.config
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    images = torch.randn(batch, config.channels, config.image_size, config.image_size)
    labels = torch.randint(0, config.classes, (batch,))
    network.train()

    def call() -> None:
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def loading(name: ImageSetName, batch: int) -> Callable[[], None] | None:
    """A call that makes the next batch of real images, with its augmentation."""
    root = data_root()
    if root is None or not (root / IMAGE_SETS[name].folder).is_dir():
        # A benchmark downloads nothing.
        return None
    task = ImageTask(vision_task(name, "clean"))
    step = 0

    def call() -> None:
        nonlocal step
        task.batch(step, batch, 0)
        step += 1

    return call


def main() -> None:
    """Measure all cases; in a quick round the first."""
    effort = read_effort(full=FULL, quick=QUICK)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, patch, width, batch in CASES[:1] if effort == QUICK else CASES:
        config = vision_network(
            name, patch_size=patch, d_model=width, num_layers=LAYERS, num_heads=HEADS
        )
        networks = make_networks(config)
        calls = {label: training_step(network, batch) for label, network in networks.items()}
        load = loading(name, batch)
        timing = take_turns(calls if load is None else {**calls, "loading": load}, effort)
        what = f"{name}, {config.tokens} tokens, width {width}, batch {batch}"
        cases = [("ours", "torch.nn", NOT_SLOWER)]
        cases += [("loading", "ours", LOADING_SHARE)] if load else []
        for label, other, goal in cases:
            ratio = timing.ratio(label, other)
            print_case(
                "vision_step",
                f"{label} over {other}: {what}",
                ratio,
                goal=goal,
                better="lower",
                timing=timing,
            )


if __name__ == "__main__":
    main()
