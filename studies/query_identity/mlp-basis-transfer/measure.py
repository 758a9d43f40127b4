r"""Trains the students of paper 3's transfer of a basis, and writes what is found.

    python studies/query_identity/mlp-basis-transfer/measure.py --widths 16 32 64 --seeds 0 1 2 3 4

A finished run is kept below ``--out`` and is not run again: after Ctrl-C the same command goes on.
On a GPU the published number of inputs takes about a minute a run, and there are 30. What is found
goes into this folder, and what fewer inputs give into ``fewer-inputs``:

    python studies/query_identity/mlp-basis-transfer/measure.py --device cuda \
        --steps 20000 --batch 65536 --targets skip torch --biases without
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from basis_page import PUBLISHED_INPUTS, basis_files
from basis_runs import (
    TARGETS,
    WIDENING,
    BasisRecord,
    BasisRun,
    Target,
    from_json,
    plan_runs,
    to_json,
)
from torch import Tensor, nn

from qkvary.nn.devices import require_device
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import machine
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.training.config import ScheduleConfig
from qkvary.training.distribution import step_seed
from qkvary.training.optimizers import learning_rate

CHUNK = 8_192
"""Samples at once, where they are only counted."""
_WEIGHTS, _TEST, _LINEAR = -1, -2, -3
"""Steps before the first, for random draws other than the batches."""

Function = Callable[[Tensor], Tensor]


class Student(nn.Module):
    """``x + GELU(x V1) V2``, drawn as torch does."""

    def __init__(self, d: int, *, biases: bool) -> None:
        super().__init__()
        self.first = nn.Linear(d, WIDENING * d, bias=biases)
        self.second = nn.Linear(WIDENING * d, d, bias=biases)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the input plus what the network adds to it."""
        return x + self.second(F.gelu(self.first(x)))


def measure(run: BasisRun) -> BasisRecord:
    """Fits the best linear map, trains the student, and scores both on fresh inputs.

    A pure function of ``run``, but for the time it takes.
    """
    torch.set_num_threads(1)
    began = time.perf_counter()
    with torch.no_grad():
        function = draw_target(
            TARGETS[run.target], run.d, _generator(run.seed, _WEIGHTS), run.device
        )
        linear = fit_linear(function, run)
    torch.default_generator.manual_seed(step_seed(run.seed, 0))
    student = Student(run.d, biases=run.biases).to(run.device)
    half_way = _train(student, function, run)
    error, cosine = score(student, function, run)
    linear_error, linear_cosine = score(linear, function, run)
    figures = {
        "student_error": error,
        "student_cosine": cosine,
        "half_way_error": half_way,
        "linear_error": linear_error,
        "linear_cosine": linear_cosine,
        "seconds": time.perf_counter() - began,
    }
    return BasisRecord(run=run, figures=figures)


