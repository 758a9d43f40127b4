"""Memory falls by what the formula predicts, measured in fresh processes."""

import pytest

from decoding.memory import (
    MemoryJob,
    MemoryReading,
    NetworkSource,
    measure_here,
    measure_in_subprocess,
)
from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.arch.networks import LanguageModelConfig
from tests.inference.decoding_networks import make_config
from tests.small_networks import small_config

MOST_OFF = 0.02
"""Of the difference of two caches."""


def make_job(config: LanguageModelConfig, cache: CacheOptions | None, **sizes: int) -> MemoryJob:
    given = {"batch": 1, "prompt_tokens": 9, "new_tokens": 5, "threads": 1, "chunk": 4, **sizes}
    source = NetworkSource(config=config, seed=0, checkpoint=None, dtype="float32", device="cpu")
    return MemoryJob(network=source, cache=cache, **given)


def read_layout(layout: CacheLayout, *, context: int, batch: int, chunk: int) -> MemoryReading:
    """Of a Q-K=V network whose cache is large against everything else."""
    sizes = {"d_model": 256, "num_heads": 4, "d_ff": 64, "num_layers": 4}
    config = small_config("Q-K=V", **sizes, vocabulary=512, max_tokens=context)
    options = CacheOptions(layout=layout, storage="preallocated", kernel="auto")
    sizes = {"batch": batch, "prompt_tokens": context - 8, "new_tokens": 8, "chunk": chunk}
    return measure_in_subprocess(make_job(config, options, **sizes))


def check_gap(*, context: int, batch: int, chunk: int) -> None:
    formula = batch * (context - 1) * 4 * 256 * 4
    answers: dict[CacheLayout, int] = {}
    # Other memory of a process only raises its peak, as it seldom does.
    for _ in range(8):
        for layout, tensors in (("split", 2), ("rotated", 1)):
            reading = read_layout(layout, context=context, batch=batch, chunk=chunk)
            assert reading.cache_bytes == tensors * formula
            assert 0 < reading.before_bytes <= reading.peak_bytes
            added = reading.peak_bytes - reading.before_bytes
            answers[layout] = min(added, answers.get(layout, added))
        measured = answers["split"] - answers["rotated"]
        if abs(measured / formula - 1) <= MOST_OFF:
            return
    raise AssertionError(f"measured {measured}, computed {formula}")


@pytest.mark.slow
@pytest.mark.parametrize(("context", "batch", "chunk"), [(1024, 8, 32), (2**15, 1, 128)])
def test_one_tensor_for_both_roles_lowers_the_peak_by_its_bytes(
    context: int, batch: int, chunk: int
) -> None:
    check_gap(context=context, batch=batch, chunk=chunk)


@pytest.mark.parametrize("label", ["QKV", "Q-K=V"])
def test_weights_and_cache_are_counted(label: str) -> None:
    job = make_job(make_config(label), CacheOptions(storage="preallocated"))
    parameters = sum(part.numel() for part in job.network.load().parameters())
    tensors = 2 if label == "QKV" else 1
    reading = measure_here(job)
    assert reading.weight_bytes == 4 * parameters
    assert reading.cache_bytes == tensors * 3 * 20 * 4 * 13
    assert reading.source == "VmHWM"
