"""The report of an evaluation: scores on a text, at several window lengths, and on tasks."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS
from qkvary.inference.evaluation.perplexity import TextScore
from qkvary.inference.evaluation.task_scores import Metric, Metrics, TaskMeasurement, TaskScore
from qkvary.inference.evaluation.text_measurement import TextMeasurement
from qkvary.reports.report import Block, Prose, Report, Section
from qkvary.reports.tables import Cell, Table, number, pick, plain, tabulate, word
from qkvary.text.names import count
from qkvary.text.numbers import MISSING, fixed, perplexity, whole


def evaluation_report(document: Mapping[str, Any]) -> Report:
    """Return the report of the values from :func:`text_data` and :func:`task_data`."""
    shown = (
        ("text", "text", "Text", _show_text),
        ("lengths", "lengths", "Lengths", _show_lengths),
        ("lm_eval", "tasks", "Tasks", _show_tasks),
    )
    return Report(
        subject=f"evaluation: {document['checkpoint']}",
        question=f"How well does {document['checkpoint']} predict?",
        sections=tuple(
            Section(key=key, title=title, blocks=tuple(show(document)), brief=True)
            for part, key, title, show in shown
            if part in document
        ),
        caveats=tuple(document.get("notes", ())),
        data=document,
    )


def text_data(measured: TextMeasurement) -> dict[str, Any]:
    """Return the scores of a text as entries of the JSON document."""
    found: dict[str, Any] = {
        "protocol": measured.protocol,
        "made_for": measured.made_for,
        "split": measured.split,
        "text": _describe_text(measured.score),
        "notes": measured.notes,
    }
    if measured.paper is not None:
        derived = pick(measured.paper, "perplexity real_perplexity")
        found["paper"] = {**dataclasses.asdict(measured.paper), **derived}
    if measured.lengths:
        found["lengths"] = [
            {
                **pick(row, "length beyond"),
                **_describe_text(row.score),
                "buckets": [dataclasses.asdict(bucket) for bucket in row.buckets],
            }
            for row in measured.lengths
        ]
    return found


def task_data(measured: TaskMeasurement) -> dict[str, Any]:
    """Return the scores of tasks as entries of the JSON document."""
    scores = {name: _describe_score(score) for name, score in measured.scores.items()}
    return {
        **pick(measured, "lm_eval limit against"),
        "tasks": {name: score for name, score in scores.items() if name in LOCAL_TASKS},
        "mean_of_five": measured.mean and _describe_metrics(measured.mean),
        "other_tasks": {name: one for name, one in scores.items() if name not in LOCAL_TASKS},
    }


def _describe_score(score: TaskScore) -> dict[str, Any]:
    """Return the score of a task as an entry of the JSON document."""
    overlap, perplexity = score.contamination, score.metrics.get("perplexity")
    return {
        **dataclasses.asdict(score),
        **_describe_metrics(score.metrics),
        "perplexity": perplexity and perplexity.value,
        "metrics": {name: _describe_metric(metric) for name, metric in score.metrics.items()},
        "contamination": overlap
        and {**pick(overlap, "questions shared"), **_describe_metrics(overlap.metrics)},
    }


def _describe_metrics(metrics: Metrics) -> dict[str, Any]:
    names = {"accuracy": "acc", "normalised": "acc_norm"}
    return {
        name: _describe_metric(metrics[own]) if own in metrics else None
        for name, own in names.items()
    }


def _describe_metric(metric: Metric) -> dict[str, Any]:
    return {**dataclasses.asdict(metric), "distance": metric.distance}


def _describe_text(score: TextScore) -> dict[str, Any]:
    derived = pick(score, "perplexity bits_per_byte byte_perplexity")
    return {**dataclasses.asdict(score), **derived}


def _error(error: float, *, digits: int = 4) -> str:
    return f" ± {error:.{digits}f}" if math.isfinite(error) else ""


def _share(share: Mapping[str, Any] | None) -> str:
    if share is None:
        return MISSING
    return f"{100 * share['value']:.2f}{_error(100 * share['error'], digits=2)}"


def _distance(distance: float | None) -> str:
    return MISSING if distance is None else f"{distance:+.1f} SE"


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f}"


_SHARES = (
    number("accuracy %=accuracy", write=_share),
    number("chance=accuracy.chance", write=_percent),
    number("from chance=accuracy.distance", write=_distance),
    number("by length %=normalised", write=_share),
    number("from chance =normalised.distance", write=_distance),
)


def _show_text(document: Mapping[str, Any]) -> Iterator[Block]:
    text, protocol = document["text"], document["protocol"]
    documents = count(text["documents"], "document")
    read = "joined and read as one text" if protocol.joined else "each read alone"
    windows = count(text["windows"], "window")
    split = f" ({document['split']} split)" if document["split"] else ""
    said = (
        f"{', '.join(document['data'])}{split}: {documents}, {read}; {text['tokens']:,} tokens "
        f"({text['text_bytes']:,} bytes) are scored in {windows} of {protocol.context:,} tokens; a "
        f"new window starts every {protocol.stride:,} tokens"
    )
    yield Prose(said, small=True)
    paper = document.get("paper")
    said_of = {
        "loss": "as the papers count",
        "real_loss": "  text only",
        "pad_loss": "  padding only",
    }
    rows = [
        ("per real token", text["loss"], text["loss_error"]),
        ("per byte", text["bits_per_byte"] * math.log(2), math.nan),
        *(
            (said, paper[name], math.nan)
            for name, said in said_of.items()
            if paper and math.isfinite(paper[name])
        ),
    ]
    write = "{:.4f}".format
    yield tabulate(
        "text",
        "Losses of the text",
        rows,
        word("text=", "", lambda row: plain(row[0])),
        number("loss=", write=lambda row: plain(row[1], write(row[1]) + _error(row[2]))),
        number("perplexity=", write=lambda row: _perplexity(row[1])),
        number("bits=", write=lambda row: plain(row[1] / math.log(2), write(row[1] / math.log(2)))),
        main=True,
    )
    if paper:
        note = (
            f"counted as in the papers: {count(paper['rows'], 'document')} with "
            f"{protocol.context:,} targets each; {100 * paper['real_share']:.1f} % of the targets "
            "are text, the rest are padding"
        )
        yield Prose(note, small=True)


def _perplexity(loss: float) -> Cell:
    """Return the perplexity of a loss in nats."""
    found = perplexity(loss)
    return plain(found, _number(found))


def _show_lengths(document: Mapping[str, Any]) -> Iterator[Block]:
    lengths: Sequence[Mapping[str, Any]] = document["lengths"]
    longest = max(lengths, key=lambda row: row["length"])
    rows = [
        (f"{bucket['first']:,}-{bucket['last']:,}", *(_bucket(row, index) for row in lengths))
        for index, bucket in enumerate(longest["buckets"])
    ]
    means = (plain(row["perplexity"], _number(row["perplexity"])) for row in lengths)
    yield tabulate(
        "lengths",
        "Perplexity by position",
        [*rows, ("all positions", *means)],
        word("positions=", "perplexity at", lambda row: plain(row[0])),
        *(
            number(f"{row['length']:,}{'*' if row['beyond'] else ''}=", write=itemgetter(index))
            for index, row in enumerate(lengths, start=1)
        ),
        main=True,
    )
    note = (
        f"every column gives the perplexity of the same {longest['tokens']:,} tokens, read in "
        "windows of the length at the top of the column"
    )
    if any(row["beyond"] for row in lengths):
        note += (
            f"; * marks windows longer than the {document['made_for']:,} tokens that the network "
            "was made for"
        )
    yield Prose(note, small=True)


def _bucket(row: Mapping[str, Any], index: int) -> Cell:
    buckets = row["buckets"]
    if index >= len(buckets) or not buckets[index]["tokens"]:
        return plain(None)
    return _perplexity(buckets[index]["loss"])


def _show_tasks(document: Mapping[str, Any]) -> Iterator[Block]:
    tasks: Mapping[str, Mapping[str, Any]] = document["tasks"] | document["other_tasks"]
    rows: list[Mapping[str, Any]] = []
    for name, task in tasks.items():
        # The metrics that are no accuracies of choices.
        lines = [
            f"{metric} {_number(found['value'], 4)}{_error(found['error'])}"
            for metric, found in task["metrics"].items()
            if metric not in {"acc", "acc_norm"}
        ]
        others = Cell(raw=", ".join(lines), text="".join(lines[:1]), below=tuple(lines[1:]))
        rows.append({"name": name, "others": others, **task})
    has_others = any(row["others"].text for row in rows)
    if document["mean_of_five"] is not None:
        no_counts = dict.fromkeys(("fewshot", "documents", "others"), plain(None, ""))
        rows.append({"name": "mean of five", **no_counts, **document["mean_of_five"]})
    yield tabulate(
        "tasks",
        "Scores",
        rows,
        word("task=name"),
        number("shots=fewshot", write=whole),
        number("questions=documents", write=whole),
        *_SHARES,
        number("cut=cut_prompts", write=lambda cut: "" if cut is None else f"{100 * cut:.0f} %"),
        *([number("other metrics=others")] if has_others else []),
        main=True,
    )
    if document["against"] is not None:
        yield _show_contamination(tasks)
    yield from (Prose(sentence, small=True) for sentence in _explain(document, tasks))


def _show_contamination(tasks: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        {"name": name, "others": found["questions"] - found["shared"], **found}
        for name, task in tasks.items()
        for found in (task["contamination"],)
    ]
    return tabulate(
        "contamination",
        "Questions that are not in the training text",
        rows,
        word("task=name"),
        number("questions", write=whole),
        number("shared", write=whole),
        number("others", "remaining", whole),
        *_SHARES,
        main=True,
    )


def _explain(document: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield (
        f"Measured with lm-eval {document['lm_eval']}. ± gives one standard error (SE) over the "
        "questions. The column “chance” is the accuracy of guessing. The column “from chance” is "
        "the difference between the preceding accuracy and chance, in SE. The column “by length” "
        "is the accuracy if the answer with the highest log-probability per character is chosen."
    )
    same = [
        name
        for name, task in tasks.items()
        if task["shots_from"] and task["shots_from"] == task["evaluated"]
    ]
    if same:
        yield (
            f"The few-shot examples of {', '.join(same)} are taken from the other questions of the "
            "evaluated file, because there is no training file."
        )
    against = document["against"]
    if against is not None:
        yield (
            "The column “shared” is the number of questions that overlap with the training data. A "
            f"question overlaps if {against['words_in_a_row']} consecutive words of it and its "
            "right answer (or all words, if there are fewer) occur in one of the "
            f"{count(against['documents'], 'training document')} of {against['data']}. The "
            "accuracies in this table are over the remaining questions."
        )
    if any(task["cut_prompts"] for task in tasks.values()):
        yield (
            "The column “cut” is the share of prompts that were longer than the network's context. "
            "Their beginning was cut off, with some or all of the few-shot examples."
        )


def _number(figure: float, digits: int = 3) -> str:
    return fixed(figure, 0 if figure >= 10_000 else 2 if figure >= 100 else digits)
