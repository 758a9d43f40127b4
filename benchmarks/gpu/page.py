"""The page of what a GPU measured: records of ``run.py`` in, a folder with a report out.

    python benchmarks/gpu/page.py runs/gpu/records.jsonl --to studies/ours/gpu

The records are copied into the folder. Where a case was measured twice, its last line counts; cards
are told apart.
"""

import json
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from records import read_lines

from qkvary.arch.published_quality import BASELINE
from qkvary.papers.tables import load_published
from qkvary.reports import label_placement, svg
from qkvary.reports.files import write_report
from qkvary.reports.report import Chart, Code, Prose, Report, Section
from qkvary.reports.tables import Cell, Column, Table, named, plain
from qkvary.reports.variant_styles import family_of, mark
from qkvary.storage.durable import make_directory, write_output
from qkvary.studies.published_tables import PublishedFigure
from qkvary.text import numbers
from qkvary.text.names import listed

Line = dict[str, Any]
GIB = 2**30
SHAPES = {"lm-1.2b": "1.2B", "lm-300m": "300M"}
SHOWN = ("lm-1.2b", 8, 8_192)
"""Network, batch and context of the picture."""
WIDTH, HEIGHT = 460.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 400.0, 30.0, 250.0


def main() -> None:
    """Write the page."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+", type=Path, help="what run.py wrote")
    parser.add_argument("--to", type=Path, required=True, help="the folder of the page")
    options = parser.parse_args()
    lines = with_cards(line for path in options.records for line in read_lines(path))
    if not any(line["part"] == "decoding" for line in lines):
        parser.error("expected records of run.py with a decoding, got none")
    report = make_report(lines)
    write_report(report, options.to, ["html", "markdown", "csv", "svg"])
    (options.to / "report.md").replace(options.to / "README.md")
    make_directory(options.to)
    kept = "".join(json.dumps(line) + "\n" for line in lines)
    write_output(options.to / "records.jsonl", kept.encode())


def with_cards(lines: Iterable[Line]) -> list[Line]:
    """Return the lines of GPUs, each with the card and the commit of the run it belongs to."""
    found: list[Line] = []
    card = commit = ""
    for line in lines:
        if line["part"] == "environment":
            card, commit = line.get("gpu", ""), line["commit"]
        if card:
            found.append({"gpu": card, "commit": commit, **line})
    return found


def latest(lines: Sequence[Line], part: str, *names: str) -> list[Line]:
    """Return the last line of each case, in the order in which cases first came."""
    found: dict[tuple[object, ...], Line] = {}
    for line in lines:
        if line["part"] == part:
            found[tuple(line.get(name) for name in ("gpu", *names))] = line
    return list(found.values())


def fastest_reading(lines: Sequence[Line]) -> dict[str, float]:
    """Return the highest measured rate of each card's memory, in bytes a second."""
    rates: dict[str, float] = {}
    for line in lines:
        if line["part"] == "reading":
            rates[line["gpu"]] = max(line["bytes_per_second"], rates.get(line["gpu"], 0.0))
    return rates


def with_share(decoding: list[Line], rates: dict[str, float]) -> list[Line]:
    """Return cases with the share of the memory's rate at which their bytes are read."""

    def share(line: Line) -> float | None:
        if not line["fits"] or line["gpu"] not in rates:
            return None
        steps = line["tokens_per_second"] / line["batch"]
        return line["read_bytes_per_step"] * steps / rates[line["gpu"]]

    return [{**line, "share_of_reading": share(line)} for line in decoding]


