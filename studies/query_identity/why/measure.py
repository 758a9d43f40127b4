"""Runs the theorems of paper 3 on trained networks or random matrices, and writes the tables.

    python studies/query_identity/why/measure.py
    python studies/query_identity/why/measure.py --kept

Networks that are trained already are not trained again. Ranks over training come from the curves
that the kept studies have as tables, other figures from their results (``figures.py``). With
``--kept`` nothing is trained or measured: what this folder's tables have is written again.
"""

from __future__ import annotations

import argparse
import csv
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from figures import fill
from networks import STUDY
from norm_bases import NormKind, find_norm_basis, measure_linearity, measure_transfer
from torch import Tensor

from qkvary.arch.labels import format_label
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.conversions.draft import RewriteOptions
from qkvary.conversions.rewrites.absorb_skip import absorb_skip, decide_skip
from qkvary.conversions.rewriting import Rewriting, run_rewrite
from qkvary.nn.language_model import LanguageModel
from qkvary.reports.markdown import table_markdown
from qkvary.reports.tables import Cell, Column, Table, plain, table_csv
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.errors import UsageError
from qkvary.studies.results.statistics import rank_correlation
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import StudyRunner
from qkvary.studies.running.store import Store
from qkvary.text import numbers
from qkvary.text.progress_line import say

FOLDER = Path(__file__).parent
TEMPLATE = "page.template"
PARTS = (0.1, 0.25, 0.5, 0.75)
"""Shares of a training after which variants are ranked, in addition to its end."""
FEWEST_VARIANTS = 5
QUANTITY = "validation loss"


@dataclass(frozen=True, slots=True)
class Case:
    """A statement on a trained network."""

    statement: str
    """Its name in the paper."""
    setting: str
    """The network, a setting of ``networks.py``."""
    variant: str
    """Its variant."""
    rewrite: str
    """The rewrite."""
    layer: int | None = None
    """The layer, or None for all."""


CASES = (
    Case("Proposition 4.1", "one head", "QKV@alibi", "merge-query-key"),
    Case("Remark 1", "one head", "QKV@alibi", "merge-value-output"),
    Case("Proposition 4.2, and value and output", "LayerNorm", "QKV@rotary", "gauge"),
    Case("Theorem 4.1", "both skips", "QKV@rotary", "identity-query", 2),
    Case("Theorem 4.2", "attention skip", "QKV@rotary", "identity-query"),
    Case("Theorem 4.2", "attention skip", "Q-K=V@alibi", "identity-query"),
    Case("Theorem 4.2", "attention skip", "MQA@alibi", "identity-query"),
    Case("construction of Theorem 4.2, W_K", "attention skip", "QKV@rotary", "identity-key"),
    Case("construction of Theorem 4.2, W_V", "attention skip", "QKV@rotary", "identity-value"),
    Case("Theorem 4.3", "shared blocks", "QKV@rotary", "identity-query"),
    Case("reduction of +", "learned positions", "(QKV)+", "reduce-plus"),
)
"""What holds, and what is refused where practice has norms, or skips that ReLU cannot absorb."""
REFUSED = (
    Case("Theorem 4.2 behind LayerNorm", "LayerNorm", "QKV@rotary", "identity-query"),
    Case("Theorem 4.2 with both skips", "both skips", "QKV@rotary", "identity-query"),
    Case("Proposition 4.1 with four heads", "attention skip", "QKV@rotary", "merge-query-key"),
    Case("Theorem 8.3", "ReLU", "QKV@alibi", "absorb-skip"),
)


def load_network(case: Case, store: Store) -> LanguageModel:
    """Return the trained network of a case."""
    cells = (one for one in STUDY.cells() if one.setting == case.setting)
    (cell,) = (one for one in cells if one.variant == case.variant)
    folder = store.network(cell.run_key)
    if folder is None:
        raise UsageError(f"expected the network of {cell.title} in {store.path}, got none")
    return load_checkpoint(folder).network.eval()


def rewrite(case: Case, store: Store) -> Rewriting:
    """Rewrite the network of a case.

    Raises:
        UsageError: if the statement does not apply.
    """
    return run_rewrite(case.rewrite, load_network(case, store), RewriteOptions(layer=case.layer))


