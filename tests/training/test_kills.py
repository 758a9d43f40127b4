"""A run that is killed any number of times ends, bit by bit, as one that was not."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.durable import TEMPORARY_PREFIX
from tests.storage.damage import trials
from tests.training.rank_server import Ended, RankServer
from tests.training.test_ranks_die import kill

RUN = {"steps": 12, "dtype": "float32", "dropout": 0.1}
"""Of a language model whose gradients are added up over the parts of a batch."""


def result(ended: Ended) -> Any:
    """Weights, metrics and the log without times and resumptions."""
    log = [
        {name: value for name, value in event.items() if name != "seconds"}
        for event in ended.log()
        if event["event"] != "resumed"
    ]
    return ended.sha, ended.found[0]["metrics"], log


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("ranks", "strategy"),
    [
        (1, "ddp"),
        *(
            pytest.param(ranks, strategy, marks=pytest.mark.slow)
            for ranks in (2, 4)
            for strategy in ("ddp", "fsdp")
        ),
    ],
)
def test_killed_runs_end_bit_by_bit_like_others(
    rank_server: RankServer, tmp_path: Path, ranks: int, strategy: str
) -> None:
    """Some processes of a run are killed one to five times at random; then it may end."""
    order: dict[str, Any] = {"strategy": strategy, "run": RUN, "patience": 10.0}
    whole = result(rank_server.run(tmp_path / "whole", ranks, **order))
    start = time.monotonic()
    dense = rank_server.run(tmp_path / "dense", ranks, checkpoint_seconds=0.0, **order)
    seconds = time.monotonic() - start
    assert result(dense) == whole
    killed, count = 0, trials("KILLS", 3)
    for seed in range(count):
        generator, path = random.Random(seed), tmp_path / str(seed)
        for _ in range(generator.randint(1, 5)):
            order["checkpoint_seconds"] = generator.choice([0.0, 0.0, 0.02])
            order["keep"] = generator.choice([1, 2, 5])
            pids = rank_server.start(path, ranks, **order)
            time.sleep(generator.uniform(0, seconds))
            kill(generator.sample(pids, generator.randint(1, ranks)))
            codes = rank_server.wait(path).codes
            assert set(codes) <= {0, -signal.SIGKILL, *([4] if ranks > 1 else [])}
            killed += -signal.SIGKILL in codes
        assert result(rank_server.run(path, ranks, **order)) == whole, f"seed {seed}"
        assert not list(path.rglob(f"{TEMPORARY_PREFIX}*"))
    assert killed >= count / 3