def make_report(lines: list[Line]) -> Report:
    """Return the report of all lines."""
    rates = fastest_reading(lines)
    decoding = with_share(latest(lines, "decoding", "shape", "variant", "batch", "context"), rates)
    training = latest(lines, "training", "network", "variant", "precision", "compile")
    cuts = latest(lines, "cuts", "case", "form", "mask")
    tables = (
        decoding_table(decoding),
        training_table(training),
        cut_table(cuts, rates),
        test_table(lines),
    )
    shape, batch, context = SHOWN
    shown = [
        line
        for line in decoding
        if (line["shape"], line["batch"], line["context"]) == SHOWN and line["fits"]
    ]
    last = [line for line in shown if line["gpu"] == shown[-1]["gpu"]]
    picture = Chart(
        draw=lambda: drawing(last),
        caption=(
            f"Decoding {SHAPES[shape]}, {batch} sequences with {numbers.tokens(context)} tokens "
            f"each, bfloat16, {last[0]['gpu']}"
        ),
        detail="Measured; random weights.",
        file="decoding",
    )
    return Report(
        subject="GPU",
        question="What do shared projections gain on a GPU?",
        answer=answers(decoding, training),
        picture=picture,
        caveats=(
            (
                "Weights and cached entries are random: speed and memory do not depend on them. "
                "What sharing costs in quality is not measured here."
            ),
            (
                "A rate is the median over five rounds of 16 greedy steps, in brackets the slowest "
                "round where it is more than 5 % slower. Peak memory is that of torch's allocator "
                "while decoding, with the weights of this network alone."
            ),
            "The memory's rate is the highest that was measured on a card of the same name.",
            (
                "The poster measured on an A100 and names neither batch nor context; its figures "
                "stand next to ours as they are printed."
            ),
        ),
        sections=(
            Section(key="decoding", title="Decoding", blocks=(tables[0],)),
            Section(key="training", title="Training", blocks=(tables[1],)),
            Section(key="cuts", title="Attention of one query", blocks=(tables[2],)),
            Section(key="tests", title="Tests on the card", blocks=(tables[3],)),
            Section(
                key="again",
                title="Run it again",
                blocks=(Code(("make gpu",)), *map(Prose, describe_runs(lines))),
            ),
        ),
        datasets=tables,
    )


def answers(decoding: list[Line], training: list[Line]) -> tuple[str, ...]:
    """Return what the figures say: throughput and memory of Q-K=V, and all that is smaller."""
    said: list[str] = []
    published = load_published("poster-measured").figures
    for gpu, shape in dict.fromkeys((line["gpu"], line["shape"]) for line in decoding):
        own = [line for line in decoding if (line["gpu"], line["shape"]) == (gpu, shape)]
        gains = sorted(compare(own, "Q-K=V"))
        if gains:
            low, high = gains[0], gains[-1]
            memory = sorted(compare(own, "Q-K=V", "peak_bytes"))
            said.append(
                f"{gpu}, {SHAPES[shape]}: Q-K=V decodes at {low:.2f} to {high:.2f} times the "
                f"rate of QKV with {memory[0]:.2f} to {memory[-1]:.2f} times its peak memory, "
                f"over {len(gains)} batches and contexts"
                + (
                    f" (printed in the poster: throughput {printed(published, 'throughput')}, peak "
                    f"memory {printed(published, 'memory')})."
                    if shape == "lm-1.2b"
                    else "."
                )
            )
        refused = [line for line in own if not line["fits"]]
        if refused:
            names = [
                f"{line['variant']} ({numbers.tokens(line['context'])} x {line['batch']})"
                for line in refused
            ]
            said.append(f"{gpu}, {SHAPES[shape]}: not enough memory for {listed(names)}.")
    language = [line for line in training if line["unit"] == "tokens"]
    if language:
        best = max(language, key=lambda line: line["share_of_data_sheet"] or 0)
        said.append(
            f"Training 300M reaches {numbers.percent(best['share_of_data_sheet'])} of the data "
            f"sheet's rate at best ({describe(best)}, {best['gpu']})."
        )
    return tuple(said)


def printed(figures: Sequence[PublishedFigure], what: str) -> str:
    """Return the two printed ends of a figure of the poster."""
    return " to ".join(dict.fromkeys(one.printed for one in figures if what in one.row))


def compare(lines: list[Line], variant: str, key: str = "tokens_per_second") -> list[float]:
    """Return the figure of a variant over that of the baseline wherever both were measured."""
    by = {(one["variant"], one["batch"], one["context"]): one for one in lines if one["fits"]}
    places = dict.fromkeys((one["batch"], one["context"]) for one in lines)
    pairs = ((by.get((variant, *at)), by.get((BASELINE, *at))) for at in places)
    return [one[key] / other[key] for one, other in pairs if one and other]


