"""A study of one's own task on images of one's own: in which quarter is the bright square?

Run it with ``qkvary study docs/examples/own_task.py``.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

import qkvary as qk
from qkvary.arch.attention import AttentionConfig
from qkvary.arch.canonical import NOT_IDENTIFYING, stored
from qkvary.arch.networks import BlockConfig, Network, VisionTransformerConfig
from qkvary.data.rows import epoch_batch
from qkvary.nn.vision_transformer import VisionTransformer
from qkvary.tasks.config_parts import Accuracy, HashedData
from qkvary.tasks.contract import (
    ALL_ROWS,
    Batch,
    ClassificationTask,
    Split,
    build_network,
    example_maps,
)
from qkvary.tasks.examples import AttentionExample
from qkvary.training.config import OptimizerConfig, TrainingConfig

IMAGES = Path(os.environ.get("OWN_IMAGES", "own-images.npz")).absolute()
"""The images; yours are there already."""
SPLITS = {"train": slice(0, 600), "validation": slice(600, 700), "test": slice(700, 800)}


@stored("QuarterTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class QuarterTaskConfig(HashedData, Accuracy):
    """Facts of the task that need no training: its data, its length, the score of a guess."""

    name: str = "quarter"
    data: str = field(metadata=NOT_IDENTIFYING)
    """The file of the images; its place is no part of a run's identity."""
    data_sha256: str | None = None
    """The sha256 of the file; without it the study takes that of the file that is there."""

    def count_tokens(self, network: Network) -> int:
        """Return the tokens of an image, for the costs."""
        return network.tokens if isinstance(network, VisionTransformerConfig) else 1

    def count_answers(self, network: Network) -> int:
        """Return the number of answers that a guess chooses from."""
        del network
        return 4

    def find_fingerprint(self) -> str:
        """Return the sha256 of the file that is there."""
        return hashlib.sha256(Path(self.data).read_bytes()).hexdigest()


class QuarterTask(ClassificationTask[QuarterTaskConfig]):
    """Network, batches and scores; loss and accuracy are those of every classification."""

    def __init__(self, config: QuarterTaskConfig) -> None:
        super().__init__(config)
        config.require(config.find_fingerprint())
        with np.load(config.data) as arrays:
            self.images = torch.from_numpy(arrays["images"]).float().div(255)[:, None]
            self.labels = torch.from_numpy(arrays["labels"]).long()

    def build(self, network: Network, seed: int) -> VisionTransformer:
        """Build the network."""
        exact = {"image_size": 8, "channels": 1, "classes": 4}
        kind = VisionTransformerConfig
        return build_network(network, seed, kind, VisionTransformer, task="quarter", exact=exact)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the batch of a step: a pure function of its arguments."""
        order = epoch_batch(600, batch_size, step=step, seed=seed)[rows]
        chosen = torch.tensor(order)
        return Batch(self.images[chosen], self.labels[chosen])

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        """Yield the images of a split, each once."""
        yield Batch(self.images[SPLITS[split]], self.labels[SPLITS[split]])

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the maps of one image; no cell of them holds the answer."""
        maps = example_maps(model, self.images[SPLITS["validation"]])
        tokens = ("class", *(str(number) for number in range(maps.shape[-1] - 1)))
        return AttentionExample(maps=maps, tokens=tokens, targets=(None,) * len(tokens))


load = QuarterTask


def draw_images() -> None:
    """Write the images, where there are none yet."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, 800)
    images = generator.integers(0, 120, (800, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[row + 1 : row + 3, column + 1 : column + 3] = 255
    np.savez(IMAGES, images=images, labels=labels)


if not IMAGES.exists():
    draw_images()

STUDY = qk.Study(
    name="own-task",
    question="What does sharing cost on my images?",
    description="The quarter of a bright square, 40 steps.",
    settings=(
        qk.Setting(
            name="quarter",
            task=QuarterTaskConfig(data=str(IMAGES)),
            network=VisionTransformerConfig(
                attention=AttentionConfig(d_model=16, num_heads=2),
                block=BlockConfig(d_ff=32),
                num_layers=1,
                image_size=8,
                patch_size=2,
                channels=1,
                classes=4,
            ),
            training=TrainingConfig(
                steps=40,
                batch_size=32,
                optimizer=OptimizerConfig(learning_rate=3e-3),
                evaluate_every=20,
            ),
        ),
    ),
    variants=("QKV", "Q-K=V"),
    seeds=(0, 1),
)
