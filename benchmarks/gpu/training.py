"""Training steps at the sizes of paper 1 on random examples: tokens or images a second, and MFU.

A step is everything but reading data: gradients accumulated over micro-batches, their norm,
clipping, AdamW. Rates are the median over steps. MFU divides the products that the network needs,
visible pairs only, by the rate of the device's data sheet for 16 bits.
"""

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from records import Records
from torch import Tensor, nn

from qkvary.arch.labels import as_label
from qkvary.arch.models import as_model
from qkvary.arch.networks import LanguageModelConfig, VisionTransformerConfig
from qkvary.costs.devices import find_device
from qkvary.costs.training import training_macs_per_token
from qkvary.nn.blocks import compile_blocks
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.vision_transformer import VisionTransformer
from qkvary.papers.key_value.vision import vit_base
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.tasks.contract import Batch
from qkvary.tasks.image_config import ImageTaskConfig
from qkvary.training.config import ExecutionConfig, OptimizerConfig, RunConfig, TrainingConfig
from qkvary.training.distribution import Distribution, Gradients
from qkvary.training.optimizers import make_optimizer
from qkvary.training.presets import find_preset

PART = "training"
LANGUAGE = ("QKV", "Q-K=V", "Q=K-V", "Q=K=V", "GQA-4", "MQA", "Q-GQA-4", "Q-MQA")
"""The rows of table 4."""
VISION = ("QKV", "Q-K=V", "Q=K-V", "Q=K=V")
DATA_SHEETS = {"H200": "h200", "A100": "a100-40gb"}
"""Devices of the planner by a part of the card's name; any other is compared with an H100."""
ROWS, MICRO_BATCHES = 8, 4
"""Rows of a micro-batch, and micro-batches of a step (the paper has 6 rows, 24 times)."""
IMAGES = 128
WARM_UP, STEPS = 2, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network and its training settings."""

    name: str
    variant: str
    precision: str
    compile: bool
    run: RunConfig
    positions: int
    """Tokens or images of a step."""


class RandomExamples:
    """The parts of a task that a step uses, with random examples that are there beforehand."""

    def __init__(self, run: RunConfig) -> None:
        self.network = run.network
        self.known: dict[int, Batch] = {}

    def batch(self, step: int, batch_size: int, seed: int, rows: slice) -> Batch:
        """Return rows of random tokens and their successors, or images and labels."""
        del step, batch_size, seed
        if rows.start not in self.known:
            self.known[rows.start] = self.draw(rows)
        return self.known[rows.start]

    def draw(self, rows: slice) -> Batch:
        """Draw rows of random tokens and their successors, or images and labels."""
        source = torch.Generator().manual_seed(rows.start)
        count, network = rows.stop - rows.start, self.network
        if isinstance(network, VisionTransformerConfig):
            shape = (count, network.channels, network.image_size, network.image_size)
            labels = torch.randint(network.classes, (count,), generator=source)
            return Batch(torch.randn(shape, generator=source), labels)
        shape = (count, network.max_tokens + 1)
        tokens = torch.randint(network.vocabulary, shape, generator=source)
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss."""
        if isinstance(self.network, VisionTransformerConfig):
            return F.cross_entropy(model(batch.inputs), batch.targets)
        return model(batch.inputs, targets=batch.targets) / batch.targets.numel()


