"""Trains small networks, and measures the ranks of their attention maps and where they attend.

python studies/ours/attention-maps/measure.py
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkvary.analysis.ranks import effective_rank
from qkvary.papers.key_value.protocols import quick_characters, quick_sequences
from qkvary.papers.script_figures import describe_environment, figure_row, write_figures
from qkvary.reports.tables import Raw
from qkvary.storage.environment import machine
from qkvary.studies.results.statistics import corrected_confidence, paired_t
from qkvary.studies.study import Cell, Study
from qkvary.tasks.catalog import load_task
from qkvary.tasks.contract import attention_maps
from qkvary.training.loop import train

FOLDER = Path(__file__).parent
STUDY = Study(
    name="attention-maps",
    question="Do attention maps have a low rank, and how precisely do networks attend?",
    description="Networks of quickstart with three projections.",
    settings=(
        quick_sequences("reverse", steps=400, learning_rate=2e-3),
        quick_sequences("swap", steps=400, learning_rate=2e-3),
        quick_sequences("sort", steps=600, learning_rate=3e-3),
        quick_characters(),
    ),
    variants=("QKV",),
    seeds=(0, 1, 2, 3, 4),
)
EXAMPLES = 64
"""Validation sequences whose maps are measured."""
RANK, BEFORE = "share of singular values", "before training"
TARGET, NEIGHBOURS = "weight on the mirrored token", "weight on a neighbour above others"
ACCURACY = "test accuracy"
PAGE = """# Do attention maps have a low rank, and how precisely do networks attend?

The networks of `quickstart` with three projections, five seeds for each task, and the maps of all
their heads on 64 validation sequences. Means over seeds with Student's intervals at 95 %, for all
rows of the same quantity at once. `detectable` is the smallest difference that would have been
seen.

- *share of singular values*: the fewest singular values of a map that hold 90 % of the sum of their
  squares, as a share of all, one for each token; the mean over sequences, layers and heads. With
  the reference *before training* it is the share after the training less that before.
- *weight on the mirrored token*: in `reverse`, the attention of a token to the token that it has to
  copy, in the head that attends to it most.
- *weight on a neighbour above others*: in that head, the weight on a token beside the mirrored one,
  less that on a token further away.

`python studies/ours/attention-maps/measure.py` trains the networks and makes this again.

## Before you believe it

- Sequences have 16 digits or 32 characters. Maps of longer ones may have another share.
- A causal map (characters) has no zero singular value, since its diagonal is positive. Its rank can
  be low only in the sense of the energy.

"""


class Network(NamedTuple):
    """A network of a run, before or after its training."""

    maps: Tensor
    """Attention weights, ``[sequences, layers, heads, tokens, tokens]``."""
    parameters: int
    accuracy: float | None
    """Its test accuracy; None before the training and for characters."""


def read_network(cell: Cell, network: nn.Module, accuracy: float | None) -> Network:
    """Return a network with its attention maps on validation sequences."""
    batch = next(iter(load_task(cell.run.task).evaluation_batches("validation")))
    maps = attention_maps(network.eval(), batch.inputs[:EXAMPLES])
    return Network(maps, sum(one.numel() for one in network.parameters()), accuracy)


def train_cell(cell: Cell) -> tuple[Network, Network]:
    """Return the network of a run before and after its training."""
    task = load_task(cell.run.task)
    before = read_network(cell, task.build(cell.run.network, cell.run.seed), None)
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(cell.run, task, Path(folder))
    return before, read_network(cell, outcome.network, outcome.metrics.get("test_accuracy"))


def rank_share(maps: Tensor) -> float:
    """Return the share of singular values that hold 90 % of the energy, the mean of all maps."""
    values = torch.linalg.svdvals(maps.double()).flatten(0, -2)
    return fmean(effective_rank(one).energy_90 for one in values) / maps.shape[-1]


def read_reverse(maps: Tensor) -> Mapping[str, float]:
    """Return where the head attends that attends to the mirrored token most."""
    tokens = maps.shape[-1]
    index = torch.arange(tokens)
    distance = (index[None, :] - index.flip(0)[:, None]).abs()
    means = maps.double().mean(dim=0).flatten(0, 1)
    mirrored = means[:, distance == 0].mean(dim=1)
    best = means[mirrored.argmax()]
    beside, others = best[distance == 1].mean(), best[distance > 1].mean()
    return {TARGET: float(mirrored.max()), NEIGHBOURS: float(beside - others)}


def figure_rows(
    networks: Mapping[str, Sequence[tuple[Network, Network]]],
) -> Iterator[dict[str, Raw]]:
    """Yield all figures of the networks of each task, before and after the training."""
    for task, pairs in networks.items():
        shares = [[rank_share(one.maps) for one in pair] for pair in pairs]
        changes = [last - first for first, last in shares]
        last = [after for _, after in pairs]
        names = {"table": task, "quantity": RANK, "comparisons": len(networks)}
        yield _row(last, [after for _, after in shares], **names)
        yield _row(last, changes, reference=BEFORE, **names)
    last = [after for _, after in networks["reverse"]]
    found = [{**read_reverse(one.maps), ACCURACY: one.accuracy} for one in last]
    for quantity in (TARGET, NEIGHBOURS, ACCURACY):
        yield _row(last, [one[quantity] for one in found], table="reverse", quantity=quantity)


def _row(
    networks: Sequence[Network], values: Sequence[float], comparisons: int = 1, **names: Any
) -> dict[str, Raw]:
    estimate = paired_t(values, confidence=corrected_confidence(0.95, comparisons))
    sizes = {one.parameters for one in networks}
    return figure_row(estimate, variant="QKV", parameters=sizes, **names)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, and write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of README and tables")
    folder = parser.parse_args(arguments).to
    torch.set_num_threads(1)
    networks: dict[str, list[tuple[Network, Network]]] = {}
    for cell in STUDY.cells():
        networks.setdefault(cell.setting, []).append(train_cell(cell))
        print(f"{cell.title}: trained", flush=True)
    page = PAGE + describe_environment(machine()) + ".\n\n"
    write_figures(folder, page, figure_rows(networks))


if __name__ == "__main__":
    main()
