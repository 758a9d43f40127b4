"""A process that has imported torch and forks the ranks of a run for each line that it reads.

Tests then import torch once. A line is a JSON object: ``ranks`` and the arguments of ``work``, or
``command``. The answers are ``started PID ...``, then ``ended CODE ...``. A rank writes
``rank-N.json`` and ``rank-N.txt`` in the run's folder.

``python -m tests.training.ranks '{...}'`` is one rank, as torchrun starts them.
"""

import gc
import itertools
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from qkvary.nn import linear as linear_module
from qkvary.storage.errors import QkvaryError, ResourceError
from qkvary.storage.manifest import DEFAULT_KEEP, FileEntry
from qkvary.training import parallel, presets
from qkvary.training.distribution import Distribution
from qkvary.training.loop import train
from qkvary.training.optimizers import make_optimizer
from qkvary.training.parallel import join_process_group
from qkvary.training.processes import Collectives, RankInfo
from qkvary.training.progress import Callbacks
from tests.training.small_language import SmallLanguage, small_run


def work(order: dict[str, Any], rank: int) -> None:
    """Train in one rank, as an order says."""
    directory = Path(order["directory"])
    run = small_run(**order.get("run", {}))
    asked = itertools.count()
    signalled: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: signalled.append(number))
    stop_after, stop_rank = order.get("stop_after"), order.get("stop_rank", 0)

    rows = run.training.batch_size
    parts = -(-rows // (run.training.execution.micro_batch_size or rows))

    def stop() -> bool:
        # One process is asked between micro-batches too.
        step = next(asked) // (parts if distribution.size == 1 else 1)
        if step == order.get("sleep_after") and rank == order["sleep_rank"]:
            time.sleep(order["sleep_seconds"])
        if order.get("pace"):
            time.sleep(order["pace"])
        is_over = stop_after is not None and rank == stop_rank and step >= stop_after
        return is_over or bool(signalled)

    task = SmallLanguage(**order.get("task", {}))
    warnings: list[str] = []
    patience = order.get("patience", 60.0)
    joined: AbstractContextManager[Distribution] = nullcontext(Distribution())
    if os.environ.get("WORLD_SIZE", "1") != "1":
        strategy = order.get("strategy", "ddp")
        joined = join_process_group(
            RankInfo.from_environment(os.environ), strategy, run.device, timeout_seconds=patience
        )
    with joined as distribution:
        if order.get("fault") == "full_disk" and distribution.rank == 1:
            parallel.write_checked = no_space
        if "large_product" in order:
            linear_module.LARGE, linear_module._IS_ONEDNN_FASTER = order["large_product"], True
        products = count_onednn()
        outcome = train(
            run,
            task,
            directory,
            stop=stop,
            callbacks=Callbacks(
                on_event=lambda event: warnings.extend([event.warning] if event.warning else []),
                # Only the first process is asked, and only it need know.
                sample=(lambda model: str(model.embedding.sum().item())) if rank == 0 else None,
            ),
            checkpoint_seconds=order.get("checkpoint_seconds", 1e9),
            keep=order.get("keep", DEFAULT_KEEP),
            distribution=distribution,
        )
    if order.get("keep_weights") and rank == 0:
        weights = {name: w.cpu().clone() for name, w in outcome.network.state_dict().items()}
        save_file(weights, directory / "weights.safetensors")
    found = {
        "status": outcome.status,
        "message": outcome.message,
        "sha": outcome.state_sha256,
        "metrics": dict(outcome.metrics),
        "warnings": warnings,
        "onednn_products": next(products),
    }
    (directory / f"rank-{rank}.json").write_text(json.dumps(found))


def count_onednn() -> Iterator[int]:
    """Count the products that go to oneDNN from now on; the next number is that of those before."""
    counter, multiply = itertools.count(), linear_module._multiply

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        next(counter)
        return multiply(x, weight, bias)

    linear_module._multiply = counted
    return counter


def no_space(folder: Path, _files: object) -> dict[str, FileEntry]:
    raise ResourceError(f"cannot write {folder}: No space left on device")


def load_command() -> Callable[[list[str]], int]:
    """Return the command line as its tests have it: the smallest of everything, no pictures."""
    import qkvary.reports.files
    from qkvary.cli.main import main as run_main
    from qkvary.training import utilization
    from tests.cli.tiny_training import with_tiny

    presets.PRESETS = with_tiny()
    qkvary.reports.files.DEFAULT_FORMATS = ("html", "csv")
    utilization.SIDE_ON_CPU = 64
    return run_main


def run_rank(order: dict[str, Any], rank: int) -> int:
    """The exit code of one rank."""
    if "command" in order:
        os.environ.update(order["environment"])
        return load_command()(order["command"])
    try:
        work(order, rank)
    except QkvaryError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    except BaseException:  # noqa: BLE001  the exit code says it
        traceback.print_exc()
        return 1
    return 0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def fork_rank(order: dict[str, Any], rank: int, environment: dict[str, str]) -> int:
    child = os.fork()
    if child:
        return child
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    directory = Path(order["directory"])
    with (directory / f"rank-{rank}.txt").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        code = run_rank(order, rank)
        sys.stderr.flush()
    os._exit(code)


def serve(answer: Callable[[str], object]) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "command" in order:
            # Once and here, not in every rank.
            load_command()
        # What is there now need not be looked through for garbage in every rank.
        gc.freeze()
        environment = {
            "WORLD_SIZE": str(order["ranks"]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        children = [fork_rank(order, rank, environment) for rank in range(order["ranks"])]
        answer(f"started {' '.join(map(str, children))}\n")
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        answer(f"ended {' '.join(map(str, codes))}\n")


def warm_up() -> None:
    """Do now what torch does on first use, so that no rank has to: shard and train a network."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    run = small_run(steps=1)
    distribution = parallel.Sharded(Collectives(0, 2), "cpu")
    model = SmallLanguage().build(run.network, 0).double()
    wrapped = distribution.wrap(model, "full")
    optimizer = make_optimizer(model, run.network, run.training.optimizer)
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    wrapped(tokens, targets=tokens).backward()
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.ones(()), foreach=True)
    optimizer.step()
    distribution.digest(model, optimizer)
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        order = json.loads(sys.argv[1])
        rank = int(os.environ["RANK"])
        (Path(order["directory"]) / f"pid-{rank}").write_text(str(os.getpid()))
        sys.exit(run_rank(order, rank))
    warm_up()

    def answer(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    serve(answer)


if __name__ == "__main__":
    main()
