"""Stores of codes: independence of what comes later, bytes, crops, windows, reordered rows."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkvary.arch.caches import CacheOptions, CacheScales, CacheStorage
from qkvary.nn.cache_quantized import QuantizedStore
from tests.conftest import examples

STORAGES: tuple[CacheStorage, ...] = ("int8", "int4", "int3")
SCALES: tuple[CacheScales, ...] = ("token", "channel")
SHAPE = (2, 3)
WIDTH = 7
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=7)
OPTIONS = st.builds(
    CacheOptions,
    storage=st.sampled_from(STORAGES),
    scales=st.sampled_from(SCALES),
    rotate=st.booleans(),
    group=st.integers(1, 9),
    block=st.integers(1, 5),
    residual=st.integers(0, 6),
)


def entries(seed: int, *, tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*SHAPE, tokens, WIDTH, generator=generator)


def feed(
    store: QuantizedStore, x: Tensor, sizes: list[int], max_kept: int | None = None
) -> list[Tensor]:
    return [store.append(part, max_kept) for part in x.split(sizes, dim=2)]


def state(store: QuantizedStore) -> list[Any]:
    """Everything that a store holds, in order."""
    return [store._codes.read(), store._scales.read(), store._newest, store._runs, store._seen]


def count_kept_bytes(store: QuantizedStore) -> int:
    """The bytes of everything that a store keeps, without unused memory."""
    parts = (store._codes.read(), store._scales.read(), store._newest)
    return sum(part.nbytes for part in parts if part is not None)


def same(one: QuantizedStore, other: QuantizedStore) -> bool:
    found = zip(state(one), state(other), strict=True)
    return all(
        torch.equal(a, b)
        if isinstance(a, Tensor) and isinstance(b, Tensor)
        # Nothing was allocated, or nothing of it is used.
        else (a is None or not a.numel()) and (b is None or not b.numel())
        if isinstance(a, Tensor) or isinstance(b, Tensor)
        else a == b
        for a, b in found
    )


@examples(40)
@given(options=OPTIONS, sizes=CUTS, known=st.booleans(), window=st.none() | st.integers(11, 20))
def test_codes_do_not_depend_on_how_tokens_arrive(
    options: CacheOptions, sizes: list[int], known: bool, window: int | None
) -> None:
    tokens = sum(sizes)
    x, most = entries(3, tokens=tokens), None if window is None else window - 1
    given = {"max_tokens": tokens if known else None, "max_kept": most}
    whole, parts, single = (QuantizedStore(options, **given) for _ in range(3))
    feed(whole, x, [tokens], most)
    feed(parts, x, sizes, most)
    read = feed(single, x, [1] * tokens, most)
    assert same(whole, parts)
    assert same(whole, single)
    kept = tokens if most is None else min(tokens, most)
    assert (whole.num_tokens, single.num_tokens) == (kept, kept)
    seen = range(1, tokens + 1)
    assert [part.shape[2] for part in read] == [
        count if most is None else min(count, most + 1) for count in seen
    ]
    assert single.nbytes >= count_kept_bytes(single)


@examples(40)
@given(options=OPTIONS, first=st.integers(1, 17), left=st.integers(0, 17), sizes=CUTS)
def test_a_crop_keeps_codes_and_scales_of_what_is_left(
    options: CacheOptions, first: int, left: int, sizes: list[int]
) -> None:
    """And what follows is quantised as if it had come one by one."""
    left = min(first, left)
    x, later = entries(11, tokens=first), entries(13, tokens=sum(sizes))
    stores = [QuantizedStore(options) for _ in range(2)]
    for store in stores:
        store.append(x, None)
    codes = stores[0]._codes.read()
    before = None if codes is None else codes.clone()
    for store in stores:
        store.drop_last(first - left)
        assert store.num_tokens == left
    kept = stores[0]._codes.read()
    if before is not None and kept is not None:
        assert torch.equal(kept, before[:, :, : kept.shape[2]])
    feed(stores[0], later, [sum(sizes)])
    feed(stores[1], later, [1] * sum(sizes))
    assert same(*stores)
    assert stores[0].num_tokens == left + sum(sizes)
    assert sum(stores[0]._runs) == (
        stores[0]._codes.num_tokens if options.scales == "channel" else 0
    )


def test_a_block_that_was_cut_is_finished_with_a_scale_of_its_own() -> None:
    store = QuantizedStore(CacheOptions(storage="int8", scales="channel", block=4))
    x = entries(15, tokens=8)
    store.append(x, None)
    store.drop_last(3)
    assert store._runs == [4, 1]
    store.append(1e3 * x[:, :, 5:], None)
    assert (store._runs, store._codes.num_tokens, store.num_tokens) == ([4, 1, 3], 8, 8)
    read = store.append(x[:, :, :0], None)
    # The scale of the token that was left is still that of the block it came with.
    step = x[:, :, 4:].abs().amax(dim=2) / 127
    assert bool(((read[:, :, 4] - x[:, :, 4]).abs() <= step / 2 * 1.001).all())


@given(options=OPTIONS, sizes=CUTS)
def test_reordered_rows_are_those_they_were(options: CacheOptions, sizes: list[int]) -> None:
    x, rows = entries(17, tokens=sum(sizes)), torch.tensor([1, 0, 1])
    store, straight = QuantizedStore(options), QuantizedStore(options)
    feed(store, x, sizes)
    store.reorder(rows)
    feed(straight, x[rows], sizes)
    following = entries(19, tokens=9)[rows]
    assert torch.equal(store.append(following, None), straight.append(following, None))
    assert same(store, straight)
