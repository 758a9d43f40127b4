"""The rows of a step do not depend on earlier steps."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvary.data.prepared import PreparedData
from qkvary.data.rows import (
    PackedRows,
    PaddedRows,
    epoch_batch,
    permutation,
    random_indices,
    random_words,
    rows_of_step,
    shuffled,
)
from tests.conftest import examples
from tests.data.small_sets import made_up, make_set, plain_tokens
from tests.storage.damage import trials

TEXTS = made_up(61, seed=3)
EXAMPLES = trials("ROWS", 30)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return make_set(tmp_path_factory.mktemp("rows"), TEXTS)


@pytest.mark.parametrize("context", [1, 5, 13, 700])
def test_packed_rows_are_windows_of_all_documents(prepared: PreparedData, context: int) -> None:
    tokens = plain_tokens(TEXTS)
    rows = PackedRows(prepared.splits["train"], context)
    assert rows.rows == (len(tokens) - 1) // context
    found = rows.read(np.arange(rows.rows))
    expected = [tokens[i * context : i * context + context + 1] for i in range(rows.rows)]
    assert found.tolist() == expected
    assert found.dtype == np.int64
    # Every token but the first is a target once, up to what is left at the end.
    assert found[:, 1:].ravel().tolist() == tokens[1 : 1 + rows.rows * context]


def test_each_input_knows_its_document(prepared: PreparedData) -> None:
    rows = PackedRows(prepared.splits["train"], 11)
    tokens, numbers = plain_tokens(TEXTS), []
    number = 0
    for token in tokens:
        numbers.append(number)
        number += token == prepared.separator
    found = rows.documents(np.arange(rows.rows))
    assert found.ravel().tolist() == numbers[: rows.rows * 11]


@pytest.mark.parametrize("context", [1, 9, 40])
def test_padded_rows_are_one_document_each(prepared: PreparedData, context: int) -> None:
    rows = PaddedRows(prepared.splits["train"], context, prepared.separator)
    assert rows.rows == len(TEXTS)
    found, lengths = rows.read(np.arange(rows.rows)), rows.lengths(np.arange(rows.rows))
    for row, length, text in zip(found, lengths, TEXTS, strict=True):
        tokens = plain_tokens([text])[: context + 1]
        assert length == len(tokens)
        padded = tokens + [prepared.separator] * (context + 1 - len(tokens))
        assert row.tolist() == padded


def shares(step: int, batch: int, rows: int, world: int) -> np.ndarray:
    """What the ranks read in a step, one after the other."""
    share = batch // world
    ranks = [slice(rank * share, (rank + 1) * share) for rank in range(world)]
    return np.concatenate(
        [rows_of_step(step, batch, rows=rows, seed=5, chosen=chosen) for chosen in ranks]
    )


@pytest.mark.parametrize("worlds", [*itertools.permutations((1, 2, 3, 4, 6), 2), (1, 2, 3, 4, 1)])
def test_any_number_of_processes_reads_the_same_batches(worlds: tuple[int, ...]) -> None:
    """A run whose number of processes changes reads what one process would have read."""
    batch, rows = 12, 31
    # Seven steps in one size, then the next.
    found = [shares(step, batch, rows, worlds[step // 7]) for step in range(7 * len(worlds))]
    alone = [rows_of_step(step, batch, rows=rows, seed=5) for step in range(7 * len(worlds))]
    assert np.concatenate(found).tolist() == np.concatenate(alone).tolist()


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 40), batch=st.integers(1, 60))
def test_every_epoch_has_every_row_once(seed: int, rows: int, batch: int) -> None:
    """Whatever the batch is, and also where it spans several epochs."""
    steps = -(-3 * rows // batch)
    read = np.concatenate(
        [rows_of_step(step, batch, rows=rows, seed=seed) for step in range(steps)]
    )
    for epoch in range(3):
        part = read[epoch * rows : (epoch + 1) * rows]
        assert sorted(part.tolist()) == list(range(rows))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(rows_of_step(step, 50, rows=50, seed=seed).tolist())
        for step in range(3)
        for seed in range(3)
    }
    assert len(orders) == 9


def test_invalid_arguments_are_rejected(prepared: PreparedData) -> None:
    split = prepared.splits["train"]
    with pytest.raises(ValueError, match="expected more than 100,000 tokens"):
        PackedRows(split, 100_000)
    with pytest.raises(ValueError, match="expected rows of 2 tokens within the"):
        split.read(split.tokens - 1, 2)
    with pytest.raises(ValueError, match="expected rows of 3 tokens within the"):
        split.gather(np.array([0, split.tokens - 2]), 3)


@examples(20)
@given(data=st.data())
def test_tokens_are_read_across_shards(prepared: PreparedData, data: st.DataObject) -> None:
    split, tokens = prepared.splits["train"], plain_tokens(TEXTS)
    assert len(prepared.about["splits"]["train"]["shards"]) > 5
    start = data.draw(st.integers(0, len(tokens)))
    count = data.draw(st.integers(0, len(tokens) - start))
    assert split.read(start, count).tolist() == tokens[start : start + count]


PINNED = [0x3F05E10925CFFA77, 0xB48249A87632DC43, 0xCBFEE024AEF33221]


def test_the_first_words_never_change() -> None:
    """A run key promises these numbers; another numpy must not change them."""
    assert random_words(3, "pinned", 1, 2).tolist() == PINNED


def test_indices_are_uniform_below_their_limit() -> None:
    counts = np.bincount(random_indices(70_000, 7, "uniform"), minlength=7)
    assert counts.shape == (7,)
    assert abs(counts - 10_000).max() < 5 * np.sqrt(10_000)


def test_permutation_holds_every_index_once() -> None:
    order = permutation(1_013, "order", 0)
    assert sorted(order.tolist()) == list(range(1_013))
    assert (order != permutation(1_013, "order", 1)).mean() > 0.9


def test_an_epoch_has_no_example_twice_and_each_its_own_order() -> None:
    epochs = [
        [i for step in range(4) for i in epoch_batch(23, 5, step=4 * epoch + step, seed=3).tolist()]
        for epoch in range(2)
    ]
    for order in epochs:
        assert len(order) == len(set(order)) == 20
        assert set(order) < set(range(23))
    assert epochs[0] != epochs[1]
    assert epoch_batch(23, 5, step=0, seed=4).tolist() != epochs[0][:5]
    assert epoch_batch(23, 5, step=0, seed=3).tolist() == epochs[0][:5]


def order(count: int, *purpose: str | int) -> np.ndarray:
    return shuffled(np.arange(count), count, *purpose)


@given(count=st.integers(2, 2**62), seed=st.integers(0, 9), data=st.data())
def test_indices_are_permuted_independently(count: int, seed: int, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=9, unique=True))
    together = shuffled(np.array(chosen), count, "rows", seed)
    alone = [int(shuffled(np.array([index]), count, "rows", seed)[0]) for index in chosen]
    assert together.tolist() == alone
    assert len(set(alone)) == len(alone)
    assert all(0 <= place < count for place in alone)


def test_every_order_of_few_is_about_equally_likely() -> None:
    seeds = 4_800
    found = np.stack([order(4, "fair", seed) for seed in range(seeds)])
    numbers = found @ np.array([64, 16, 4, 1])
    counts = np.unique(numbers, return_counts=True)[1]
    assert len(counts) == 24
    # Chi-squared with 23 degrees of freedom: 49.7 is exceeded once in a thousand.
    assert ((counts - seeds / 24) ** 2 / (seeds / 24)).sum() < 49.7


def test_the_order_is_pinned() -> None:
    """What a run has read must not depend on the version: another order is another result."""
    found = order(1000, "rows", 7, 3).astype("<i8").tobytes()
    assert hashlib.sha256(found).hexdigest()[:16] == "ce072e2aa2b2a379"


@pytest.mark.parametrize(("indices", "count"), [([3], 3), ([-1], 3), ([0], 0), ([0], 2**62 + 1)])
def test_invalid_indices_are_rejected(indices: list[int], count: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        shuffled(np.array(indices), count, "rows")
