"""Trains and scores the students of a transfer of a basis. Needs torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.studies.basis_transfer import WIDENING, BasisRecord, BasisRun, Target, find_target
from qkvary.training.config import ScheduleConfig
from qkvary.training.gradients import step_seed
from qkvary.training.schedules import learning_rate

CHUNK = 8_192
"""Samples at once, where they are only counted."""
_WEIGHTS, _TEST, _LINEAR = -1, -2, -3
"""Steps before the first, for what is drawn beside the batches."""

Function = Callable[[Tensor], Tensor]


class Student(nn.Module):
    """``x + GELU(x V1) V2``, drawn as torch does.

    Source: paper 3, section 8.3.
    """

    def __init__(self, d: int, *, biases: bool) -> None:
        """Build it.

        Args:
            d: Width; the inner one is four times as large.
            biases: Whether the two layers have biases.
        """
        super().__init__()
        self.first = nn.Linear(d, WIDENING * d, bias=biases)
        self.second = nn.Linear(WIDENING * d, d, bias=biases)

    def forward(self, x: Tensor) -> Tensor:
        """The input and what the network adds to it."""
        return x + self.second(F.gelu(self.first(x)))


def measure(run: BasisRun) -> BasisRecord:
    """Fit the best linear map, train the student, and score both on fresh inputs.

    A pure function of ``run``, but for the time it takes.
    """
    torch.set_num_threads(1)
    began = time.perf_counter()
    target = find_target(run.target)
    with torch.no_grad():
        function = draw_target(target, run.d, _generator(run.seed, _WEIGHTS))
        linear = fit_linear(function, run)
    torch.default_generator.manual_seed(step_seed(run.seed, 0))
    student = Student(run.d, biases=run.biases)
    half_way = _train(student, function, run)
    error, cosine = score(student, function, run)
    linear_error, linear_cosine = score(linear, function, run)
    return BasisRecord(
        run=run,
        figures={
            "student_error": error,
            "student_cosine": cosine,
            "half_way_error": half_way,
            "linear_error": linear_error,
            "linear_cosine": linear_cosine,
            "seconds": time.perf_counter() - began,
        },
    )


def draw_target(target: Target, d: int, generator: torch.Generator) -> Function:
    """A function of the kind that ``target`` describes."""
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

    def function(x: Tensor) -> Tensor:
        return x @ mixing + F.gelu(x @ first + bias) @ second + offset

    return function


def _torch_layer(inputs: int, outputs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weights and biases as ``nn.Linear`` draws them."""
    bound = 1 / math.sqrt(inputs)
    weight = torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)
    return weight, torch.empty(outputs).uniform_(-bound, bound, generator=generator)


def fit_linear(function: Function, run: BasisRun) -> Function:
    """The linear map (with a constant, where there are biases) of the least squared error.

    Sums of products are collected chunk by chunk in float64, a ridge is added, and the system is
    solved once.
    """
    size = run.d + int(run.biases)
    gram = torch.zeros(size, size, dtype=torch.float64)
    mixed = torch.zeros(size, run.d, dtype=torch.float64)
    generator = _generator(run.seed, _LINEAR)
    for start in range(0, run.linear_samples, CHUNK):
        count = min(CHUNK, run.linear_samples - start)
        x = torch.randn(count, run.d, generator=generator)
        inputs, outputs = _extended(x, run).double(), function(x).double()
        gram += inputs.T @ inputs
        mixed += inputs.T @ outputs
    gram += run.ridge * torch.eye(size, dtype=torch.float64)
    solution = torch.linalg.solve(gram, mixed).float()

    def found(x: Tensor) -> Tensor:
        return _extended(x, run) @ solution

    return found


def _extended(x: Tensor, run: BasisRun) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1) if run.biases else x


def _train(student: Student, function: Function, run: BasisRun) -> float:
    """Train the student; return its error half way."""
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=run.learning_rate, weight_decay=run.weight_decay, fused=True
    )
    schedule = ScheduleConfig(name="cosine")
    half_way = math.nan
    for step in range(run.steps):
        if step == run.steps // 2:
            half_way, _ = score(student, function, run)
        x = torch.randn(run.batch, run.d, generator=_generator(run.seed, step))
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
    """The relative error on fresh inputs and the mean cosine.

    Returns:
        The root of summed squared errors over summed squared outputs, and the mean over inputs of
        the cosine between what was found and what was wanted.
    """
    generator = _generator(run.seed, _TEST)
    errors = outputs = cosines = 0.0
    for start in range(0, run.test_samples, CHUNK):
        x = torch.randn(min(CHUNK, run.test_samples - start), run.d, generator=generator)
        wanted, given = function(x), found(x)
        errors += (given - wanted).square().sum().item()
        outputs += wanted.square().sum().item()
        cosines += F.cosine_similarity(given, wanted, dim=1).sum().item()
    return math.sqrt(errors / outputs), cosines / run.test_samples


def _generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(step_seed(seed, step))
