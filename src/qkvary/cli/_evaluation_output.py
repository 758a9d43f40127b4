"""The printed form of an evaluation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from qkvary.cli._output import printable
from qkvary.reports.terminal import print_rows
from qkvary.text.names import count
from qkvary.text.numbers import MISSING, fixed

_NUMBERS = (("loss", "right"), ("perplexity", "right"), ("bits", "right"))


def print_evaluation(screen: Console, document: Mapping[str, Any]) -> None:
    """Print the measurements: a text, lengths, tasks.

    Args:
        screen: The console.
        document: The document that ``--json`` prints.
    """
    if "text" in document:
        _print_text(screen, document)
    if "lengths" in document:
        _print_lengths(screen, document["lengths"], document["made_for"])
    if "tasks" in document:
        _print_tasks(screen, document)


def _print_text(screen: Console, document: Mapping[str, Any]) -> None:
    text, protocol = document["text"], document["protocol"]
    documents = count(text["documents"], "document")
    read = "one after the other" if protocol.joined else "each by itself"
    windows = count(text["windows"], "window")
    said = (
        f"{', '.join(document['data'])}: {documents} {read}, {text['tokens']:,} tokens or "
        f"{text['text_bytes']:,} bytes, from {windows} of {protocol.context:,} tokens, "
        f"{protocol.stride:,} ahead of each other"
    )
    screen.print(Text(printable(said), style="dim"))
    rows = [
        (
            "per real token",
            f"{_loss(text['loss'])}{_error(text['loss_error'])}",
            _number(text["perplexity"]),
            _loss(text["loss"] / math.log(2)),
        ),
        (
            "per byte",
            _loss(text["bits_per_byte"] * math.log(2)),
            _number(text["byte_perplexity"]),
            _loss(text["bits_per_byte"]),
        ),
    ]
    if "paper" in document:
        rows += _list_paper(document["paper"])
    print_rows(screen, (("", "left"), *_NUMBERS), rows)
    if "paper" in document:
        paper = document["paper"]
        note = (
            f"as the papers count: {count(paper['rows'], 'document')} of {protocol.context:,} "
            f"targets, of which {100 * paper['real_share']:.1f} % are text and the others padding"
        )
        screen.print(Text(note, style="dim"))


def _list_paper(paper: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    names = {"loss": "as the papers count", "real_loss": "  its text", "pad_loss": "  its padding"}
    for name, said in names.items():
        loss = paper[name]
        if math.isfinite(loss):
            yield said, _loss(loss), _number(math.exp(min(loss, 700))), _loss(loss / math.log(2))


def _print_lengths(screen: Console, lengths: Sequence[Mapping[str, Any]], made_for: int) -> None:
    longest = max(lengths, key=lambda row: row["length"])
    columns = [("perplexity at", "left")]
    columns += [(f"{row['length']:,}{'*' if row['beyond'] else ''}", "right") for row in lengths]
    rows = [
        (
            f"{bucket['first']:,}-{bucket['last']:,}",
            *(_bucket(row["buckets"], index) for row in lengths),
        )
        for index, bucket in enumerate(longest["buckets"])
    ]
    rows.append(("all positions", *(_number(row["perplexity"]) for row in lengths)))
    screen.print()
    print_rows(screen, columns, rows)
    note = f"the same {longest['tokens']:,} tokens, from windows of the lengths above"
    if any(row["beyond"] for row in lengths):
        note += f"; * more than the {made_for:,} that the network was made for"
    screen.print(Text(note, style="dim"))


def _bucket(buckets: Sequence[Mapping[str, Any]], index: int) -> str:
    if index >= len(buckets) or not buckets[index]["tokens"]:
        return MISSING
    return _number(math.exp(min(buckets[index]["loss"], 700)))


def _print_tasks(screen: Console, document: Mapping[str, Any]) -> None:
    columns = (
        ("task", "left"),
        ("shots", "right"),
        ("questions", "right"),
        ("accuracy %", "right"),
        ("chance", "right"),
        ("from chance", "right"),
        ("by length %", "right"),
        ("from chance ", "right"),
        ("cut", "right"),
    )
    tasks: Mapping[str, Mapping[str, Any]] = document["tasks"]
    rows = [
        (
            name,
            str(task["fewshot"]),
            f"{task['documents']:,}",
            *_list_shares(task["accuracy"], task["normalised"]),
            f"{100 * task['cut_prompts']:.0f} %",
        )
        for name, task in tasks.items()
    ]
    mean = document["mean_of_five"]
    if mean is not None:
        shares = _list_shares(mean["accuracy"], mean["normalised"])
        rows.append(("mean of five", "", "", *shares, ""))
    screen.print()
    print_rows(screen, columns, rows)
    if document["against"] is not None:
        _print_contamination(screen, tasks)
    for name, task in tasks.items():
        if task["perplexity"] is not None:
            screen.print(Text(f"{name}: perplexity of the last word {_number(task['perplexity'])}"))
    for sentence in _explain(document):
        screen.print(Text(printable(sentence), style="dim"))


def _print_contamination(screen: Console, tasks: Mapping[str, Mapping[str, Any]]) -> None:
    columns = (
        ("task", "left"),
        ("questions", "right"),
        ("shared", "right"),
        ("others", "right"),
        ("accuracy %", "right"),
        ("chance", "right"),
        ("from chance", "right"),
        ("by length %", "right"),
        ("from chance ", "right"),
    )
    rows: list[tuple[str, ...]] = []
    for name, task in tasks.items():
        found = task["contamination"]
        others = found["questions"] - found["shared"]
        shares = (MISSING,) * 5
        if found["accuracy"] is not None:
            shares = _list_shares(found["accuracy"], found["normalised"])
        counts = (f"{count:,}" for count in (found["questions"], found["shared"], others))
        rows.append((name, *counts, *shares))
    screen.print()
    print_rows(screen, columns, rows)


def _explain(document: Mapping[str, Any]) -> Iterator[str]:
    tasks: Mapping[str, Mapping[str, Any]] = document["tasks"]
    yield (
        f"lm-eval {document['lm_eval']}; ± one standard error (SE) over questions; "
        "chance: guessing; by length: the choice of the highest log-probability per character"
    )
    same = [name for name, task in tasks.items() if task["shots_from"] == task["evaluated"]]
    if same:
        yield (
            f"solved examples of {', '.join(same)} are other questions of the file that is "
            "evaluated: there is no training file"
        )
    against = document["against"]
    if against is not None:
        yield (
            f"shared: {against['words_in_a_row']} words in a row of a question with its right "
            f"answer, or all of a shorter one, occur in one of the "
            f"{count(against['documents'], 'document')} for training of {against['data']}; this "
            "table is of the other questions"
        )
    if any(task["cut_prompts"] for task in tasks.values()):
        yield "cut: prompts longer than the network reads, which lost solved examples on the left"


def _list_shares(
    accuracy: Mapping[str, Any], normalised: Mapping[str, Any] | None
) -> tuple[str, str, str, str, str]:
    chance = accuracy["chance"]
    return (
        _share(accuracy),
        MISSING if chance is None else f"{100 * chance:.1f}",
        _distance(accuracy),
        MISSING if normalised is None else _share(normalised),
        MISSING if normalised is None else _distance(normalised),
    )


def _share(share: Mapping[str, Any]) -> str:
    return f"{100 * share['value']:.2f}{_error(100 * share['error'], digits=2)}"


def _distance(share: Mapping[str, Any]) -> str:
    return MISSING if share["distance"] is None else f"{share['distance']:+.1f} SE"


def _error(error: float, *, digits: int = 4) -> str:
    return f" ± {error:.{digits}f}" if math.isfinite(error) else ""


def _loss(loss: float) -> str:
    return f"{loss:.4f}"


def _number(perplexity: float) -> str:
    return fixed(perplexity, 0 if perplexity >= 10_000 else 2 if perplexity >= 100 else 3)