def decoding_table(lines: list[Line]) -> Table:
    """Return every case of decoding."""
    columns = (
        Column(key="gpu", title="card", numeric=False),
        Column(key="network", title="network", numeric=False),
        Column(key="context", title="context"),
        Column(key="batch", title="batch"),
        Column(key="variant", title="variant", numeric=False),
        Column(key="tokens_per_second", title="tokens a second"),
        Column(key="over_qkv", title="over QKV"),
        Column(key="peak_gib", title="peak memory, GiB"),
        Column(key="cache_gib", title="cache, GiB"),
        Column(key="share", title="share of the memory's rate"),
    )
    base = {
        (line["gpu"], line["shape"], line["context"], line["batch"]): line
        for line in lines
        if line["variant"] == BASELINE and line["fits"]
    }
    rows: list[tuple[Cell, ...]] = []
    for line in lines:
        head = (
            plain(line["gpu"]),
            plain(SHAPES.get(line["shape"], line["shape"])),
            plain(line["context"], numbers.tokens(line["context"])),
            plain(line["batch"]),
            named(line["variant"]),
        )
        if not line["fits"]:
            needed = line["read_bytes_per_step"] / GIB
            texts = ("does not fit", "–", f"needs {needed:.1f}", "–", "–")
            rows.append((*head, *(plain(None, text) for text in texts)))
            continue
        other = base.get((line["gpu"], line["shape"], line["context"], line["batch"]))
        ratio = line["tokens_per_second"] / other["tokens_per_second"] if other else None
        share = line.get("share_of_reading")
        rows.append(
            (
                *head,
                plain(line["tokens_per_second"], write_rate(line)),
                plain(ratio, "–" if ratio is None else f"{ratio:.2f}"),
                plain(line["peak_bytes"] / GIB, f"{line['peak_bytes'] / GIB:.2f}"),
                plain(line["cache_bytes"] / GIB, f"{line['cache_bytes'] / GIB:.3g}"),
                plain(share, "–" if share is None else f"{share:.2f}"),
            )
        )
    return Table(key="decoding", title="Decoding", columns=columns, rows=tuple(rows))


def write_rate(line: Line) -> str:
    """Return a rate, with its slowest round where that is another."""
    rate, slowest = line["tokens_per_second"], line["slowest"]
    return f"{rate:,.0f}" + (f" ({slowest:,.0f})" if slowest < 0.95 * rate else "")


def describe(line: Line) -> str:
    """Return how a network was trained."""
    return f"{line['variant']}, {line['precision']}" + (", compiled" if line["compile"] else "")


def training_table(lines: list[Line]) -> Table:
    """Return every case of training, next to the rates of table 4."""
    columns = (
        Column(key="gpu", title="card", numeric=False),
        Column(key="network", title="network", numeric=False),
        Column(key="precision", title="precision", numeric=False),
        Column(key="variant", title="variant", numeric=False),
        Column(key="rate", title="a second"),
        Column(key="over_qkv", title="over QKV"),
        Column(key="published", title="published, over QKV"),
        Column(key="share", title="of the data sheet"),
        Column(key="peak_gib", title="peak memory, GiB"),
    )
    figures = load_published("three-projections-table-4").figures
    speeds = {one.row: one.value for one in figures if one.column == "tokens_per_second"}
    rows: list[tuple[Cell, ...]] = []
    for line in lines:
        own = [
            one
            for one in lines
            if one["variant"] == BASELINE
            and all(one[key] == line[key] for key in ("gpu", "network", "precision", "compile"))
        ]
        ratio = line["per_second"] / own[0]["per_second"] if own else None
        printed_rate = None
        if line["network"] == "lm-300m" and line["variant"] in speeds:
            printed_rate = speeds[line["variant"]] / speeds[BASELINE]
        rows.append(
            (
                plain(line["gpu"]),
                plain(line["network"]),
                plain(line["precision"] + (", compiled" if line["compile"] else "")),
                named(line["variant"]),
                plain(line["per_second"], f"{line['per_second']:,.0f} {line['unit']}"),
                plain(ratio, "–" if ratio is None else f"{ratio:.3f}"),
                plain(printed_rate, "–" if printed_rate is None else f"{printed_rate:.3f}"),
                plain(line["share_of_data_sheet"], f"{line['share_of_data_sheet']:.3f}"),
                plain(line["peak_bytes"] / GIB, f"{line['peak_bytes'] / GIB:.1f}"),
            )
        )
    return Table(key="training", title="Training steps", columns=columns, rows=tuple(rows))


