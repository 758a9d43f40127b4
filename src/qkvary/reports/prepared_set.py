"""The printed form of a prepared set: its splits, overlaps and sources."""

from functools import partial
from typing import Any

from qkvary.data.prepared import PreparedData
from qkvary.data.prepared_sets import find_share_error
from qkvary.reports.report import Block, Report, Section
from qkvary.reports.tables import number, pick, tabulate, word
from qkvary.text.numbers import fixed, whole


def summarise_prepared(data: PreparedData) -> dict[str, Any]:
    """Return the facts of a prepared data set as JSON-ready data."""
    splits = {
        name: {
            **pick(split, "documents tokens text_bytes"),
            "tokens_per_byte": (split.tokens - split.documents) / split.text_bytes,
            "tokens_per_document": split.tokens / split.documents,
        }
        for name, split in data.splits.items()
    }
    return {
        "name": data.name,
        "path": str(data.path),
        **pick(data, "fingerprint tokenizer=about.tokenizer"),
        "splits": splits,
        "held_out": data.about["plan"]["source"]["held_out"],
        "warning": find_share_error(data),
        "overlap": data.about["overlap"],
    }


def prepared_report(data: PreparedData, *more: Block) -> Report:
    """Return the report of a prepared data set, with the blocks ``more`` at its end."""
    found = summarise_prepared(data)
    tokenizer, documents = found["tokenizer"], found["overlap"]
    shared = [f"{count:,} of {name}" for name, count in documents["shared_documents"].items()]
    repeated = sum(documents["repeated_documents"].values())
    overlap = (
        f"documents that are in two splits: {', '.join(shared)}; documents that are repeated "
        f"within a split: {repeated:,}"
    )
    table = tabulate(
        "splits",
        "Splits",
        [{"split": name, **one} for name, one in found["splits"].items()],
        word("split"),
        number("documents", write=whole),
        number("tokens", write=whole),
        number("text_bytes", "UTF-8 bytes", whole),
        number("tokens_per_byte", "tokens per byte", partial(fixed, decimals=4)),
        number("tokens_per_document", "tokens per document", whole),
        notes=filter(None, (_describe_split(data), found["warning"], overlap)),
        main=True,
    )
    return Report(
        subject=f"prepared set: {data.name}",
        question=f"{data.name}: {data.path}",
        lead=(
            f"tokenizer {tokenizer['name']}: {tokenizer['vocabulary']:,} tokens, "
            f"{tokenizer['separator']} after each document"
        ),
        facts=(("fingerprint", data.fingerprint),),
        sections=(Section(key="splits", title="Splits", blocks=(table, *more), brief=True),),
        data=found,
    )


def _describe_split(data: PreparedData) -> str:
    source = data.about["plan"]["source"]
    rule, files = source["held_out"], source["files"]
    if rule is not None:
        return f"held out: {rule['share']:.4g} of the documents, by {rule['rule']}"
    if isinstance(files, dict) and "cut" in files:
        return f"held out: the last {1 - files['cut']:.4g} of the text"
    return "the files of the set define the splits"
