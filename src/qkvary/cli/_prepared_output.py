"""The printed form of a prepared set: its splits, overlaps and sources."""

from typing import Any

from rich.console import Console
from rich.text import Text

from qkvary.cli._output import printable
from qkvary.data.prepared import PreparedData
from qkvary.data.splits import explain_share_error
from qkvary.reports.terminal import print_rows
from qkvary.text.numbers import fixed, whole

COLUMNS = (
    ("split", "left"),
    ("documents", "right"),
    ("tokens", "right"),
    ("UTF-8 bytes", "right"),
    ("tokens per byte", "right"),
    ("tokens per document", "right"),
)


def summarise_prepared(data: PreparedData) -> dict[str, Any]:
    """Return a set as JSON-ready data."""
    splits = {
        name: {
            "documents": split.documents,
            "tokens": split.tokens,
            "text_bytes": split.text_bytes,
            "tokens_per_byte": (split.tokens - split.documents) / split.text_bytes,
            "tokens_per_document": split.tokens / split.documents,
        }
        for name, split in data.splits.items()
    }
    return {
        "name": data.name,
        "path": str(data.path),
        "fingerprint": data.fingerprint,
        "tokenizer": data.about["tokenizer"],
        "splits": splits,
        "held_out": data.about["plan"]["source"]["held_out"],
        "warning": find_share_error(data),
        "overlap": data.about["overlap"],
    }


def find_share_error(data: PreparedData) -> str | None:
    """Return a warning if the held-out share is far from the requested one, else None."""
    rule = data.about["plan"]["source"]["held_out"]
    if rule is None:
        return None
    held_out, rest = (data.splits[name].text_bytes for name in ("validation", "train"))
    return explain_share_error(rule["share"], held_out, rest)


def print_prepared(screen: Console, data: PreparedData) -> None:
    """Print a set."""
    found = summarise_prepared(data)
    tokenizer = found["tokenizer"]
    screen.print(Text(printable(f"{data.name}: {data.path}"), style="bold"))
    screen.print(
        Text(
            printable(
                f"tokenizer {tokenizer['name']}: {tokenizer['vocabulary']:,} tokens, "
                f"{tokenizer['separator']} after each document"
            )
        )
    )
    rows = [
        (
            name,
            whole(one["documents"]),
            whole(one["tokens"]),
            whole(one["text_bytes"]),
            fixed(one["tokens_per_byte"], 4),
            whole(one["tokens_per_document"]),
        )
        for name, one in found["splits"].items()
    ]
    print_rows(screen, COLUMNS, rows)
    screen.print(Text(_describe_split(data)))
    if found["warning"] is not None:
        screen.print(Text(found["warning"]))
    screen.print(Text(_describe_overlap(found["overlap"])))
    screen.print(Text(f"fingerprint {data.fingerprint}"))


def _describe_split(data: PreparedData) -> str:
    source = data.about["plan"]["source"]
    rule, files = source["held_out"], source["files"]
    if rule is not None:
        return f"held out: {rule['share']:.4g} of the documents, by {rule['rule']}"
    if isinstance(files, dict) and "cut" in files:
        return f"held out: the last {1 - files['cut']:.4g} of the text"
    return "split like its files"


def _describe_overlap(overlap: dict[str, Any]) -> str:
    shared = [f"{count:,} of {name}" for name, count in overlap["shared_documents"].items()]
    repeated = sum(overlap["repeated_documents"].values())
    return (
        f"equal documents across splits: {', '.join(shared)}; repeated within a split: {repeated:,}"
    )
