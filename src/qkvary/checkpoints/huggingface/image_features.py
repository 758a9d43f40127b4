"""Computes ResNet-34 features of CIFAR-100 for the set-anomaly experiments of papers 1 and 2.

The task of these experiments is to find the odd image in a set of images.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save
from torch import Tensor
from transformers import ResNetModel

from qkvary.checkpoints.models import parse_weights
from qkvary.data.image_features import ImageFeatures, group_by_class
from qkvary.data.image_files import Images
from qkvary.data.images import load_images
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.text.progress_line import Progress, ignore

IMAGE_SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the training images by channel, for pixels in [0, 1]."""
DEPTHS = (3, 4, 6, 3)
WEIGHTS = "model.safetensors"
IMAGES_PER_PART = 500


def describe_cifar100(
    weights: Path, parts: Path, *, on_progress: Progress = ignore
) -> ImageFeatures:
    """Return the features of all images; files that exist in ``parts`` are loaded."""
    network = _load_network(weights)
    digest = hashlib.sha256((weights / WEIGHTS).read_bytes()).hexdigest()
    parts = parts / digest[:16]
    loaded = load_images("cifar100")
    make_directory(parts)
    total = len(loaded.train.labels) + len(loaded.test.labels)
    done = 0

    def describe(split: str, images: Images) -> NDArray[np.float32]:
        nonlocal done
        found: list[NDArray[np.float32]] = []
        for start in range(0, len(images.labels), IMAGES_PER_PART):
            path = parts / f"{split}-{start:05d}.safetensors"
            if not path.is_file():
                some = images.pixels[start : start + IMAGES_PER_PART]
                atomic_write_file(path, save({"features": describe_pixels(network, some)}))
            found.append(parse_weights(path.read_bytes(), str(path))["features"].numpy())
            done += len(found[-1])
            on_progress(done, total)
        return np.concatenate(found)

    return ImageFeatures(
        group_by_class(describe("train", loaded.train), loaded.train.labels),
        group_by_class(describe("test", loaded.test), loaded.test.labels),
    )


def _load_network(weights: Path) -> ResNetModel:
    try:
        loaded: Any = ResNetModel.from_pretrained(
            weights, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except SafetensorError as error:
        raise DamagedError(
            f"expected a complete file of weights in {weights / WEIGHTS}: {error}"
        ) from None
    except (OSError, ValueError, TypeError, RuntimeError, StrictDataclassError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"expected a folder of ResNet-34 with config.json and model.safetensors, got "
            f"{weights}: {reason}"
        ) from error
    network, found = cast("tuple[ResNetModel, dict[str, set[str]]]", loaded)
    # Missing weights would be drawn at random.
    if found["missing_keys"]:
        raise DamagedError(
            f"expected all weight tensors of ResNet-34 in {weights / WEIGHTS}, got a file that "
            f"lacks {len(found['missing_keys'])} of them"
        )
    depths = tuple(network.config.depths or ())
    if (network.config.layer_type, depths) != ("basic", DEPTHS):
        raise UsageError(
            f"expected a ResNet-34, which has basic layers and depths {DEPTHS}, got {weights} "
            f"with {network.config.layer_type} layers and depths {depths}"
        )
    return network.eval()


def describe_pixels(network: ResNetModel, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return each image's last hidden state, averaged over the positions of the feature map."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    found: list[Tensor] = []
    with torch.inference_mode():
        for some in torch.tensor(pixels).split(50):
            images = F.interpolate(some / 255, size=IMAGE_SIZE, mode="bilinear", antialias=True)
            found.append(network((images - mean) / std).pooler_output.flatten(1))
    return torch.cat(found).numpy()
