"""Every epoch has every example once, except those of a last partial batch."""

import pytest

from qkvary.data.epochs import epoch_batch


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


def test_a_batch_beyond_an_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="batches of at most 4 examples, got 5"):
        epoch_batch(4, 5, step=0, seed=0)
