"""Context manager that sets the number of torch threads."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def use_threads(number: int) -> Generator[None]:
    """Set the number of torch threads in a ``with`` block, and restore the old number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
