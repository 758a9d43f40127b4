"""Tensors that contradict the configuration or each other: used or reported, never dropped."""

import warnings
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from qkvary.storage.errors import DamagedError

T = TypeVar("T")
"""A tensor, or a tensor with its type in the file."""


def is_head_tied(
    embedding: Tensor | None, head: Tensor | None, where: str, *, declared: bool
) -> bool:
    """Return whether the head is the embedding. A stored head that differs is used, with a warning.

    The rule is that of transformers 5.23.

    Args:
        embedding: The stored embedding.
        head: The stored head, if there is one.
        where: The name of the checkpoint in the warning.
        declared: What the configuration says.
    """
    if not declared or embedding is None or head is None or _is_equal(embedding, head):
        return declared
    warnings.warn(
        f"{where} has tie_word_embeddings true and an lm_head.weight that differs from the "
        "embedding: the stored head is used, as in transformers",
        stacklevel=2,
    )
    return False


def _is_equal(first: Tensor, second: Tensor) -> bool:
    same = first.shape == second.shape and first.dtype == second.dtype
    return same and torch.equal(first, second)


def collect(tensors: Iterable[tuple[str, T]], where: str) -> dict[str, T]:
    """Return tensors by name.

    Raises:
        DamagedError: if a name occurs twice, so that one tensor would replace the other.
    """
    found = dict[str, T]()
    for name, tensor in tensors:
        if name in found:
            raise DamagedError(f"{where} has two tensors for {name[:80]}")
        found[name] = tensor
    return found


def warn_of_ignored(names: Sequence[str], where: str) -> None:
    """Warn about stored tensors that are not used and that contradict the configuration."""
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warnings.warn(
            f"{where} has {names[0][:80]}{more}, which its configuration contradicts: the "
            "configuration is used, as in transformers",
            stacklevel=2,
        )