TITLES: Mapping[str, tuple[str, tuple[Column, ...]]] = {
    "theorems": (
        "Statements that hold, on trained networks",
        (
            Column(key="statement", title="statement", numeric=False),
            Column(key="network", title="network", numeric=False),
            Column(key="command", title="rewrite", numeric=False),
            Column(key="after", title="becomes", numeric=False),
            Column(key="parameters", title="parameters", below="fewer"),
            Column(key="condition", title="condition", below="worst"),
            Column(key="relative_float64", title="error", below="float64, relative"),
            Column(key="relative_float32", title="error", below="float32, relative"),
        ),
    ),
    "refusals": (
        "Where practice breaks them",
        (
            Column(key="statement", title="statement", numeric=False),
            Column(key="network", title="network", numeric=False),
            Column(key="command", title="rewrite", numeric=False),
            Column(key="reason", title="answer", numeric=False),
        ),
    ),
    "residuals": (
        "Statements about a block, on random matrices",
        (
            Column(key="statement", title="statement", numeric=False),
            Column(key="case", title="case", numeric=False),
            Column(key="error", title="error"),
        ),
    ),
    "rankings": (
        "Ranks of variants by validation loss: correlation with those at the end",
        (
            Column(key="study", title="study", numeric=False),
            Column(key="setting", title="setting", numeric=False),
            Column(key="variants", title="variants"),
            *(Column(key=f"after_{part:g}", title=f"after {part:.0%}") for part in PARTS),
        ),
    ),
}
"""Title and columns of each table."""
WRITERS: Mapping[str, Callable[[float], str]] = {
    "parameters": lambda value: f"{value:,.0f}",
    "condition": lambda value: f"{value:.0f}",
    "relative_float64": lambda value: f"{value:.1e}",
    "relative_float32": lambda value: f"{value:.1e}",
    "error": lambda value: f"{value:.2g}",
    "variants": lambda value: f"{value:.0f}",
    **{f"after_{part:g}": lambda value: numbers.fixed(value, 2) for part in PARTS},
}
"""How each column of figures is written."""
Raw = str | float | None


def make_table(key: str, rows: Iterable[Sequence[Raw]]) -> Table:
    """Return a table of figures and words."""
    title, columns = TITLES[key]
    cells = tuple(
        tuple(_cell(column, raw) for column, raw in zip(columns, row, strict=True)) for row in rows
    )
    return Table(key=key, title=title, columns=columns, rows=cells)


def _cell(column: Column, raw: Raw) -> Cell:
    if raw is None:
        return plain(None, numbers.MISSING if column.key.startswith("after_") else "")
    return plain(raw, WRITERS[column.key](raw)) if isinstance(raw, float | int) else plain(raw)


def read_table(key: str, folder: Path | None = None) -> Table:
    """Return a table that was written before."""
    path = (folder or FOLDER) / "tables" / f"{key}.csv"
    rows = csv.DictReader(path.read_text("utf-8").splitlines())
    return make_table(key, ([_read(*one) for one in row.items()] for row in rows))


def _read(column: str, text: str) -> Raw:
    if column not in WRITERS:
        return text
    return None if not text else int(text) if text.lstrip("-").isdecimal() else float(text)


def theorem_table(store: Store) -> Table:
    """Return what each statement leaves of the logits."""
    return make_table("theorems", (_describe(case, rewrite(case, store)) for case in CASES))


def _describe(case: Case, found: Rewriting) -> tuple[Raw, ...]:
    worst = max((one.number for one in found.conditioning), default=None)
    layer = "" if case.layer is None else f" --layer {case.layer}"
    return (
        case.statement,
        f"{case.setting}, {case.variant}",
        f"{case.rewrite}{layer}",
        format_label(found.network.config.variant),
        _count(found.original) - _count(found.network),
        worst,
        found.exact.relative,
        found.stored.relative,
    )


def _count(network: LanguageModel) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def refusal_table(store: Store) -> Table:
    """Return the reasons for which statements do not apply."""
    rows = (
        (
            case.statement,
            f"{case.setting}, {case.variant}",
            case.rewrite,
            _refusal(case, store),
        )
        for case in REFUSED
    )
    return make_table("refusals", rows)


def _refusal(case: Case, store: Store) -> str:
    try:
        rewrite(case, store)
    except UsageError as error:
        return str(error)
    raise ValueError(f"expected {case.statement} to be refused for {case.setting}, got a network")


class Residual(NamedTuple):
    """A statement about one block, and what is left of it."""

    statement: str
    case: str
    error: float


def find_residuals(
    width: int = 32, steps: int = 2_000, widths: Sequence[int] = (8, 32, 128, 512)
) -> Iterator[Residual]:
    """Yield the errors of statements about norms and ReLU networks, on random matrices."""
    draws = torch.Generator().manual_seed(0)

    def draw(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=draws, dtype=torch.float64)

    matrix, x = draw(width, width), draw(256, width)
    kinds: Mapping[NormKind, str] = {
        "layernorm": "Lemma 8.1",
        "rmsnorm": "Remark 6",
        "tanh": "Remark 6",
    }
    for kind, statement in kinds.items():
        basis = find_norm_basis(kind, matrix)
        expected = basis.normalise(x) @ basis.matrix
        found = basis.normalise(basis.transfer(x))
        error = (found - expected).abs().max() / expected.square().mean().sqrt()
        yield Residual(statement, f"phi(g(x)) = phi(x) T D, {kind}", float(error))
    for size in (8, width):
        made = measure_transfer(
            find_norm_basis("rmsnorm", draw(size, size)), d_ff=4 * size, steps=steps
        )
        yield Residual(
            "Theorem 8.2",
            f"trained network for g(x + MLP(x)), RMSNorm, {size} channels",
            made.network,
        )
        mapped = f"best linear map for g(x + MLP(x)), RMSNorm, {size} channels"
        yield Residual("Theorem 8.2", mapped, made.linear)
    yield Residual("Theorem 8.3", "skip absorbed where -W_2 P W_1 = 1", _absorb(draw, x))
    refused = sum(decide_skip(draw(24, 8), draw(8, 24)).channels is None for _ in range(100))
    yield Residual("Corollary 8.3.1", "share of 100 random networks refused", refused / 100)
    for size in widths:
        basis = find_norm_basis("rmsnorm", draw(size, size))
        mapped = f"best linear map for g, RMSNorm, {size} channels"
        yield Residual("Remark 5", mapped, measure_linearity(basis))
        unit = measure_linearity(basis, is_unit=True)
        yield Residual("Remark 5", f"{mapped}, inputs of norm 1", unit)


