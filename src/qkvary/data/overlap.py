"""Documents that occur in two splits, or twice in one, counted by their digests."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from qkvary.data.prepared import SPLITS, shard_files
from qkvary.data.shard_groups import PreparationDirectory
from qkvary.storage.jsonvalues import JsonValue


def count_overlap(directory: PreparationDirectory) -> dict[str, JsonValue]:
    """Count documents of a split that are in another split too, and repeated documents.

    Documents are equal if their stripped texts agree in the first 64 bits of the sha256.
    """
    digests: dict[str, NDArray[np.uint64]] = {}
    for split in filter(lambda split: directory.count(split, 1), SPLITS):
        shards = sum(split in group.shards for group in directory.groups)
        files = (directory.folder / shard_files(split, number)[2] for number in range(shards))
        digests[split] = np.concatenate([np.fromfile(path, dtype="<u8") for path in files])
    shared: dict[str, JsonValue] = {}
    for first, second in combinations(digests, 2):
        found = np.isin(digests[second], digests[first])
        shared[f"{second} in {first}"] = int(found.sum())
    repeated: dict[str, JsonValue] = {
        name: int(found.size - np.unique(found).size) for name, found in digests.items()
    }
    return {"shared_documents": shared, "repeated_documents": repeated}
