"""Stores are lists of tokens, whatever was appended, dropped and reordered."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkvary.nn.cache_storage import GrowingStore, PreallocatedStore
from tests.conftest import examples


def entries(seed: int, *, tokens: int = 5, width: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, tokens, width, generator=generator)


@pytest.mark.parametrize("make", [GrowingStore, lambda: PreallocatedStore(20)])
@examples(15)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "drop", "reorder"]), st.integers(1, 3)), max_size=9
    )
)
def test_a_store_is_a_list_of_tokens(
    make: type[GrowingStore], steps: list[tuple[str, int]]
) -> None:
    store, plain = make(), torch.empty(2, 3, 0, 7)
    for number, (kind, count) in enumerate(steps):
        if kind == "append" and plain.shape[2] + count <= 20:
            new = entries(number, tokens=count)
            plain = torch.cat((plain, new), dim=2)
            assert torch.equal(store.append(new, None), plain)
        elif kind == "drop" and plain.shape[2] >= count:
            store.drop_last(count)
            plain = plain[:, :, : plain.shape[2] - count]
        elif kind == "reorder" and plain.shape[2]:
            rows = torch.tensor([count % 2, 0])
            store.reorder(rows)
            plain = plain[rows]
        assert store.num_tokens == plain.shape[2]
        stored = store.read()
        assert torch.equal(plain[:, :, :0] if stored is None else stored, plain)
