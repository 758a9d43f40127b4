"""Documents that stand in two splits, or twice in one: counted by their digests."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from qkvary.data.portions import Workplace
from qkvary.data.prepared import SPLITS, shard_files
from qkvary.storage.jsonvalues import JsonValue

Digests = NDArray[np.uint64]


def count_overlap(workplace: Workplace) -> dict[str, JsonValue]:
    """How many documents of a split are in another one too, and how many repeat within theirs.

    Equal means equal but for spaces at the ends, by the first 64 bits of the sha256.
    """
    digests = {name: _digests(workplace, name) for name in SPLITS if workplace.count(name, 1)}
    shared: dict[str, JsonValue] = {}
    for first, second in combinations(digests, 2):
        found = np.isin(digests[second], digests[first])
        shared[f"{second} in {first}"] = int(found.sum())
    repeated: dict[str, JsonValue] = {
        name: int(found.size - np.unique(found).size) for name, found in digests.items()
    }
    return {"shared_documents": shared, "repeated_documents": repeated}


def _digests(workplace: Workplace, split: str) -> Digests:
    shards = sum(split in portion.shards for portion in workplace.portions)
    files = (workplace.folder / shard_files(split, number)[2] for number in range(shards))
    return np.concatenate([np.fromfile(path, dtype="<u8") for path in files]).astype(np.uint64)
