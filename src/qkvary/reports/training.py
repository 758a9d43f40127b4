"""The report of a training run: learning curve, loss, generated text, and comparisons."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from qkvary.reports.attention_maps import RunAttention
from qkvary.reports.learning_curves import curves_chart
from qkvary.reports.report import Block, Chart, Code, Group, Report, Section
from qkvary.reports.run_tables import PRECISE
from qkvary.reports.study import drop_shared_terms, study_report
from qkvary.reports.tables import label, number, pick, tabulate, word
from qkvary.studies.results.summary import Summary, metric_title
from qkvary.text import names, numbers

COMPARING = ("results", "frontiers", "solving", "published")
"""The sections of a study's report that make sense only for several variants."""
_COUNTS = ("variants", "tasks")
"""Facts of a study's report that are left out if there is only one variant."""
_PICTURE_SIZE = (560.0, 320.0)
_PADDED = ("test_paper_loss", "test_real_share")
"""Scores that are shown only if rows are padded."""
_SPEEDS = (
    ("tokens_per_second", "tokens/s", numbers.whole),
    ("gigaflops_per_second", "GFLOP/s", partial(numbers.fixed, decimals=1)),
    ("utilization", "share of matmul speed", numbers.percent),
)
_SCORES = (
    ("test_perplexity", "perplexity", ""),
    ("test_bits_per_byte", "bits", "per byte"),
    ("test_document_loss", "one document per row", "nats per token"),
    ("test_paper_loss", "padding included", "nats per token"),
    ("test_real_share", "share of real tokens", ""),
    ("validation_loss", "validation loss", "nats per token"),
    ("final_train_loss", "training loss", "nats per token"),
)


def training_report(
    summary: Summary, texts: Mapping[str, str], attention: Sequence[RunAttention] = ()
) -> Report:
    """Return the report of a training run.

    ``texts`` maps the label of each variant to a text that one of its networks generated.
    """
    study = study_report(summary, attention)
    compares = len(summary.variants) > 1
    shown, shared = drop_shared_terms(summary)
    learnt = tuple(_describe(shown, variant) for variant in shown.variants)
    texts = {title.removesuffix(f"@{shared}"): text for title, text in texts.items()}
    # The description is the lead of the whole report.
    kept = [
        dataclasses.replace(one, lead="") if one.key == "results" else one
        for one in study.sections
        if compares or one.key not in COMPARING
    ]
    return dataclasses.replace(
        study,
        subject=f"training: {summary.study.removeprefix('train ')}",
        lead=summary.description,
        answer=(*learnt, *(study.answer if compares else summary.headline)),
        picture=_picture(shown),
        caveats=study.caveats if compares else (),
        facts=tuple(fact for fact in study.facts if compares or fact[0] not in _COUNTS),
        sections=(*_texts(texts), _scores(shown), *kept),
        data={**study.data, "texts": texts},
    )


def _describe(summary: Summary, variant: str) -> str:
    """Return the loss of a variant, explained in plain numbers."""
    runs = [run for run in summary.runs if run.variant == variant]
    done = [dict(run.metrics) for run in runs if run.state == "done"]
    losses = [loss for one in done if (loss := one.get("test_loss")) is not None]
    if not losses:
        states = Counter(run.state for run in runs)
        counts = names.listed([f"{number} {state}" for state, number in states.items()])
        return f"{variant} has no finished run: {counts}."
    loss = math.fsum(losses) / len(losses)
    bits = [value for one in done if (value := one.get("test_bits_per_byte")) is not None]
    per_byte = ""
    if bits:
        per_byte = f", or {numbers.real(math.fsum(bits) / len(bits), 4)} bits per byte"
    seeds = f" (the mean of {len(losses)} seeds)" if len(losses) > 1 else ""
    return (
        f"{variant} ended with a {_loss(summary)} of {numbers.real(loss, 4)} nats per token: "
        f"a perplexity of {numbers.real(math.exp(loss), 4)}{per_byte}{seeds}."
    )


def _loss(summary: Summary) -> str:
    """Return the name of the loss at the end."""
    return metric_title("test_loss", is_tested=all(run.is_tested for run in summary.runs))


def _scores(summary: Summary) -> Section:
    is_padded = any(dict(run.metrics).get("test_real_share", 1.0) != 1.0 for run in summary.runs)
    loss = _loss(summary)
    split = loss.split()[-2]
    measured = {name for run in summary.runs for name, _ in run.timing}
    rows = [
        {
            **pick(run, "variant seed training_seconds state"),
            **dict(run.metrics),
            **dict(run.timing),
        }
        for run in summary.runs
    ]
    table = tabulate(
        "scores",
        "Scores",
        rows,
        label("variant"),
        number("seed"),
        number("test_loss", loss, PRECISE, below="nats per token"),
        *(
            number(key, title, PRECISE, below=unit)
            for key, title, unit in _SCORES
            if is_padded or key not in _PADDED
        ),
        *(number(key, title, write) for key, title, write in _SPEEDS if key in measured),
        number("training_seconds", "training", numbers.duration),
        word("state"),
        main=True,
    )
    return Section(
        key="scores",
        title="Scores",
        lead=f"{loss.capitalize()} is measured at the end on the {split} split. Validation loss is "
        "the last value measured during training, on the part of the validation split that is "
        "scored during training. Training loss is the mean over the last steps. Perplexity is the "
        f"exponential of the {loss}: the network is as uncertain as if it had to choose among that "
        "number of equally likely tokens. Bits per byte can be compared between networks with "
        "different tokenizers.",
        blocks=(table,),
        brief=True,
    )


def _texts(texts: Mapping[str, str]) -> Iterator[Section]:
    if texts:
        blocks: list[Block] = []
        for title, text in texts.items():
            code = Code(tuple(text.splitlines()), language="text")
            blocks.append(Group(title=title, blocks=(code,)) if len(texts) > 1 else code)
        yield Section(
            key="texts",
            title="What the network writes",
            lead="The text was sampled at temperature 0.8 from the 40 most probable tokens.",
            blocks=tuple(blocks),
        )


def _picture(summary: Summary) -> Chart | None:
    """Return the chart of validation losses.

    If there is only one variant, the chart also shows the training loss of that variant.
    """
    curves = [curve for curve in summary.curves if curve.quantity == "validation loss"]
    behind = [curve for curve in summary.curves if curve.quantity == "train loss"]
    if not any(len(curve.steps) > 1 for curve in curves):
        return None
    behind = behind if len(curves) == 1 else []
    detail = "nats per token over steps"
    detail += "; grey: training loss" if len(curves) == 1 else ""
    if any(max(curve.runs, default=0) > 1 for curve in curves):
        detail += "; bands reach from the smallest to the largest value of all runs"
    return Chart(
        draw=partial(curves_chart, curves, summary.baseline, behind, _PICTURE_SIZE),
        caption="Validation loss",
        detail=detail,
        file="answer",
    )