def cut_table(lines: list[Line], rates: dict[str, float]) -> Table:
    """Return the rates of one attention call by kernel, as shares of the rate of a copy."""
    cases = list(dict.fromkeys(line["case"] for line in lines))
    columns = (
        Column(key="gpu", title="card", numeric=False),
        Column(key="form", title="kernel", numeric=False),
        Column(key="mask", title="mask", numeric=False),
        *(
            Column(key=f"case_{number}", title=case, below="share of a copy's rate")
            for number, case in enumerate(cases)
        ),
    )
    found: dict[tuple[str, str, bool], dict[str, float]] = {}
    for line in lines:
        if line["gpu"] in rates:
            key = (line["gpu"], line["form"], line["mask"])
            share = line["bytes_per_second"] / rates[line["gpu"]]
            found.setdefault(key, {})[line["case"]] = share
    rows = tuple(
        (
            plain(gpu),
            plain(form),
            plain("yes" if mask else "no"),
            *(plain(row.get(case), f"{row[case]:.2f}" if case in row else "–") for case in cases),
        )
        for (gpu, form, mask), row in sorted(found.items(), key=lambda one: -max(one[1].values()))
    )
    return Table(key="cuts", title="One query over a context", columns=columns, rows=rows)


def test_table(lines: list[Line]) -> Table:
    """Return how many tests ran."""
    columns = (
        Column(key="gpu", title="card", numeric=False),
        Column(key="commit", title="commit", numeric=False),
        Column(key="passed", title="passed"),
        Column(key="failed", title="failed"),
        Column(key="not_run", title="not run in time"),
        Column(key="names", title="what failed", numeric=False),
    )
    rows = tuple(
        (
            plain(line["gpu"]),
            plain(line["commit"]),
            plain(line["passed"]),
            plain(len(line["failed"])),
            plain(line.get("not_run", 0)),
            plain(summarize(line["failed"])),
        )
        for line in lines
        if line["part"] == "tests" and line["passed"]
    )
    return Table(key="tests", title="Tests marked gpu", columns=columns, rows=rows)


def summarize(names: Sequence[str]) -> str:
    """Return the tests that failed, each with the number of its cases."""
    tests = [name.partition("[")[0].rpartition("::")[2] for name in names]
    return ", ".join(f"{name} ({tests.count(name)})" for name in dict.fromkeys(tests)) or "–"


def describe_runs(lines: list[Line]) -> list[str]:
    """Return the machines and versions, each once."""
    said = (
        f"{line['gpu']} ({line['gpu_bytes'] / GIB:.0f} GiB), commit {line['commit']}, Python "
        f"{line['python']}, torch {line['torch']}, CUDA {line['cuda']}, Triton {line['triton']}, "
        f"{line['cpu']}, {line['at'][:10]}."
        for line in lines
        if line["part"] == "environment"
    )
    return list(dict.fromkeys(said))


def drawing(lines: list[Line]) -> svg.Drawing:
    """Draw tokens a second against peak memory, a point for each variant."""
    across = svg.Scale(
        low=0.0, high=1.1 * max(line["peak_bytes"] / GIB for line in lines), start=LEFT, end=RIGHT
    )
    up = svg.Scale(
        low=0.0,
        high=1.1 * max(line["tokens_per_second"] for line in lines),
        start=BOTTOM,
        end=TOP,
    )
    parts = [
        svg.y_axis(up, LEFT, RIGHT, numbers.tick, 6),
        svg.x_axis(across, BOTTOM, numbers.tick, 6),
        svg.text(8, 15, "tokens a second", "axis-title"),
        svg.text(RIGHT, HEIGHT - 10, "peak memory, GiB", "axis-title end"),
    ]
    ordered = sorted(lines, key=lambda line: -line["tokens_per_second"])
    heights = label_placement.stack(
        [(up(line["tokens_per_second"]), 14.0) for line in ordered], TOP, BOTTOM
    )
    for line, y in zip(ordered, heights, strict=True):
        family = family_of(line["variant"], BASELINE)
        x = across(line["peak_bytes"] / GIB)
        parts.append(mark(family, x, up(line["tokens_per_second"]), 5))
        parts.append(svg.text(x + 10, y + 4, line["variant"], f"name t-{family.key}"))
    said = "; ".join(
        f"{line['variant']} {line['tokens_per_second']:,.0f} at {line['peak_bytes'] / GIB:.1f} GiB"
        for line in ordered
    )
    return svg.Drawing(
        width=WIDTH,
        height=HEIGHT,
        title="Tokens a second against peak memory",
        description=f"{said}.",
        parts=tuple(parts),
    )


if __name__ == "__main__":
    main()
