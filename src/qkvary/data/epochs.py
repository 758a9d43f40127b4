"""The batches of an epoch: every example once, in an order of its own."""

import functools

import numpy as np
from numpy.typing import NDArray

from qkvary.data.random_numbers import permutation


def epoch_batch(
    count: int, batch_size: int, *, step: int, seed: int, what: str = "examples"
) -> NDArray[np.int64]:
    """Return the indices of the examples of one step; an epoch drops its last partial batch.

    Args:
        count: Number of examples.
        batch_size: Examples per batch.
        step: Counted from 0 over all epochs.
        seed: Seed of the order; every epoch has another one.
        what: Name of the examples; each has orders of its own.

    Raises:
        ValueError: if a batch is larger than an epoch.
    """
    per_epoch = count // batch_size
    if per_epoch < 1:
        raise ValueError(f"expected batches of at most {count:,} {what}, got {batch_size:,}")
    epoch, index = divmod(step, per_epoch)
    return _order(count, what, seed, epoch)[index * batch_size : (index + 1) * batch_size]


@functools.lru_cache(maxsize=2)
def _order(count: int, what: str, seed: int, epoch: int) -> NDArray[np.int64]:
    order = permutation(count, f"order of {what}", seed, epoch)
    order.flags.writeable = False
    return order
