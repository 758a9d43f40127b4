"""The result of a training: its runs, their networks, and the report that shows them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from qkvary.api.results import Result, add_data
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.data.checkpoint_names import RUNS
from qkvary.reports.files import write_report
from qkvary.reports.report import Report
from qkvary.reports.study_results import Results, gather_results, report_folder
from qkvary.reports.training import training_report
from qkvary.storage.durable import is_writable
from qkvary.storage.errors import DamagedError
from qkvary.studies.results.summary import Summary
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.studies.trainings import find_group

TEXT_TOKENS = 256
TRIES = 8
SHOWN_KEY = 8
"""Number of digits of a run's key that are shown in a suggested command."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TrainingResult(Result[Summary | None]):
    """The result of a training; ``value`` is the summary of its runs, or None for a plan.

    The exit code is 5 if a run diverged, 1 if one failed, else 0.
    """

    study: Study
    """The study of the requested runs."""
    store: Store
    """The store that holds the runs."""
    networks: Mapping[str, Path | None] = field(default_factory=dict[str, Path | None])
    """The folder of each trained network, by the title of its run; None if a run has no network.
    ``qk.load`` loads a network from its folder."""


def describe_runs(study: Study, store: Store, command: str) -> TrainingResult:
    """Return the result of a command, with its runs from the store. Write their group's page."""
    results = gather_results(study, store, (command,))
    report = report_training(study, store, results)
    ends = {run.state for run in results.summary.runs}
    networks = {cell.title: store.network(key) for key, cell in study.runs().items()}
    trained = [(title, path) for title, path in networks.items() if path is not None]
    closing = [f"{title}: {path}" for title, path in trained]
    for _, path in trained[:1]:
        key = path.parent.name[:SHOWN_KEY]
        run = key if store.path == RUNS else shlex.quote(str(store.path / key))
        closing.append(f"next: qkvary generate {run} --temperature 0.7")
    # A store that is read-only can still be shown.
    files, damage = _write_page(study, store, report) if is_writable(store.path) else ((), ())
    return TrainingResult(
        results.summary,
        add_data(report, networks=networks),
        study=study,
        store=store,
        networks=networks,
        exit_code=5 if "diverged" in ends else 1 if "failed" in ends else 0,
        files=files,
        closing=tuple(closing),
        notices=tuple(dict.fromkeys((*results.damage, *damage))),
    )


def _write_page(
    study: Study, store: Store, report: Report
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write the page of the group that a study belongs to, whose own page is ``report``.

    Return the files, and descriptions of damage in the group.
    """
    group, damage = find_group(store, study), ()
    if group.study != study:
        results = gather_results(group.study, store, group.commands)
        report, damage = report_training(group.study, store, results), results.damage
    return write_report(report, report_folder(group.page_name, store.path)), damage


def report_training(study: Study, store: Store, results: Results) -> Report:
    """Return the report of a training."""
    return training_report(results.summary, write_texts(study, store), results.attention)


def write_texts(study: Study, store: Store) -> dict[str, str]:
    """Return a text by the first finished network of each variant, by the label of the variant."""
    from qkvary.inference.samples import TextSampler

    texts: dict[str, str] = {}
    for cell in study.cells():
        path = None if cell.variant in texts else store.network(cell.run_key)
        if path is None:
            continue
        with suppress(DamagedError):
            network, tokenizer = load_checkpoint(path)
            if tokenizer is not None and tokenizer.separator is not None:
                samples = (
                    TextSampler(tokenizer, tokens=TEXT_TOKENS, seed=seed)(network)
                    for seed in range(TRIES)
                )
                # The first token may already end the document, so empty texts are skipped.
                texts[cell.variant] = next((text for text in samples if text.strip()), "")
    return texts
