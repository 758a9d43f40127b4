"""Documents that occur in two splits, or twice in one, counted by their digests."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from qkvary.data.prepared import SPLITS, shard_files
from qkvary.data.shard_groups import PreparationDirectory
from qkvary.storage.jsonvalues import JsonValue

Digests = NDArray[np.uint64]


def count_overlap(directory: PreparationDirectory) -> dict[str, JsonValue]:
    """Count documents of a split that are in another split too, and repeated documents.

    Documents are equal if their stripped texts agree in the first 64 bits of the sha256.
    """
    digests = {name: _digests(directory, name) for name in SPLITS if directory.count(name, 1)}
    shared: dict[str, JsonValue] = {}
    for first, second in combinations(digests, 2):
        found = np.isin(digests[second], digests[first])
        shared[f"{second} in {first}"] = int(found.sum())
    repeated: dict[str, JsonValue] = {
        name: int(found.size - np.unique(found).size) for name, found in digests.items()
    }
    return {"shared_documents": shared, "repeated_documents": repeated}


def _digests(directory: PreparationDirectory, split: str) -> Digests:
    shards = sum(split in group.shards for group in directory.groups)
    files = (directory.folder / shard_files(split, number)[2] for number in range(shards))
    return np.concatenate([np.fromfile(path, dtype="<u8") for path in files]).astype(np.uint64)
