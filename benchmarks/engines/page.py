"""The comparison of engines as a page: lines of ``run.py`` in, a folder with a report out.

    python benchmarks/engines/page.py build/*.jsonl --to studies/ours/engines

The lines are copied into the folder. Where a case was measured twice, its last line counts; speeds
of two machines are two cases, and are compared with those of the same machine alone.
"""

import json
import statistics
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import networks
from run import LLAMA_CPP, TOLERANCE

from qkvary.arch.published_quality import BASELINE
from qkvary.reports import label_placement, svg
from qkvary.reports.files import write_report
from qkvary.reports.report import Chart, Code, Pairs, Prose, Report, Section
from qkvary.reports.tables import Cell, Column, Table, named, plain
from qkvary.reports.variant_styles import family_of, mark
from qkvary.storage.durable import make_directory, write_output
from qkvary.text import numbers
from qkvary.text.names import listed

Line = dict[str, Any]
ENGINES = ("llama.cpp", "qkvary", "transformers")
MIB = 2**20
WIDTH, HEIGHT = 460.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 360.0, 30.0, 250.0


def main() -> None:
    """Write the page."""
    write_page("run.py", make_report, {"case": "decoding", "weights": "f32"})


def write_page(
    script: str, make: Callable[[list[Line]], Report], needed: Mapping[str, str]
) -> None:
    """Write the page of the lines that the command line names, and keep the lines.

    Args:
        script: The benchmark that printed them.
        make: Returns the report of all lines.
        needed: The fields of a line without which there is no page.
    """
    parser = ArgumentParser(description=f"The lines of {script} as a page.")
    parser.add_argument("lines", nargs="+", type=Path, help=f"what {script} printed")
    parser.add_argument("--to", type=Path, required=True, help="the folder of the page")
    options = parser.parse_args()
    try:
        lines = [json.loads(one) for path in options.lines for one in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        parser.error(f"expected lines of {script}: {error}")
    if not any(needed.items() <= line.items() for line in lines):
        fields = " and ".join(f"{name} {value}" for name, value in needed.items())
        parser.error(f"expected a line with {fields} among those of {script}, got none")
    write_report(make(lines), options.to, ["html", "markdown", "csv", "svg"])
    (options.to / "report.md").replace(options.to / "README.md")
    kept = "".join(json.dumps(line) + "\n" for line in lines)
    make_directory(options.to)
    write_output(options.to / "records.jsonl", kept.encode())


def make_report(lines: list[Line]) -> Report:
    """Return the report of all lines."""
    ran = [line for line in lines if line["case"] == "environment"]
    lines = with_machines(lines)
    case = ("weights", "size", "threads", "context", "variant")
    checks = latest(lines, "logits and greedy tokens", "weights", "size", "variant")
    caches = latest(lines, "decoding", *case)
    speeds = latest(lines, "decoding", *case, "cpu")
    tables = (check_table(checks), cache_table(caches), speed_table(speeds))
    drawn, exact = single_threads_of_32_bits(caches), single_threads_of_32_bits(speeds)
    # The network with the most cases.
    sizes = [line["size"] for line in drawn]
    shown = max(sizes, key=sizes.count)
    picture = Chart(
        draw=lambda: memory_drawing([line for line in drawn if line["size"] == shown]),
        caption=f"The cache as llama.cpp reports it, {shown} parameters, float32",
        detail="Points are measured; lines join them.",
        file="memory",
    )
    return Report(
        subject="engines",
        question="What do shared keys and values gain in an engine that people have?",
        answer=answers(checks, exact),
        picture=picture,
        caveats=(
            (
                "The weights are random. Speed and memory do not depend on them; what the sharing "
                "costs in quality does."
            ),
            (
                "A rate is the reciprocal of the median CPU time of 32 decoded tokens, and the "
                "median over the rounds, in which the engines take turns; in brackets the slowest "
                "and the fastest round. CPU time is that of all threads. Other work ran on the "
                "machines. Rates of different machines are not comparable."
            ),
            (
                "llama.cpp computes a portable network by absorbed attention: each query head is "
                "multiplied with the whole latent tensor, num_kv_heads times as much as needed."
            ),
            (
                "bf16 is the type of weights and caches. With q8_0 the matrices have 8 bits, with "
                "a scale for 32 numbers in llama.cpp and for 64 here, and caches have 32 bits."
            ),
        ),
        sections=(
            Section(key="cache", title="Memory", blocks=(tables[1],)),
            Section(key="speed", title="Speed of decoding", blocks=(tables[2],)),
            Section(key="equal", title="The same network", blocks=(tables[0],)),
            Section(key="networks", title="Networks", blocks=(network_pairs(),)),
            Section(
                key="again",
                title="Run it again",
                blocks=(
                    Code(tuple(dict.fromkeys(write_command(line["options"]) for line in ran))),
                    *(Prose(text) for text in dict.fromkeys(map(describe_run, ran))),
                ),
            ),
        ),
        datasets=tables,
    )


def with_machines(lines: list[Line]) -> list[Line]:
    """Return the lines with the processor of the run that each belongs to."""
    found: list[Line] = []
    for line in lines:
        cpu = line["cpu"] if line["case"] == "environment" else found[-1]["cpu"]
        found.append({**line, "cpu": cpu})
    return found


def single_threads_of_32_bits(lines: list[Line]) -> list[Line]:
    """Return the cases that the answers and the picture are about."""
    return [line for line in lines if line["weights"] == "f32" and line["threads"] == 1]


def latest(lines: list[Line], case: str, *names: str) -> list[Line]:
    """Return the last line of each case: by machines, sizes, contexts and KV heads if named."""
    found = {tuple(one[name] for name in names): one for one in lines if one["case"] == case}
    variants, cpus = list(networks.VARIANTS), [line["cpu"] for line in lines]

    def order(line: Line) -> tuple[int, ...]:
        cpu = cpus.index(line["cpu"]) if "cpu" in names else 0
        size, variant = line["size"], line["variant"]
        places = place(size, networks.SIZES), line.get("context", 0), place(variant, variants)
        return line.get("threads", 1), cpu, *places

    return sorted(found.values(), key=order)


def place(name: str, known: Collection[str]) -> int:
    """Return the place of a name among those of this benchmark; that of a checkpoint is last."""
    return [*known, name].index(name)


def answers(checks: list[Line], speeds: list[Line]) -> tuple[str, ...]:
    """Return what the figures say: equality, memory, and the variants that are faster."""
    checks = [line for line in checks if line["weights"] == "f32"]
    worst = max(line["logits_off_by"]["llama.cpp"] for line in checks)
    texts = sum(line["equal_greedy_tokens"] > 0 for line in checks)
    sentences = [
        (
            f"Stock llama.cpp computes all {len(checks)} networks with 32-bit weights: "
            f"logits within {worst:.1e} of those in double precision, relative to the largest "
            f"(bound {TOLERANCE:.0e}), and the same greedy tokens in {texts} of {len(checks)}."
        )
    ]
    for size, cpu in dict.fromkeys((line["size"], line["cpu"]) for line in speeds):
        own = [line for line in speeds if (line["size"], line["cpu"]) == (size, cpu)]
        for context in dict.fromkeys((2048, max(line["context"] for line in own))):
            rows = {line["variant"]: line for line in own if line["context"] == context}
            if BASELINE in rows and len(rows) > 1:
                sentences.append(compare(size, context, rows))
    return (*sentences, compare_programs(speeds))


def compare_programs(speeds: list[Line]) -> str:
    """Return the range and the median of the rates of this program over those of llama.cpp."""

    def ratio(line: Line) -> float:
        return line["ours_over_llama_cpp"]

    def name(line: Line) -> str:
        behind = f"after {numbers.tokens(line['context'])}"
        return f"{line['variant']} at {line['size']} {behind} on {line['cpu']}"

    ordered = sorted(speeds, key=ratio)
    low, high = ordered[0], ordered[-1]
    return (
        f"With equal 32-bit weights on one thread, qkvary decodes at {ratio(low):.2f} "
        f"({name(low)}) to {ratio(high):.2f} ({name(high)}) times the rate of llama.cpp, median "
        f"{statistics.median(map(ratio, speeds)):.2f} of {len(speeds)} cases."
    )


def compare(size: str, context: int, rows: dict[str, Line]) -> str:
    """Return the variants' cache and rate in llama.cpp over those of the baseline."""
    base = rows[BASELINE]

    def share(line: Line, key: str) -> float:
        return line[key]["llama.cpp"] / base[key]["llama.cpp"]

    said = [
        f"{name} {numbers.percent(share(line, 'cache_mib'))} of the cache at "
        f"{share(line, 'tokens_per_cpu_second'):.2f} times the rate"
        for name, line in rows.items()
        if name != BASELINE
    ]
    return (
        f"On {base['cpu']} at {size} after {numbers.tokens(context)} tokens, over {BASELINE}: "
        f"{listed(said)}."
    )


def check_table(lines: list[Line]) -> Table:
    """Return the distances of logits."""
    columns = (
        Column(key="size", title="network", numeric=False),
        Column(key="variant", title="variant", numeric=False),
        *(Column(key=key_of(name), title=name, below="logits off by") for name in ENGINES),
        Column(key="tokens", title="equal greedy tokens"),
    )
    rows = tuple(
        (
            plain(name_of(line)),
            named(line["variant"]),
            *(cell(line["logits_off_by"].get(name), "{:.1e}") for name in ENGINES),
            plain(line["equal_greedy_tokens"]),
        )
        for line in lines
    )
    return Table(key="equality", title="Logits and greedy tokens", columns=columns, rows=rows)


def cache_table(lines: list[Line]) -> Table:
    """Return the memory of each case."""
    columns = (
        Column(key="size", title="network", numeric=False),
        Column(key="context", title="context"),
        Column(key="variant", title="variant", numeric=False),
        Column(key="says", title="llama.cpp says", numeric=False),
        *(Column(key=f"cache_{key_of(name)}", title=name, below="cache, MiB") for name in ENGINES),
        *(Column(key=f"peak_{key_of(name)}", title=name, below="peak, MiB") for name in ENGINES),
    )
    rows = tuple(
        (
            plain(name_of(line)),
            plain(line["context"], numbers.tokens(line["context"])),
            named(line["variant"]),
            plain(" ".join(line["llama_cpp_says"].split())),
            *(cell(line["cache_mib"].get(name), "{:.1f}") for name in ENGINES),
            *(cell(line["peak_mib"].get(name)) for name in ENGINES),
        )
        for line in lines
        if line["threads"] == 1
    )
    return Table(key="memory", title="Cache and peak memory", columns=columns, rows=rows)


def speed_table(lines: list[Line]) -> Table:
    """Return tokens per CPU second."""
    columns = (
        Column(key="threads", title="threads"),
        Column(key="machine", title="machine", numeric=False),
        Column(key="size", title="network", numeric=False),
        Column(key="context", title="context"),
        Column(key="variant", title="variant", numeric=False),
        *(Column(key=key_of(name), title=name, below="tokens a CPU second") for name in ENGINES),
        Column(key="ratio", title="qkvary / llama.cpp"),
        Column(key="rounds", title="rounds"),
    )
    rows = tuple(
        (
            plain(line["threads"]),
            plain(line["cpu"]),
            plain(name_of(line)),
            plain(line["context"], numbers.tokens(line["context"])),
            named(line["variant"]),
            *(
                cell(line["tokens_per_cpu_second"].get(name), write_rate(line, name))
                for name in ENGINES
            ),
            plain(line["ours_over_llama_cpp"], f"{line['ours_over_llama_cpp']:.2f}"),
            plain(line["rounds"]),
        )
        for line in lines
    )
    return Table(key="speed", title="Decoded tokens", columns=columns, rows=rows)


def write_rate(line: Line, name: str) -> str:
    """Return the format of a rate with its slowest and fastest round."""
    low, high = line["slowest_and_fastest"].get(name, (0, 0))
    return "{:.1f}" if low == high else f"{{:.1f}} ({low:.1f} to {high:.1f})"


def name_of(line: Line) -> str:
    """Return the network of a line, with its weights unless they have 32 bits."""
    return line["size"] if line["weights"] == "f32" else f"{line['size']}, {line['weights']}"


def cell(value: float | None, form: str = "{}") -> Cell:
    """Return a figure, or a dash for an engine that was not measured."""
    return plain(value, "–" if value is None else form.format(value))


def key_of(engine: str) -> str:
    """Return the name of an engine as a column's."""
    return engine.replace(".", "_")


def network_pairs() -> Pairs:
    """Return what the names of networks and variants mean."""
    sizes = (
        (
            name,
            (
                f"width {size['d_model']}, {size['num_layers']} layers, {size['num_heads']} heads, "
                f"vocabulary {size['vocabulary']:,}, SwiGLU "
                f"{networks.make_config(name, BASELINE, 64).block.d_ff:,}"
            ),
        )
        for name, size in networks.SIZES.items()
    )
    variants = (
        (name, label if "@decoupled" in label else f"{label}, whole heads rotate")
        for name, label in networks.VARIANTS.items()
    )
    return Pairs((*sizes, *variants))


def write_command(options: dict[str, Any]) -> str:
    """Return the command of a run."""
    words = ["python benchmarks/engines/run.py --env build/llama.cpp"]
    for name, value in options.items():
        if value is not False:
            given = [] if value is True else value if isinstance(value, list) else [value]
            words.append(" ".join([f"--{name.replace('_', '-')}", *map(str, given)]))
    return " ".join(words)


def describe_run(line: Line) -> str:
    """Return the machine and the versions of a run."""
    return (
        f"Commit {line['commit']}, {line['cpu']}, {line['cpu_count']} cores, {line['platform']}, "
        f"Python {line['python']}, torch {line['torch']}, transformers {line['transformers']}, "
        f"{line.get('llama_cpp', LLAMA_CPP)}. Seed 0 of the weights."
    )


def memory_drawing(lines: list[Line]) -> svg.Drawing:
    """Draw the cache of llama.cpp against the context, a line for each variant."""
    found: dict[str, list[svg.Point]] = {}
    for line in lines:
        points = found.setdefault(line["variant"], [])
        points.append((float(line["context"]), line["cache_mib"]["llama.cpp"]))
    held = [value for points in found.values() for _, value in points]
    contexts = [x for points in found.values() for x, _ in points]
    low, high = svg.padded(held, logarithmic=True)
    up = svg.Scale(low=low, high=high, start=BOTTOM, end=TOP, logarithmic=True)
    across = svg.Scale(
        low=min(contexts), high=max(contexts), start=LEFT, end=RIGHT, logarithmic=True, binary=True
    )
    parts = [
        svg.y_axis(up, LEFT, RIGHT, numbers.tick, 6),
        svg.x_axis(across, BOTTOM, numbers.tokens, 6),
        svg.text(8, 15, "cache, MiB", "axis-title"),
        svg.text(RIGHT, HEIGHT - 10, "context in tokens (1k = 1,024)", "axis-title end"),
    ]
    names = sorted(found, key=lambda name: -found[name][-1][1])
    ends = label_placement.stack([(up(found[name][-1][1]), 16.0) for name in names], TOP, BOTTOM)
    for name, y in zip(names, ends, strict=True):
        family = family_of(name if name != "MLA" else "Q-K=V@latent-128", BASELINE)
        points = [(across(x), up(value)) for x, value in found[name]]
        parts.append(svg.path(points, f"curve f-{family.key}"))
        parts += [mark(family, x, at, 4) for x, at in points]
        parts.append(svg.text(RIGHT + 12, y + 4, name, f"name t-{family.key}"))
    said = "; ".join(
        f"{name} {', '.join(f'{value:g} MiB at {x:g}' for x, value in found[name])}"
        for name in names
    )
    return svg.Drawing(
        width=WIDTH,
        height=HEIGHT,
        title="Cache of llama.cpp against context",
        description=f"{said}.",
        parts=tuple(parts),
    )


if __name__ == "__main__":
    main()