def draw_target(
    target: Target, d: int, generator: torch.Generator, device: str = "cpu"
) -> Function:
    """Draws a function of the kind that ``target`` describes, on the CPU, for a device."""
    h = WIDENING * d

    def normal(rows: int, columns: int, variance: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * math.sqrt(variance)

    mixing = normal(d, d, 1 / d)
    if target.keeps_input:
        mixing = mixing + torch.eye(d)
    if target.biases:
        first, bias = _torch_layer(d, h, generator)
        second, offset = _torch_layer(h, d, generator)
    else:
        first = normal(d, h, target.first_variance / d)
        second = normal(h, d, target.second_variance / h)
        bias, offset = torch.zeros(h), torch.zeros(d)
    mixing, first, bias, second, offset = (
        drawn.to(device) for drawn in (mixing, first, bias, second, offset)
    )

    def function(x: Tensor) -> Tensor:
        return x @ mixing + F.gelu(x @ first + bias) @ second + offset

    return function


def _torch_layer(inputs: int, outputs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws weights and biases as ``nn.Linear`` does."""
    bound = 1 / math.sqrt(inputs)
    weight = torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)
    return weight, torch.empty(outputs).uniform_(-bound, bound, generator=generator)


def fit_linear(function: Function, run: BasisRun) -> Function:
    """Returns the linear map (with a constant, where there are biases) of least squared error.

    Sums of products are collected chunk by chunk in float64, a ridge is added, and the system is
    solved once.
    """

    def extended(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1) if run.biases else x

    size = run.d + int(run.biases)
    gram = torch.zeros(size, size, dtype=torch.float64, device=run.device)
    mixed = torch.zeros(size, run.d, dtype=torch.float64, device=run.device)
    for x in _inputs(run, _LINEAR, run.linear_samples):
        inputs, outputs = extended(x).double(), function(x).double()
        gram += inputs.T @ inputs
        mixed += inputs.T @ outputs
    gram += run.ridge * torch.eye(size, dtype=torch.float64, device=run.device)
    solution = torch.linalg.solve(gram, mixed).float()
    return lambda x: extended(x) @ solution


def _train(student: Student, function: Function, run: BasisRun) -> float:
    """Trains the student and returns its error half way."""
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=run.learning_rate, weight_decay=run.weight_decay, fused=True
    )
    schedule = ScheduleConfig(name="cosine")
    half_way = math.nan
    for step in range(run.steps):
        if step == run.steps // 2:
            half_way, _ = score(student, function, run)
        x = _draw(run.batch, run, _generator(run.seed, step, run.device))
        wanted = function(x)
        loss = (student(x) - wanted).square().sum() / wanted.square().sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), run.gradient_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(
                schedule, peak=run.learning_rate, step=step, steps=run.steps
            )
        optimizer.step()
    return half_way


@torch.no_grad()
def score(found: Function, function: Function, run: BasisRun) -> tuple[float, float]:
    """Returns the relative error on fresh inputs and the mean cosine.

    The error is the root of summed squared errors over summed squared outputs.
    """
    errors = outputs = cosines = 0.0
    for x in _inputs(run, _TEST, run.test_samples):
        wanted, given = function(x), found(x)
        errors += (given - wanted).square().sum().item()
        outputs += wanted.square().sum().item()
        cosines += F.cosine_similarity(given, wanted, dim=1).sum().item()
    return math.sqrt(errors / outputs), cosines / run.test_samples


def _inputs(run: BasisRun, step: int, samples: int) -> Iterator[Tensor]:
    generator = _generator(run.seed, step, run.device)
    for start in range(0, samples, CHUNK):
        yield _draw(min(CHUNK, samples - start), run, generator)


def _draw(samples: int, run: BasisRun, generator: torch.Generator) -> Tensor:
    return torch.randn(samples, run.d, generator=generator, device=run.device)


def _generator(seed: int, step: int, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(step_seed(seed, step))


def measure_all(runs: Sequence[BasisRun], folder: Path) -> list[BasisRecord]:
    """Returns the records of all runs; each is kept when it is made, and found again."""
    make_directory(folder)
    records: list[BasisRecord] = []
    for number, run in enumerate(runs, start=1):
        path = folder / f"{run.key}.json"
        record = _read(path)
        if record is None or record.run != run:
            record = measure(run)
            atomic_write_file(path, f"{encode(to_json(record))}\n".encode())
            said = f"{run.reading}, d {run.d}, seed {run.seed}: {record.figures['seconds']:.1f} s"
            print(f"{said} [{number} of {len(runs)}]")
        records.append(record)
    return records


def _read(path: Path) -> BasisRecord | None:
    """Returns a kept record, or None where none can be read: it is made again then."""
    try:
        return from_json(decode(path.read_bytes()))
    except (OSError, ValueError):
        return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is asked for and writes the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=4_000, help="of each student")
    parser.add_argument("--batch", type=int, default=512, help="fresh inputs a step")
    parser.add_argument("--targets", nargs="+", choices=[*TARGETS], default=[*TARGETS])
    parser.add_argument("--biases", choices=["with", "without"], help="only these students")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where runs are kept")
    parser.add_argument("--to", type=Path, help="folder of README, table and records")
    given = parser.parse_args(arguments)
    if min(given.widths) < 1 or given.steps < 2 or given.batch < 1:
        parser.error(
            "expected widths and a batch from 1 and steps from 2, "
            f"got {given.widths}, {given.batch}, {given.steps}"
        )
    try:
        require_device(given.device)
    except UsageError as error:
        parser.error(str(error))
    runs = [
        replace(run, batch=given.batch, device=given.device)
        for run in plan_runs(given.widths, given.seeds, given.steps)
        if run.target in given.targets and given.biases in {None, run.reading.split()[1]}
    ]
    records = measure_all(runs, given.out / "basis")
    environment = machine()
    if given.device != "cpu":
        environment = {**environment, "gpu": torch.cuda.get_device_name(given.device)}
    folder = Path(__file__).parent
    is_published = (given.steps, given.batch) == PUBLISHED_INPUTS
    to = given.to or (folder if is_published else folder / "fewer-inputs")
    for name, data in basis_files(environment, records).items():
        make_directory((to / name).parent)
        atomic_write_file(to / name, data)
    print(to / "README.md")


if __name__ == "__main__":
    main()
