"""A small ResNet of random weights and a few images in the place of ResNet-34 and CIFAR-100."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ResNetConfig, ResNetModel

from qkvary.checkpoints.huggingface import image_features as descriptions
from qkvary.data import image_features
from qkvary.data.feature_sets import FEATURE_SETS
from qkvary.data.image_files import Images, LoadedImages

# Studies take sizes from the real sets when they are imported.
from qkvary.papers.three_projections.studies import anomaly_paper as _  # noqa: F401

CLASSES = 3


def write_resnet(folder: Path, patch: pytest.MonkeyPatch, *, seed: int = 3) -> Path:
    """Write the weights and put the images in place; returns the folder of the weights."""
    about = dataclasses.replace(
        FEATURE_SETS["cifar100-resnet34"], classes=CLASSES, train_images=2, test_images=1, width=12
    )
    patch.setitem(image_features.FEATURE_SETS, about.name, about)
    pixels = np.random.default_rng(1).integers(0, 256, (9, 3, 32, 32)).astype(np.uint8)
    train = Images(pixels[:6], np.array([2, 0, 1, 1, 0, 2]))
    loaded = LoadedImages(train=train, test=Images(pixels[6:], np.array([1, 2, 0])))
    patch.setattr(descriptions, "load_images", {"cifar100": loaded}.__getitem__)
    patch.setattr(descriptions, "IMAGES_PER_PART", 4)
    patch.setattr(descriptions, "IMAGE_SIZE", 40)
    patch.setattr(descriptions, "DEPTHS", (1, 1))
    patch.setenv("QKVARY_CACHE", str(folder / "cache"))
    torch.manual_seed(seed)
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 12], depths=[1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(folder / "resnet")
    return folder / "resnet"
