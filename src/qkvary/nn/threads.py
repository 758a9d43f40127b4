"""The number of torch threads inside a block of code."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def use_threads(number: int) -> Generator[None]:
    """Let torch use ``number`` threads inside the block; restore the old number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
