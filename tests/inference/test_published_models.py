"""The two published checkpoints give their recorded texts with every layout and kernel."""

import pytest
import torch

from qkvary.arch.caches import CacheLayout, CacheOptions, CacheStorage, DecodeKernel
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.models import LoadedModel
from qkvary.inference.decoding import complete, make_cache
from qkvary.inference.requests import Request
from qkvary.nn.cache import KVCache
from tests.checkpoints.published_models import KINDS, find_model, read_reference

NAMES = ("stories260K", "shakespeare_char_mha")
LAYOUTS: tuple[CacheLayout, ...] = ("sources", "rotated", "split", "input")
KERNELS: tuple[DecodeKernel, ...] = ("layer", "native", "folded", "matmul")
WAYS: list[tuple[CacheLayout, CacheStorage, DecodeKernel]] = [
    *((layout, "preallocated", "native") for layout in LAYOUTS),
    *(("rotated", "preallocated", kernel) for kernel in KERNELS[2:]),
    *((layout, "growing", "layer") for layout in LAYOUTS),
]
Case = tuple[LoadedModel, list[int], list[int]]


@pytest.fixture(scope="module", params=[(name, kind) for name in NAMES for kind in KINDS])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A checkpoint, a prompt, and how it goes on."""
    name, kind = request.param
    folder = find_model(name, kind, tmp_path_factory)
    loaded, expected = load_checkpoint(folder), read_reference(folder)["greedy"]
    if "ids" in expected:
        prompt, whole = expected["prompt_ids"], expected["ids"]
    else:
        assert loaded.tokenizer is not None
        prompt, whole = (loaded.tokenizer.encode(expected[key]) for key in ("prompt", "text"))
    # Of random weights a few tokens tell as much as many.
    most = None if kind == "published" else len(prompt) + 24
    return loaded, list(prompt), list(whole[len(prompt) : most])


@pytest.mark.parametrize(("layout", "storage", "kernel"), WAYS)
def test_greedy_tokens(
    case: Case, layout: CacheLayout, storage: CacheStorage, kernel: DecodeKernel
) -> None:
    loaded, prompt, expected = case
    asked = Request(prompt=tuple(prompt), max_new_tokens=len(expected))

    def new_cache(limit: int) -> KVCache:
        options = CacheOptions(storage=storage)
        return make_cache(loaded.network, limit, layout=layout, storage=options, kernel=kernel)

    (answer,) = complete(loaded.network, [asked], new_cache=new_cache, chunk=7)
    assert list(answer.tokens) == expected
    assert loaded.network.embedding.dtype == torch.float32
