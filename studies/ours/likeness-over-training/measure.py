"""Trains the networks of a study, analyzes them as they were on the way, and ties their layers.

    python studies/ours/likeness-over-training/measure.py

Networks that are trained or measured already are not trained or measured again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from likeness_figures import figures_table
from likeness_page import Likeness, likeness_files
from torch import Tensor
from tying import tie_layer

from qkvary.analysis.layers import LayerStatistics
from qkvary.analysis.observation import read_window
from qkvary.analysis.results import LayerAnalysis
from qkvary.analysis.tying import Tie
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.costs.parameters import network_parameters
from qkvary.data.rows import PackedRows
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.role_maps import make_role_maps
from qkvary.reports.tables import table_csv
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import machine
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.studies.catalog import load_study
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import StudyRunner
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell, Study
from qkvary.tasks.catalog import load_task
from qkvary.tasks.language import LanguageTask
from qkvary.text.progress_line import say

STUDY = "likeness-over-training"
FOLDER = "likeness"
"""Below the store: what was measured, a file for each run."""
VERSION = 1
"""Raised by hand when a change of the code changes figures."""
READ_ROWS, SCORED_ROWS = 64, 512
"""Rows of the validation split that networks are analyzed on, and of the test split that scores."""
SEED = 0
"""Of random weights and drawn tokens."""
Figures = dict[str, Any]


class Text:
    """The rows of a run's text, spread over their splits."""

    def __init__(self, cell: Cell) -> None:
        """Read the rows."""
        task = cast("LanguageTask", load_task(cell.run.task))
        self.read = self._rows(task, "valid", READ_ROWS)
        self.scored = self._rows(task, "test", SCORED_ROWS)

    @staticmethod
    def _rows(task: LanguageTask, name: str, count: int) -> Tensor:
        names = [one for one in task.data.splits if one.startswith(name)]
        source = PackedRows(task.data.splits[names[0]], task.config.context)
        count = min(count, source.rows)
        return torch.from_numpy(source.read(np.arange(count) * (source.rows // count)))


def observe(network: LanguageModel, text: Text) -> list[LayerStatistics]:
    """Return the sums of every layer over the text."""
    draws = torch.Generator().manual_seed(SEED)
    layers = [
        LayerStatistics(block.attention, number, SEED)
        for number, block in enumerate(network.stack.blocks, start=1)
    ]
    for window in text.read[:, :-1]:
        for layer, reading in zip(layers, read_window(network, window, draws).layers, strict=True):
            layer.add(reading)
    return layers


@torch.no_grad()
def score(network: LanguageModel, text: Text) -> float:
    """Return the loss on the scored rows, in nats a token."""
    total = 0.0
    for rows in text.scored.split(64):
        logits = network(rows[:, :-1]).flatten(0, 1)
        total += float(F.cross_entropy(logits, rows[:, 1:].flatten(), reduction="sum"))
    return total / text.scored[:, 1:].numel()


def read_from_key(layer: LayerStatistics) -> tuple[Tie, ...]:
    """Return the key itself as the one tensor, and the value as its best linear map."""
    maps = make_role_maps(layer.attention)
    joint = torch.cat((maps.key.weight, maps.value.weight), dim=1)
    size = joint.shape[1] // 2
    found: list[Tie] = []
    for moments in joint @ layer.moments.covariance() @ joint.mT:
        same = torch.eye(size, dtype=moments.dtype)
        value = moments[size:, :size] @ torch.linalg.pinv(moments[:size, :size], hermitian=True)
        zero = torch.zeros_like(same)
        found.append(
            Tie(
                forecast=0.0,
                error=zero,
                reader=torch.cat((same, zero), dim=1),
                writer=torch.cat((same, value)),
            )
        )
    return tuple(found)


def measure_layers(network: LanguageModel, text: Text) -> list[Figures]:
    """Return the figures of every layer, and the loss after tying it alone."""
    loss, found = score(network, text), list[Figures]()
    for layer in observe(network, text):
        figures = {"layer": layer.number, "loss": loss, **_describe(layer.result())}
        if not figures["is_shared"]:
            mean = layer.moments.input_sum / layer.moments.tokens
            for name, ties in (("tied", layer.ties()), ("key_alone", read_from_key(layer))):
                tied = tie_layer(network, layer.number, ties, mean)
                figures[f"{name}_loss"] = score(tied, text)
        found.append(figures)
    return found


def _describe(layer: LayerAnalysis) -> Figures:
    cosines = {f"{one.first}-{one.second}": one for one in layer.cosines}
    heads = layer.key_values

    def mean(name: str) -> float:
        return sum(getattr(head, name) for head in heads) / len(heads)

    names = ("explained", "token_overlap", "similarity", "lost")
    chances = ("explained_chance", "token_chance", "similarity_chance", "lost_chance")
    return {
        "is_shared": layer.is_shared,
        "forecast": layer.fitted_forecast,
        "score_change": layer.score_change,
        **{name: mean(name) for name in (*names, *chances)},
        **{
            f"cosine_{pair}": one.flattened
            for pair, one in cosines.items()
            if one.flattened is not None
        },
        **{f"deviation_{pair}": one.deviation for pair, one in cosines.items()},
        "score_asymmetry": sum(one.score_asymmetry for one in layer.attention)
        / len(layer.attention),
    }


def tie_greedily(network: LanguageModel, text: Text) -> list[Figures]:
    """Tie one layer after the other, each time the one with the lowest forecast then."""
    begun, found, total = score(network, text), list[Figures](), 0.0
    left = set(range(1, network.config.num_layers + 1))
    while left:
        layers = {one.number: one for one in observe(network, text) if one.number in left}
        ties = {number: layer.ties() for number, layer in layers.items()}
        costs = {number: sum(tie.forecast for tie in some) for number, some in ties.items()}
        number = min(left, key=lambda one: costs[one])
        moments = layers[number].moments
        network = tie_layer(network, number, ties[number], moments.input_sum / moments.tokens)
        total += costs[number]
        left.remove(number)
        rise = score(network, text) - begun
        found.append({"layer": number, "forecast": total, "rise": rise})
    return found


def measure_run(cell: Cell, store: Store, text: Text) -> Figures:
    """Return the figures of a run's networks; what was measured before is read."""
    path = store.path / FOLDER / f"{cell.run_key}-{VERSION}.json"
    if path.exists():
        return cast("Figures", decode(path.read_bytes()))
    steps: list[Figures] = []
    greedy: list[Figures] = []
    for step in cell.kept_networks:
        folder = store.network(cell.run_key, step)
        if folder is None:
            raise UsageError(f"expected the networks of {cell.title} in {store.path}, got none")
        network = load_checkpoint(folder).network.requires_grad_(requires_grad=False)
        after = cell.run.training.steps if step is None else step
        steps += [{"step": after, **one} for one in measure_layers(network, text)]
        if step is None and not steps[-1]["is_shared"]:
            greedy = tie_greedily(network, text)
    found: Figures = {"variant": cell.variant, "seed": cell.seed, "steps": steps, "greedy": greedy}
    atomic_write_file(path, encode(found).encode())
    return found


def measure_study(study: Study, store: Store) -> Likeness:
    """Return the figures of a study whose networks are in the store."""
    torch.set_num_threads(1)
    make_directory(store.path / FOLDER)
    cells = study.cells()
    text = Text(cells[0])
    runs: list[Figures] = []
    for number, cell in enumerate(cells, start=1):
        runs.append(measure_run(cell, store, text))
        print(f"{cell.title}: measured [{number} of {len(cells)}]", flush=True)
    return Likeness(
        question=study.question,
        description=study.description,
        limits=study.limits,
        environment=machine(),
        read_tokens=text.read[:, :-1].numel(),
        scored_tokens=text.scored[:, 1:].numel(),
        runs=tuple(runs),
    )


def count_parameters(study: Study) -> dict[str, int]:
    """Return the parameters of each variant."""
    return {cell.variant: network_parameters(cell.run.network).total for cell in study.cells()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and measure what is missing, and write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", default=STUDY, help="a study, or the path of its file")
    parser.add_argument("--protocol", default=None, help="large")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of runs")
    parser.add_argument(
        "--to", type=Path, default=Path(__file__).parent, help="folder of README and tables"
    )
    given = parser.parse_args(arguments)
    study, store = load_study(given.study, given.protocol), Store(given.out)
    summary = StudyRunner(study, store, executor=LocalExecutor(given.workers), say=say).run()
    if summary.missing or summary.failed or summary.diverged:
        parser.error(f"expected all {len(study.cells())} runs, got {summary.done}")
    found = measure_study(study, store)
    figures = table_csv(figures_table(found, count_parameters(study))).encode()
    for name, data in {**likeness_files(found), "tables/figures.csv": figures}.items():
        make_directory((given.to / name).parent)
        atomic_write_file(given.to / name, data)
    print(given.to / "README.md")


if __name__ == "__main__":
    main()
