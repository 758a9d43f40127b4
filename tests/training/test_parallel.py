"""Several processes train what one would, with the same bits, and any number after any other."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.training.rank_server import Ended, RankServer

STRATEGIES = ("ddp", "fsdp")
MOSTLY_SHARDED = (pytest.param("ddp", marks=pytest.mark.slow), "fsdp")
"""Where FSDP does more of its own: it shares files and tensors, which DDP leaves to one process."""
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


class References:
    """Runs that nothing disturbed, each of them made once."""

    def __init__(self, rank_server: RankServer, directory: Path) -> None:
        def make(ranks: int, order: str) -> Ended:
            path = directory / str(len(list(directory.iterdir())))
            return rank_server.run(path, ranks, keep_weights=True, **json.loads(order))

        self._make = cache(make)

    def alone(self, **run: Any) -> Ended:
        """A run in one process."""
        return self._make(1, json.dumps({"run": run}))

    def together(self, ranks: int, strategy: str, **run: Any) -> Ended:
        """A run in several processes."""
        return self._make(ranks, json.dumps({"strategy": strategy, "run": run}))


@pytest.fixture(scope="module")
def references(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(rank_server, tmp_path_factory.mktemp("runs"))


def weights(ended: Ended) -> dict[str, Tensor]:
    return load_file(ended.directory / "weights.safetensors")


def difference(left: Ended, right: Ended) -> float:
    """The largest difference of losses and weights, relative to their size."""
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    apart = [
        ((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max()).item() for name in ours
    ]
    pairs = zip(left.losses, right.losses, strict=True)
    return max(*apart, *(abs(a - b) / abs(b) for a, b in pairs))


# Large products are compared in float32.
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_two_processes_train_what_one_does(
    references: References, strategy: str, dtype: str
) -> None:
    together, one = references.together(2, strategy, dtype=dtype), references.alone(dtype=dtype)
    assert together.sha, "all processes have the same weights"
    scores = [found["metrics"]["test_loss"] for found in together.found]
    assert len(set(scores)) == 1
    tolerance = TOLERANCE[dtype]
    assert scores[0] == pytest.approx(one.found[0]["metrics"]["test_loss"], rel=tolerance)
    said = [float(event["text"]) for event in together.log("sample")]
    expected = [float(event["text"]) for event in one.log("sample")]
    assert said == pytest.approx(expected, rel=10 * tolerance)
    assert difference(together, one) <= tolerance


@pytest.mark.parametrize("strategy", MOSTLY_SHARDED)
def test_blocks_that_are_computed_again_and_bfloat16(references: References, strategy: str) -> None:
    run = {"dtype": "float32", "precision": "bf16", "recompute_blocks": True}
    together, one = references.together(2, strategy, **run), references.alone(**run)
    assert together.losses == pytest.approx(one.losses, rel=1e-2)
    assert together.losses != references.alone(dtype="float32").losses
    assert together.found[0]["metrics"]["test_loss"] == pytest.approx(
        one.found[0]["metrics"]["test_loss"], rel=1e-2
    )
    assert {tensor.dtype for tensor in weights(together).values()} == {torch.float32}


def test_large_products_in_many_processes(
    rank_server: RankServer, references: References, tmp_path: Path
) -> None:
    """Every product by oneDNN, as those of a network of usual size: under FSDP too."""
    order = {"keep_weights": True, "run": {"dtype": "float32"}, "large_product": 0}
    one = rank_server.run(tmp_path / "one", 1, **order)
    assert references.alone(dtype="float32").found[0]["onednn_products"] == 0
    assert one.found[0]["onednn_products"] > 0
    together = rank_server.run(tmp_path / "two", 2, strategy="fsdp", **order)
    assert difference(together, one) <= TOLERANCE["float32"]
    assert together.found[1]["onednn_products"] > 0


@pytest.mark.compile
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("ranks", "strategy"), [(1, "ddp"), (2, "ddp"), (2, "fsdp")])
def test_a_compiled_network_learns_the_same_and_resumes(
    rank_server: RankServer, references: References, tmp_path: Path, ranks: int, strategy: str
) -> None:
    """Steps, validations and samples of a network that torch compiles, and that is stopped."""
    order: dict[str, Any] = {
        "strategy": strategy,
        "run": {"dtype": "float32", "compile": True},
    }
    whole = rank_server.run(tmp_path / "whole", ranks, keep_weights=True, **order)
    assert difference(whole, references.alone(dtype="float32")) <= 1e-4
    stopped = rank_server.run(tmp_path / "cut", ranks, stop_after=4, stop_rank=ranks - 1, **order)
    assert {found["status"] for found in stopped.found} == {"stopped"}
    again = rank_server.run(tmp_path / "cut", ranks, **order)
    assert again.sha == whole.sha
    assert again.losses == whole.losses


def test_a_stopped_run_resumes_bit_for_bit(
    rank_server: RankServer, references: References, tmp_path: Path
) -> None:
    """And the run, repeated, gives the same bits; FSDP where a process is lost."""
    reference = references.together(3, "ddp", dtype="float64")
    stopped = rank_server.run(tmp_path, 3, stop_after=4, stop_rank=2)
    assert {found["status"] for found in stopped.found} == {"stopped"}
    resumed = rank_server.run(tmp_path, 3)
    assert (resumed.sha, resumed.losses) == (reference.sha, reference.losses)
    (event,) = resumed.log("resumed")
    assert (event["step"], event["processes"]) == (4, 3)


def test_the_number_of_processes_may_change(
    rank_server: RankServer, references: References, tmp_path: Path
) -> None:
    plan = [(1, "ddp"), (2, "fsdp"), (3, "ddp"), (1, "ddp")]
    for number, (ranks, strategy) in enumerate(plan, start=1):
        stop = 2 if number < len(plan) else None
        order: dict[str, Any] = {"strategy": strategy, "keep_weights": True, "stop_after": stop}
        ended = rank_server.run(tmp_path, ranks, **order)
    assert {found["status"] for found in ended.found} == {"done"}
    assert difference(ended, references.alone(dtype="float64")) <= 1e-12
    resumed = [(event["step"], event["processes"]) for event in ended.log("resumed")]
    assert resumed == [(2 * number, ranks) for number, (ranks, _) in enumerate(plan) if number]


@pytest.mark.parametrize(("strategy", "poison"), [("ddp", "loss"), ("fsdp", "gradient")])
def test_what_is_not_finite_in_one_process_stops_all_before_the_update(
    rank_server: RankServer, tmp_path: Path, strategy: str, poison: str
) -> None:
    """The last row of the batch is poisoned, which the second process has."""
    task = {"poison": poison, "poison_step": 3, "poison_row": 11}
    ended = rank_server.run(tmp_path / "poisoned", 2, strategy=strategy, task=task)
    assert {found["status"] for found in ended.found} == {"diverged"}
    for found in ended.found:
        assert ("loss is nan" if poison == "loss" else "gradient norm") in found["message"]
        assert "at step 3" in found["message"]
    assert [event["step"] for event in ended.log("diverged")] == [3]
    sound = rank_server.run(tmp_path / "sound", 2, strategy=strategy, stop_after=3)
    assert ended.sha == sound.sha, "the last good weights were kept"


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_gpus_train_what_one_does(
    rank_server: RankServer, references: References, tmp_path: Path, strategy: str
) -> None:
    """NCCL: to a tolerance, as its order of addition is undefined."""
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine does not have two GPUs")
    run = {"device": "cuda", "dtype": "float64", "steps": 50}
    together, one = references.together(2, strategy, **run), references.alone(**run)
    assert together.sha
    assert difference(together, one) <= 1e-10
    path = tmp_path / "run"
    rank_server.run(path, 2, strategy=strategy, run=run, stop_after=20)
    ended = rank_server.run(path, 1, run=run, keep_weights=True)
    assert difference(ended, one) <= 1e-10


def test_a_batch_that_cannot_be_shared_evenly_is_refused(
    rank_server: RankServer, tmp_path: Path
) -> None:
    ended = rank_server.run(tmp_path, 5)
    assert ended.codes == (2, 2, 2, 2, 2)
    assert "expected a batch size divisible by the 5 processes, got 12" in ended.printed[0]


def test_a_disk_that_is_full_for_one_process_ends_all(
    rank_server: RankServer, tmp_path: Path
) -> None:
    order = {"strategy": "fsdp"}
    rank_server.run(tmp_path, 2, stop_after=3, **order)
    ended = rank_server.run(tmp_path, 2, stop_after=3, fault="full_disk", **order)
    assert ended.codes == (4, 4)
    assert "process 1: cannot write" in ended.printed[0]
    assert "No space left on device" in ended.printed[1]
    folders = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert folders == ["step-000000000003"]
