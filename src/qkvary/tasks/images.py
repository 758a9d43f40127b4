"""Images: predict the class of an image."""

import functools
import math
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.networks import Network, VisionTransformerConfig
from qkvary.data.augmentation import Crops, draw_crops
from qkvary.data.image_files import Images
from qkvary.data.images import load_images
from qkvary.data.own_images import load_own_images
from qkvary.data.rows import epoch_batch, permutation
from qkvary.nn.vision_transformer import VisionTransformer
from qkvary.tasks.contract import (
    ALL_ROWS,
    Batch,
    ClassificationTask,
    Generate,
    Split,
    build_network,
    example_maps,
)
from qkvary.tasks.examples import AttentionExample, Sample
from qkvary.tasks.image_config import ImageTaskConfig

SAMPLES = 10


class ImageTask(ClassificationTask[ImageTaskConfig]):
    """Predict the class of an image.

    Loss: mean cross entropy. Metric: accuracy. Images stay bytes until they are batched. Then each
    channel is normalised as in the published code.

    Source: Borji 2023 (Key-Value Transformer), section 3.2, and its code. The published splits,
    order and augmentation were drawn without a seed; here the config and the seed determine them.
    """

    def __init__(self, config: ImageTaskConfig) -> None:
        super().__init__(config)
        loaded = load_images(config.name) if config.own is None else load_own_images(config.own)
        about = config.images
        # Pixels are bytes, so mean and scale are multiplied by 255.
        self._mean = torch.tensor(about.pixels.mean).mul_(255)[:, None, None]
        self._scale = torch.tensor(about.pixels.std).mul_(255).reciprocal_()[:, None, None]
        self._train, self._test = _as_tensors(loaded.train), _as_tensors(loaded.test)
        self.train_rows, self.validation_rows = split_rows(config)

    def build(self, network: Network, seed: int) -> VisionTransformer:
        """Build the vision transformer."""
        about, size, name = self.config.images, self.config.image_size, self.config.name
        kind = VisionTransformerConfig
        exact = {"image_size": size, "channels": about.pixels.channels, "classes": about.classes}
        return build_network(network, seed, kind, VisionTransformer, task=name, exact=exact)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the next images of the shuffled epoch; a last partial batch is dropped."""
        count = len(self.train_rows)
        numbers = epoch_batch(count, batch_size, step=step, seed=seed, what="images")[rows]
        order = self.train_rows.index_select(0, torch.tensor(numbers))
        pixels, labels = self._train
        images = _take(pixels, order)
        if self.config.augment:
            crops = draw_crops(batch_size, images.shape[-1], seed=seed, step=step)
            images = crop_and_flip(images, crops.take(rows), size=self.config.image_size)
        return Batch(self._read(images), labels.index_select(0, order))

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        """Yield all images of a split."""
        (pixels, labels), rows = self._split(split)
        for some in rows.split(self.config.evaluation_batch_size):
            yield Batch(self._read(_take(pixels, some)), labels[some])

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the first validation image, patches named by position."""
        (pixels, _), rows = self._split("validation")
        maps = example_maps(model, self._read(pixels[rows[:1]]))
        # The class token comes before the patches, which form a square.
        side = math.isqrt(maps.shape[-1] - 1)
        cells = tuple(f"{row + 1},{column + 1}" for row in range(side) for column in range(side))
        tokens = ("class", *cells)
        return AttentionExample(maps=maps, tokens=tokens, targets=(None,) * len(tokens))

    def samples(self, model: nn.Module, _generate: Generate | None = None) -> tuple[Sample, ...]:
        """Return the first images of the validation split, with their classes and predictions."""
        (pixels, labels), rows = self._split("validation")
        shown, own = rows[:SAMPLES], self.config.own
        names = self.config.images.labels if own is None else own.classes
        pictures = _take(pixels, shown)
        logits = self.logits(model, self._read(pictures).to(next(model.parameters()).device))
        return tuple(
            Sample(
                truth=names[truth] if names else str(truth),
                answer=names[answer] if names else str(answer),
                pictures=picture[None].numpy(),
            )
            for picture, truth, answer in zip(
                pictures, labels[shown].tolist(), logits.argmax(dim=-1).tolist(), strict=True
            )
        )

    def _split(self, split: Split) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return the images and labels of a file, and the row numbers of a split."""
        if split == "validation" and self.validation_rows is not None:
            return self._train, self.validation_rows
        return self._test, torch.arange(len(self._test[1]))

    def _read(self, pixels: Tensor) -> Tensor:
        images, size = pixels.float().sub_(self._mean).mul_(self._scale), self.config.image_size
        if images.shape[-1] == size:
            return images
        return F.interpolate(images, (size, size), mode="bilinear", antialias=True)


def split_rows(config: ImageTaskConfig) -> tuple[Tensor, Tensor | None]:
    """Return the row numbers of the training split and of the validation split.

    The latter is None if the test images are used for validation.
    """
    total, held_out = config.images.train_images, config.validation_images
    if config.splits == "as-published" and config.images.validates_on_test:
        return torch.arange(total), None
    train, validation = (
        torch.from_numpy(permutation(total, "split of images", number)) for number in (0, 1)
    )
    if config.splits == "clean":
        validation = train
    return train[:-held_out].sort().values, validation[-held_out:].sort().values


def _as_tensors(images: Images) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        # torch has no read-only tensors, and a copy may take gigabytes; nothing writes to these.
        warnings.simplefilter("ignore")
        return torch.from_numpy(images.pixels), torch.from_numpy(images.labels)


def _take(images: Tensor, rows: Tensor) -> Tensor:
    # index_select is several times as fast as indexing.
    return images.flatten(1).index_select(0, rows).view(-1, *images.shape[1:])


def crop_and_flip(images: Tensor, crops: Crops, *, size: int) -> Tensor:
    """Crop, resize and flip square images, ``[batch, channels, rows, columns]``."""
    batch, channels, pixels, _ = images.shape
    cut_across, cut_down = pixels - crops.width, pixels - crops.height
    cuts = int(max(cut_across.max(initial=0), cut_down.max(initial=0))) + 1
    table = _resizing(pixels, size, cuts)
    across = torch.from_numpy((crops.flipped * cuts + cut_across) * cuts + crops.left)
    down = torch.from_numpy(cut_down * cuts + crops.top)
    # Columns are resized by a matmul with bilinear weights, rows by weighted sums of two rows.
    columns = torch.bmm(images.float().flatten(1, 2), table.weights.index_select(0, across))
    first = torch.arange(0, batch * channels * pixels, pixels).view(batch, channels, 1, 1)
    pairs = first + table.pairs.index_select(0, down)[:, None]
    shares = table.shares.index_select(0, down)[:, None].expand_as(pairs)
    rows = F.embedding_bag(
        pairs.view(-1, 2),
        columns.view(-1, size),
        mode="sum",
        per_sample_weights=shares.reshape(-1, 2),
    )
    return rows.view(batch, channels, size, size)


class _Resizing(NamedTuple):
    """Weights of bilinear resizing along one side, for every possible crop.

    Crops are ordered by the number of pixels that they cut off, then by their first pixel.
    """

    pairs: Tensor
    """The two pixels between which a resized pixel lies, ``[cuts * starts, size, 2]``."""
    shares: Tensor
    """The weights of the two pixels, ``[cuts * starts, size, 2]``."""
    weights: Tensor
    """The weights of all pixels, ``[2 * cuts * starts, pixels, size]``. The second half has the
    flipped crops."""


@functools.lru_cache(maxsize=16)
def _resizing(pixels: int, size: int, cuts: int) -> _Resizing:
    """Return the weights of all crops that cut off fewer than ``cuts`` of ``pixels`` pixels."""
    lengths = pixels - torch.arange(cuts)[:, None, None].float()
    inside = (torch.arange(size).float() + 0.5) * (lengths / size) - 0.5
    inside = inside.clamp(min=0).minimum(lengths - 1)
    positions = (torch.arange(cuts)[:, None] + inside).flatten(0, 1)
    first = positions.long().clamp(max=pixels - 2)
    share = positions - first
    distances = (positions[:, None] - torch.arange(pixels)[:, None]).abs()
    weights = (1 - distances).clamp(min=0)
    return _Resizing(
        pairs=torch.stack((first, first + 1), dim=-1),
        shares=torch.stack((1 - share, share), dim=-1),
        weights=torch.cat((weights, weights.flip(-1))),
    )


load = ImageTask
