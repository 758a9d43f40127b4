"""Figures by plain arithmetic where the printed digits alone do not confirm the cost model.

Changes are printed from inputs with few digits, and caches in units of their own. Only the printed
losses and perplexities are read from the files.
"""

import math
from collections.abc import Iterator

from qkvary.papers.tables import load_published

VARIANTS_300M = {
    # KV heads of 16, cached tensors
    "QKV": (16, 2),
    "Q=K-V": (16, 2),
    "Q-K=V": (16, 1),
    "Q=K=V": (16, 1),
    "GQA-4": (4, 2),
    "MQA": (1, 2),
    "Q-GQA-4": (4, 1),
    "Q-MQA": (1, 1),
    "(Q=K-V)+": (16, 2),
    "(Q=K=V)+": (16, 1),
}
VARIANTS_1200M = {
    "QKV": (32, 2),
    "Q-K=V": (32, 1),
    "GQA-8": (8, 2),
    "MQA": (1, 2),
    "Q-GQA-8": (8, 1),
    "Q-MQA": (1, 1),
}
Expected = Iterator[tuple[str, str, str, float]]
"""Table, row, column and the figure that follows from the paper's inputs."""


def perplexities() -> Expected:
    """Changes, differences and exponentials of losses."""
    small = load_published("three-projections-table-4")
    value = {row: small.figure(row, "validation_perplexity").value or 0.0 for row in small.rows}
    change = {row: 100 * (value[row] / value["QKV"] - 1) for row in value}
    for row in small.rows:
        for split in ("train", "validation"):
            loss = small.figure(row, f"{split}_loss").value or 0.0
            yield small.name, row, f"{split}_perplexity", math.exp(loss)
        if row != "QKV":
            yield small.name, row, "change", change[row]
    for row in ("Q-K=V", "Q=K-V", "Q=K=V"):
        yield "poster-300m", row, "change", change[row]
    for name in (
        "three-projections-table-9",
        "three-projections-table-11",
        "poster-operating-points",
    ):
        for figure in load_published(name).figures:
            if figure.column == "change" and figure.value is not None:
                yield name, figure.row, "change", change[figure.variant or ""]
    large = load_published("three-projections-table-10")
    baseline = large.figure("QKV", "perplexity").value or 0.0
    for row in large.rows:
        perplexity = large.figure(row, "perplexity").value or 0.0
        yield large.name, row, "difference", perplexity - baseline
        yield large.name, row, "change", 100 * (perplexity / baseline - 1)
        if row != "QKV":
            yield "poster-1.2b", row, "change", 100 * (perplexity / baseline - 1)


def cached() -> Expected:
    """Caches and what follows from them."""
    bytes_300m = {
        label: 20 * heads * 64 * tensors * 2 for label, (heads, tensors) in VARIANTS_300M.items()
    }
    reduction = {label: 100 * (1 - size / 81_920) for label, size in bytes_300m.items()}
    for label, size in bytes_300m.items():
        if "+" not in label:
            yield "three-projections-table-7", label, "per_token", size / 1024
            yield "three-projections-table-7", label, "at_32k", size * 32_768 / 1e9
            if label != "QKV":
                yield "three-projections-table-7", label, "reduction", reduction[label]
    for name in (
        "three-projections-table-4",
        "three-projections-table-9",
        "three-projections-table-11",
        "poster-300m",
        "poster-operating-points",
    ):
        for figure in load_published(name).figures:
            if figure.column == "cache_reduction":
                yield name, figure.row, "cache_reduction", reduction[figure.variant or ""]
    bytes_1200m = {
        label: 22 * heads * 64 * tensors * 2 for label, (heads, tensors) in VARIANTS_1200M.items()
    }
    for label, size in bytes_1200m.items():
        yield "three-projections-table-10", label, "cache", size * 32_768 / 1e6
        yield "poster-1.2b", label, "cache_reduction", 100 * (1 - size / bytes_1200m["QKV"])
        if label not in {"QKV", "MQA"}:
            reduced = 100 * (1 - size / bytes_1200m["QKV"])
            yield "poster-downstream", label, "cache_reduction", reduced


def expected() -> dict[tuple[str, str, str], float]:
    """The figures by table, row and column."""
    return {
        (name, row, column): value
        for source in (perplexities, cached)
        for name, row, column, value in source()
    }
