"""The papers' figures by plain arithmetic, which shares no code with the cost model.

Only the printed inputs (accuracies, losses, perplexities) are read from the files.
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


def averages() -> Expected:
    """Averages over a row."""
    five = ("reverse", "sort", "sub", "swap", "copy")
    vision = ("mnist", "fashion_mnist", "cifar10", "cifar100", "anomaly")
    for name, columns in (
        ("three-projections-table-2", five),
        ("key-value-table-2", five),
        ("key-value-notebook-synthetic", five),
        ("three-projections-table-3", vision),
        ("key-value-table-3", vision),
    ):
        table = load_published(name)
        for row in table.rows:
            values = [table.figure(row, column).value for column in columns]
            yield name, row, "average", math.fsum(value or 0.0 for value in values) / len(columns)


def notebooks() -> Expected:
    """What the notebook stores for figures that the tables print; means over runs and settings."""
    stored = load_published("key-value-notebook-synthetic")
    for row, label in (("QKV", "QKV"), ("KV+Pos", "(Q=K-V)+"), ("KV", "Q=K-V")):
        for task in ("reverse", "sort", "sub", "swap", "copy"):
            value = stored.figure(label, task).value or 0.0
            yield "three-projections-table-2", label, task, value
            yield "key-value-table-2", row, task, value
    for name, mean, runs in (
        ("key-value-notebook-characters", "validation", "validation_run_"),
        ("key-value-notebook-characters-1000", "early", "early_run_"),
    ):
        table = load_published(name)
        for row in table.rows:
            values = [table.figure(row, f"{runs}{run}").value or 0.0 for run in (0, 1)]
            yield name, row, mean, sum(values) / 2
    table = load_published("key-value-notebook-numbers")
    for row in table.rows:
        for quantity in ("loss", "accuracy"):
            values = [
                table.figure(row, f"{quantity}_{rate}_{length}").value or 0.0
                for rate in ("1e-3", "1e-4")
                for length in (16, 32, 64, 128)
            ]
            yield table.name, row, f"{quantity}_mean", sum(values) / 8


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


def parameters(
    layers: int, d: int, ff: int, positions: int, projections: float, *, bias: bool = True
) -> dict[str, int]:
    """Parameters of a GPT with tied head; ``projections`` counts d x d matrices with the output."""
    extra = 1 if bias else 0
    parts = {
        "Embedding": (50_304 + positions) * d,
        "Attention": round(layers * projections * (d * d + extra * d)),
        "MLP": layers * (2 * d * ff + extra * (ff + d)),
        "LayerNorm": (2 * layers + 1) * (1 + extra) * d,
    }
    return {**parts, "Total": sum(parts.values())}


def counted() -> Expected:
    """Parameters."""
    sizes = [parameters(20, 1024, 4096, 2048, count + 1) for count in (3, 2, 1)]
    for part in sizes[0]:
        for column, size in zip(("three", "two", "one"), sizes, strict=True):
            yield "three-projections-table-5", part, column, size[part] / 1e6
        for column, size in zip(("change_two", "change_one"), sizes[1:], strict=True):
            change = 100 * (size[part] / sizes[0][part] - 1)
            yield "three-projections-table-5", part, column, change
    for label, (heads, tensors) in VARIANTS_1200M.items():
        size = parameters(22, 2048, 8192, 2048, 2 + tensors * heads / 32)
        yield "three-projections-table-10", label, "parameters", size["Total"] / 1e6
        yield "three-projections-table-10", label, "attention", size["Attention"] / 1e6
    for row, d, ff, projections in (
        ("Baseline (124M)", 768, 3072, 4),
        ("Baseline, smaller MLP (117M)", 768, 2688, 4),
        ("Baseline, smaller d (118M)", 744, 2976, 4),
        ("Reduced (117M)", 768, 3072, 3),
        ("Reduced, larger MLP (124M)", 768, 3456, 3),
    ):
        size = parameters(12, d, ff, 1024, projections, bias=False)
        yield "query-identity-table-2", row, "parameters", size["Total"] / 1e6
        rest = size["Total"] - size["Embedding"]
        yield "query-identity-table-2", row, "non_embedding", rest / 1e6


def macs(length: int, projections: int) -> dict[str, int]:
    """MACs of one sequence in the 300M model, with the full score map."""
    d, ff, layers = 1024, 4096, 20
    parts = {
        "Attention": layers * ((projections + 1) * length * d * d + 2 * length * length * d),
        "MLP": layers * 2 * length * d * ff,
        "LM head": length * d * 50_304,
    }
    return {**parts, "Total": sum(parts.values())}


def worked() -> Expected:
    """MACs."""
    for length in (128, 512, 1024, 2048, 4096):
        work = [macs(length, count) for count in (3, 2, 1)]
        row = f"{length} tokens"
        for column, one in zip(("three", "two", "one"), work, strict=True):
            share = 100 * one["Attention"] / one["Total"]
            yield "three-projections-table-8", row, column, share
            if length == 2048:
                for part, amount in one.items():
                    yield "three-projections-table-6", part, column, amount / 1e9
        for column, one in zip(("two", "one"), work[1:], strict=True):
            saving = 100 * (one["Total"] / work[0]["Total"] - 1)
            yield "three-projections-table-8", row, f"saving_{column}", saving
            if length == 2048:
                for part, amount in one.items():
                    change = 100 * (amount / work[0][part] - 1)
                    yield "three-projections-table-6", part, f"change_{column}", change


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
    """Every figure that is a number and follows from something."""
    sources = (
        averages,
        notebooks,
        perplexities,
        counted,
        worked,
        cached,
    )
    return {
        (name, row, column): value for source in sources for name, row, column, value in source()
    }