def _absorb(draw: Callable[[int, int], Tensor], x: Tensor) -> float:
    """Return the relative error of a network that was made so that its skip can be absorbed."""
    width = x.shape[1]
    inner = draw(width, width)
    first = torch.cat((inner, draw(5, width)))
    second = torch.cat((-torch.linalg.inv(inner), draw(width, 5)), dim=1)
    decision = decide_skip(first, second)
    if decision.channels is None:
        raise ValueError(f"expected channels that absorb the skip, got none: {decision.reason}")
    weights = absorb_skip({"up.weight": first, "down.weight": second}, decision.channels)
    expected = x + (x @ first.mT).relu() @ second.mT
    found = (x @ weights["up.weight"].mT).relu() @ weights["down.weight"].mT
    return float((found - expected).abs().max() / expected.square().mean().sqrt())


def residual_table(residuals: Iterable[Residual]) -> Table:
    """Return statements about one block."""
    return make_table("residuals", residuals)


class Ranking(NamedTuple):
    """How the ranking of variants in a setting compares with that at the end."""

    study: str
    setting: str
    variants: int
    correlations: tuple[float | None, ...]


def rank_settings(folder: Path) -> Iterator[Ranking]:
    """Yield the rank correlations of every setting of the kept studies with enough variants."""
    paths = folder.rglob("tables/curves.csv*")
    for path in sorted(paths, key=lambda one: one.parts[-3]):
        curves: dict[str, dict[str, dict[int, float]]] = {}
        opened = lzma.open if path.suffix == ".xz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["quantity"] == QUANTITY:
                    setting = curves.setdefault(row["setting"], {})
                    setting.setdefault(row["variant"], {})[int(row["step"])] = float(row["mean"])
        for setting, losses in curves.items():
            shared = set[int].intersection(*map(set, losses.values()))
            ends = {max(steps) for steps in losses.values()}
            if len(losses) >= FEWEST_VARIANTS and len(ends) == 1:
                yield Ranking(path.parts[-3], setting, len(losses), _correlate(losses, shared))


def _correlate(
    losses: Mapping[str, Mapping[int, float]], steps: set[int]
) -> tuple[float | None, ...]:
    last = max(steps)

    def at(step: int) -> list[float]:
        return [found[step] for found in losses.values()]

    nearest = [min(steps, key=lambda step: abs(step - part * last)) for part in PARTS]
    return tuple(
        rank_correlation(at(step), at(last)) if abs(step / last - part) < 0.06 else None
        for step, part in zip(nearest, PARTS, strict=True)
    )


def ranking_table(rankings: Iterable[Ranking]) -> Table:
    """Return the rank correlations with the end of each training."""
    return make_table(
        "rankings", ((one.study, one.setting, one.variants, *one.correlations) for one in rankings)
    )


def make_files(tables: Sequence[Table]) -> dict[str, bytes]:
    """Return the files of the folder: the template with tables and figures, and tables as CSV."""
    page = (FOLDER / TEMPLATE).read_text("utf-8")
    written = {table.key: table_csv(table) for table in tables}
    for table in tables:
        page = page.replace(f"{{{table.key}}}", _body(table))
    rows = {key: tuple(csv.DictReader(text.splitlines())) for key, text in written.items()}
    return {
        "README.md": fill(page, rows).encode(),
        **{f"tables/{key}.csv": text.encode() for key, text in written.items()},
    }


def _body(table: Table) -> str:
    """Return a table without its title."""
    return "\n".join(line for line in table_markdown(table).splitlines() if line.startswith("|"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, measure, and write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of runs")
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of README and tables")
    parser.add_argument("--kept", action="store_true", help="train and measure nothing")
    given = parser.parse_args(arguments)
    if given.kept:
        measured = tuple(map(read_table, ("theorems", "refusals", "residuals")))
    else:
        torch.set_num_threads(1)
        store = Store(given.out)
        StudyRunner(STUDY, store, executor=LocalExecutor(given.workers), say=say).run()
        residuals = residual_table(find_residuals())
        measured = (theorem_table(store), refusal_table(store), residuals)
    tables = (*measured, ranking_table(rank_settings(FOLDER.parents[1])))
    for name, data in make_files(tables).items():
        make_directory((given.to / name).parent)
        atomic_write_file(given.to / name, data)
    print(given.to / "README.md")


if __name__ == "__main__":
    main()
