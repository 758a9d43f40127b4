"""Anomaly: find the image that does not belong to the class of the other images."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.image_features import find_pictures, load_features
from qkvary.data.rows import epoch_batch, random_words
from qkvary.nn.encoder import Encoder
from qkvary.tasks.contract import (
    ALL_ROWS,
    Batch,
    ClassificationTask,
    Generate,
    Split,
    build_encoder,
    example_maps,
)
from qkvary.tasks.examples import AttentionExample, Sample
from qkvary.tasks.image_config import AnomalyTaskConfig

SAMPLES = 2

VALIDATION_SHARE = 10
"""The last 1 / ``VALIDATION_SHARE`` of the training images of each class are for validation."""


class AnomalyTask(ClassificationTask[AnomalyTaskConfig]):
    """Find the image whose class differs from the class of the other images.

    Loss: mean cross entropy of a softmax over the images of a set. Metric: accuracy. In an epoch
    each training image is the anomaly once. The other images of its set are distinct, and drawn
    uniformly from one other class. Validation and test sets are drawn once.

    Source: Kayyam et al. 2026, section A.3; Borji 2023 (Key-Value Transformer), section 3.2.
    """

    def __init__(self, config: AnomalyTaskConfig) -> None:
        super().__init__(config)
        loaded = load_features(config.features, config.features_sha256)
        # Copies, because torch has no read-only tensors.
        train, test = map(torch.tensor, loaded)
        held_out = train.shape[1] // VALIDATION_SHARE
        self.splits = {
            "train": train[:, :-held_out],
            "validation": train[:, -held_out:],
            "test": test,
        }
        smallest = min(split.shape[1] for split in self.splits.values())
        if smallest < config.set_size - 1:
            raise ValueError(
                f"expected a set_size of at most {smallest + 1}, because a class has {smallest} "
                f"images in the smallest split, got {config.set_size}"
            )

    def build(self, network: Network, seed: int) -> Encoder:
        """Build the encoder."""
        config = self.config
        exact = {"reads_vectors": True, "vocabulary": config.width, "classes": 1}
        return build_encoder(network, seed, config.name, config.set_size, **exact)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return a batch of training sets, each with one image as its anomaly.

        In an epoch, each training image is an anomaly once. The last images of the epoch are
        skipped if they do not fill a batch.
        """
        classes, images, _ = self.splits["train"].shape
        order = epoch_batch(classes * images, batch_size, step=step, seed=seed, what="anomalies")
        anomalies = torch.tensor(order)
        sets, places = self._draw_sets("train", anomalies, rows, "training sets", seed, step)
        return Batch(self._describe("train", sets), places)

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return one logit for each image of a set."""
        return model(inputs)[..., 0]

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the first validation set; all targets are the anomaly."""
        batch = next(self.evaluation_batches("validation"))
        maps = example_maps(model, batch.inputs)
        anomaly, size = int(batch.targets[0]), self.config.set_size
        tokens = tuple("anomaly" if index == anomaly else str(index + 1) for index in range(size))
        return AttentionExample(maps=maps, tokens=tokens, targets=(anomaly,) * size)

    def samples(self, model: nn.Module, _generate: Generate | None = None) -> tuple[Sample, ...]:
        """Return the first and the middle validation set; empty if their images are missing."""
        pictures = find_pictures(self.config.features)
        if pictures is None:
            return ()
        sets, places = self._fixed_sets("validation")
        shown = torch.arange(SAMPLES) * (len(sets) // SAMPLES)
        inputs = self._describe("validation", sets[shown])
        logits = self.logits(model, inputs.to(next(model.parameters()).device))
        held_out = self.splits["validation"].shape[1]
        images = torch.from_numpy(pictures["train"][:, -held_out:]).flatten(0, 1)
        return tuple(
            Sample(truth=str(place + 1), answer=str(pick + 1), pictures=images[members].numpy())
            for members, place, pick in zip(
                sets[shown], places[shown].tolist(), logits.argmax(dim=-1).tolist(), strict=True
            )
        )

    def _fixed_sets(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return the sets of a scored split, one per image. They are always the same."""
        classes, images, _ = self.splits[split].shape
        return self._draw_sets(
            split, torch.arange(classes * images), ALL_ROWS, f"{split} sets", self.config.data_seed
        )

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        """Yield the sets of a split, one per image of the split."""
        sets, targets = self._fixed_sets(split)
        size = self.config.evaluation_batch_size
        for some, places in zip(sets.split(size), targets.split(size), strict=True):
            yield Batch(self._describe(split, some), places)

    def _describe(self, split: str, sets: Tensor) -> Tensor:
        return self.splits[split].flatten(0, 1)[sets]

    def _draw_sets(
        self, split: str, anomalies: Tensor, rows: slice, *purpose: str | int
    ) -> tuple[Tensor, Tensor]:
        """Return one set of images per anomaly, and the position of each anomaly in its set."""
        (classes, images, _), size = self.splits[split].shape, self.config.set_size

        def draw(shape: tuple[int, ...], what: str) -> Tensor:
            words = random_words(torch.Size(shape).numel(), f"{purpose[0]}: {what}", *purpose[1:])
            # Shifted, because int64 is signed.
            return torch.from_numpy((words >> 1).astype(np.int64)).reshape(shape)[rows]

        count, anomalies = len(anomalies), anomalies[rows]
        others = (anomalies // images + 1 + draw((count,), "classes") % (classes - 1)) % classes
        distinct = draw((count, images), "images").argsort(dim=1)[:, : size - 1]
        usual = others[:, None] * images + distinct
        places = draw((count,), "places") % size
        if self.config.order == "last":
            places = torch.full_like(places, size - 1)
        columns = torch.arange(size)
        # The columns after the anomaly continue with the usual images, without a gap.
        taken = (columns - (columns > places[:, None]).long()).clamp_(max=size - 2)
        sets = torch.where(columns == places[:, None], anomalies[:, None], usual.gather(1, taken))
        return sets, places


load = AnomalyTask