def main() -> None:
    """Measure what is not in the records yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="tiny networks")
    options = parser.parse_args()
    records = Records(options.out)
    for case in cases(options.device, quick=options.quick):
        names = {
            "network": case.name,
            "variant": case.variant,
            "precision": case.precision,
            "compile": case.compile,
        }
        if not records.has(PART, **names):
            records.add(PART, **names, **measure(case))


def cases(device: str, *, quick: bool) -> list[Case]:
    """Return the cases in the order of their value."""
    language = [language_case(variant, device, quick=quick) for variant in LANGUAGE]
    vision = [
        vision_case(variant, device, precision, quick=quick)
        for precision in ("bf16", "full")
        for variant in VISION
    ]
    compiled = [language_case(variant, device, quick=quick, compiled=True) for variant in LANGUAGE]
    if quick:
        return [language[1], vision[1]]
    return [*language, compiled[0], *vision, *compiled[1:]]


def language_case(variant: str, device: str, *, quick: bool, compiled: bool = False) -> Case:
    """Return a row of table 4, in bfloat16."""
    preset = find_preset("lm-1m" if quick else "lm-300m").with_variant(variant)
    rows, micro = (2, 2) if quick else (ROWS, MICRO_BATCHES)
    network, execution = preset.network, preset.training.execution
    execution = replace(execution, micro_batch_size=rows, precision="bf16", compile=compiled)
    training = replace(preset.training, batch_size=rows * micro, execution=execution)
    task = LanguageTaskConfig(data="random", data_sha256="0" * 64, context=network.max_tokens)
    return Case(
        name=preset.name,
        variant=variant,
        precision="bf16",
        compile=compiled,
        run=RunConfig(task=task, network=network, training=training, seed=0, device=device),
        positions=rows * micro * network.max_tokens,
    )


def vision_case(variant: str, device: str, precision: str, *, quick: bool) -> Case:
    """Return ViT-B/16 on images of 224 pixels; the precision of the published runs is not known."""
    network = vit_base("tiny-imagenet", image_size=224).with_variant(as_label(variant))
    if quick:
        network = replace(network, image_size=32, num_layers=1)
    images = 2 if quick else IMAGES
    execution: dict[str, Any] = {"precision": precision}
    training = TrainingConfig(
        steps=100,
        batch_size=images,
        optimizer=OptimizerConfig(name="adam", learning_rate=1e-4),
        evaluate_every=100,
        execution=ExecutionConfig(**execution),
    )
    task = ImageTaskConfig(name="tiny-imagenet", augment=True, resize_to=network.image_size)
    return Case(
        name="vit-b-16",
        variant=variant,
        precision=precision,
        compile=False,
        run=RunConfig(task=task, network=network, training=training, seed=0, device=device),
        positions=images,
    )


def measure(case: Case) -> dict[str, Any]:
    """Train a few steps and return the rate."""
    run, device = case.run, torch.device(case.run.device)
    network = make_network(run, device).train()
    if case.compile:
        compile_blocks(network)
    task: Any = RandomExamples(run)
    gradients = Gradients(run, task, network, Distribution())
    optimizer = make_optimizer(network, run.network, run.training.optimizer)
    parameters = [part for part in network.parameters() if part.requires_grad]
    seconds: list[float] = []
    for step in range(WARM_UP + STEPS):
        synchronize(device)
        start = time.perf_counter()
        gradients.accumulate(step)
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    timed = seconds[WARM_UP:]
    rates = [case.positions / one for one in timed]
    tokens = run.network.max_tokens if isinstance(run.network, LanguageModelConfig) else None
    model = as_model(run.network)
    length = tokens or model_tokens(run.network)
    flops = 2 * training_macs_per_token(model, tokens=length) * (1 if tokens else length)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    name = next((known for part, known in DATA_SHEETS.items() if part in card), "h100-80gb")
    sheet = find_device(name).flops_per_second_16_bit
    rate = statistics.median(rates)
    return {
        "per_second": rate,
        "unit": "tokens" if tokens else "images",
        "slowest": min(rates),
        "fastest": max(rates),
        "flops_per_position": flops,
        "share_of_data_sheet": flops * rate / sheet if sheet else None,
        "data_sheet": name,
        "positions_per_step": case.positions,
        "warm_up_seconds": sum(seconds[:WARM_UP]),
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def model_tokens(network: Any) -> int:
    """Return the tokens of an image, the class token included."""
    return network.tokens


def make_network(run: RunConfig, device: torch.device) -> nn.Module:
    """Return the network with random weights, drawn on the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with torch.device("meta"):
        network = (
            LanguageModel(run.network)
            if isinstance(run.network, LanguageModelConfig)
            else VisionTransformer(run.network)  # pyright: ignore[reportArgumentType]
        )
    network = network.to_empty(device=device)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.02) if parameter.ndim > 1 else parameter.fill_(1.0)
    return network


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
