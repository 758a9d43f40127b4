"""Words follow from the value; ``tests/contracts`` evaluates the equations."""

from qkvary.arch.descriptions import describe
from qkvary.arch.table import VARIANTS


def test_no_two_entries_of_the_table_mean_the_same() -> None:
    meanings = {describe(named.variant) for named in VARIANTS}
    assert len(meanings) == len(VARIANTS)
