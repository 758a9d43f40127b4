"""Makes the image features that come with the package for the task ``anomaly``.

    QKVARY_DATA=... python studies/ours/anomaly-features/make.py

A small convolutional network learns the 50 classes of CIFAR-100 with even numbers. Its last hidden
state describes the images of the 50 odd classes, which it never saw.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from qkvary.data.augmentation import draw_crops
from qkvary.data.image_features import PACKAGED, ImageFeatures, encode_features, group_by_class
from qkvary.data.image_files import Images
from qkvary.data.images import load_images
from qkvary.data.rows import permutation
from qkvary.storage.durable import atomic_write_file
from qkvary.tasks.images import crop_and_flip

DATA = "cifar100-10k"
WIDTHS = (16, 32, 64)
"""Channels of the three stages, of which the later ones halve the image."""
EPOCHS, BATCH, RATE, SEED = 50, 100, 4e-3, 0
LABEL_SMOOTHING = 0.1


class Stage(nn.Module):
    """Two residual 3 x 3 convolutions after one that sets width and resolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Create the layers."""
        super().__init__()
        self.first = _convolution(inputs, outputs, stride)
        self.inner = nn.Sequential(
            _convolution(outputs, outputs), nn.ReLU(), _convolution(outputs, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the feature maps after the stage."""
        x = F.relu(self.first(x))
        return F.relu(x + self.inner(x))


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class FeatureNetwork(nn.Module):
    """Three stages, the mean over pixels, and one matrix to the classes."""

    def __init__(self, classes: int) -> None:
        """Create the layers."""
        super().__init__()
        inputs = (3, *WIDTHS[:-1])
        stages = [
            Stage(one, other, stride)
            for one, other, stride in zip(inputs, WIDTHS, (1, 2, 2), strict=True)
        ]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(WIDTHS[-1], classes)

    def features(self, images: Tensor) -> Tensor:
        """Return the mean of the last feature maps."""
        return self.stages(images).mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each image."""
        return self.head(self.features(images))


def main() -> None:
    """Train the network, and write the features of the other classes."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    loaded = load_images(DATA)
    seen, unseen = (_select(loaded.train, odd) for odd in (False, True))
    network = FeatureNetwork(classes=50)
    _train(network, seen)
    right = _accuracy(network, _select(loaded.test, odd=False))
    print(
        f"accuracy on {len(loaded.test.labels) // 2:,} test images of the 50 classes: {right:.3f}"
    )
    parts = {"train": unseen, "test": _select(loaded.test, odd=True)}
    found = {name: _describe(network, images) for name, images in parts.items()}
    mean, std = found["train"].mean(axis=0), found["train"].std(axis=0)
    made = ImageFeatures(
        *(group_by_class((found[name] - mean) / std, parts[name].labels) for name in parts)
    )
    data = encode_features(made)
    atomic_write_file(PACKAGED, data)
    print(f"{PACKAGED}: sha256 {hashlib.sha256(data).hexdigest()}")


def _select(images: Images, odd: bool) -> Images:
    chosen = images.labels % 2 == int(odd)
    return Images(images.pixels[chosen], images.labels[chosen] // 2)


def _normalise(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.tensor(pixels).float().sub_(120.0).mul_(1 / 64)


def _train(network: FeatureNetwork, images: Images) -> None:
    pixels, labels = _normalise(images.pixels), torch.tensor(images.labels)
    steps = EPOCHS * (len(labels) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    network.train()
    for step in range(steps):
        epoch, index = divmod(step, len(labels) // BATCH)
        order = permutation(len(labels), "order of images", SEED, epoch)
        rows = torch.from_numpy(order[index * BATCH : (index + 1) * BATCH])
        crops = draw_crops(BATCH, pixels.shape[-1], seed=SEED, step=step)
        logits = network(crop_and_flip(pixels[rows], crops, size=pixels.shape[-1]))
        loss = F.cross_entropy(logits, labels[rows], label_smoothing=LABEL_SMOOTHING)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if index == 0:
            print(f"epoch {epoch + 1} of {EPOCHS}: loss {loss.item():.3f}", flush=True)


def _describe(network: FeatureNetwork, images: Images) -> NDArray[np.float32]:
    network.eval()
    with torch.inference_mode():
        return network.features(_normalise(images.pixels)).numpy()


def _accuracy(network: FeatureNetwork, images: Images) -> float:
    network.eval()
    with torch.inference_mode():
        found = network(_normalise(images.pixels)).argmax(dim=1).numpy()
    return float((found == images.labels).mean())


if __name__ == "__main__":
    main()
