"""Draws random augmentations: a crop of each image, and the images to flip.

The draws depend only on seed and step. The code that makes batches applies them to the images.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkvary.data.rows import random_words

SCALE = (0.8, 1.0)
"""Range of the area of a crop, as a share of the image's area."""
RATIO = (0.9, 1.1)
"""Range of the aspect ratio of a crop, width divided by height."""
TRIES = 10
"""Maximum number of sizes drawn per crop. If none fits, the whole image is used."""
_NUMBERS = 2 * TRIES + 3


class Crops(NamedTuple):
    """The crop of each image of a batch, in pixels, and whether it is flipped."""

    top: NDArray[np.int64]
    left: NDArray[np.int64]
    height: NDArray[np.int64]
    width: NDArray[np.int64]
    flipped: NDArray[np.bool_]

    def take(self, rows: slice) -> "Crops":
        """Return the crops of some images of the batch."""
        return Crops._make(part[rows] for part in self)


def draw_crops(count: int, size: int, *, seed: int, step: int) -> Crops:
    """Draw the crops of a batch of square images with ``size`` rows and columns.

    The area of a crop, the logarithm of its aspect ratio, and its position are uniform. A crop that
    does not fit the image is drawn again; after ten draws, the whole image is used. Each crop is
    flipped with probability 1/2.

    Source: the public code of paper 2 (RandomResizedCrop and RandomHorizontalFlip of torchvision).
    """
    words = random_words(count * _NUMBERS, "crops", seed, step)
    # The upper 53 bits as a float below 1.
    uniform = ((words >> np.uint64(11)) * 2.0**-53).reshape(-1, _NUMBERS)
    low, high = (math.log(ratio) for ratio in RATIO)
    area = size * size * (SCALE[0] + (SCALE[1] - SCALE[0]) * uniform[:, :TRIES])
    ratio = np.exp(low + (high - low) * uniform[:, TRIES : 2 * TRIES])
    widths = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    heights = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (widths <= size) & (heights <= size)
    first, rows = fits.argmax(axis=1), np.arange(len(fits))
    any_fits = fits.any(axis=1)
    width = np.where(any_fits, widths[rows, first], size)
    height = np.where(any_fits, heights[rows, first], size)
    top = (uniform[:, -3] * (size - height + 1)).astype(np.int64)
    left = (uniform[:, -2] * (size - width + 1)).astype(np.int64)
    return Crops(top, left, height, width, uniform[:, -1] < 0.5)
