"""Trains the networks of a study, rounds their caches in every way, and writes this folder.

    python studies/ours/quantization/measure.py

Networks that are trained or measured already are not trained or measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from scale_page import scale_files
from scale_records import BITS, WAYS, ScaleRecord, ScaleStudy

from qkvary.arch.caches import CacheOptions
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.costs.formats import format_options, parse_options
from qkvary.data.shakespeare import load_shakespeare
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import machine, now
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.studies.catalog import load_study
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import StudyRunner
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell, Study
from qkvary.text.progress_line import say
from qkvary.training.config import NUMERICS_VERSION

HERE = Path(__file__).resolve().parent
sys.path.append(
    next(str(one / "benchmarks") for one in HERE.parents if (one / "benchmarks").is_dir())
)

from decoding.cache_quality import QualityMeter, cut_windows  # noqa: E402

DEFAULT_STUDY = "quantization"
TURNED_WAYS = ("g32", "b32")
TURNED_BITS = (8, 4)
"""What is measured of keys that are stored after their rotation by position."""
TRAINED_SHARE = 0.9
FOLDER = "scales"
"""Below the store: what was measured, a file for each network."""
Storage = tuple[int, str, CacheOptions]
"""Bits of a code, how codes share scales, and both as options of a cache."""


def measure_networks(study: Study, store: Store, *, windows: int) -> Iterator[ScaleRecord]:
    """Measures every storage on every network of a study, on text that none was trained on.

    A network that was measured in the same way before is not measured again.

    Args:
        study: Of characters of tiny Shakespeare; its networks are in the store.
        store: Where they are.
        windows: Pieces of the text, as long as the network sees.

    Raises:
        UsageError: if a network is not there.
    """
    torch.set_num_threads(1)
    tokens = load_shakespeare().split(TRAINED_SHARE)[1].tolist()
    make_directory(store.path / FOLDER)
    cells = study.cells()
    for number, cell in enumerate(cells, start=1):
        folder = store.network(cell.run_key)
        if folder is None:
            raise UsageError(f"expected the network of {cell.title} in {store.path}, got none")
        kept = store.path / FOLDER / f"{cell.run_key}-{windows}-{NUMERICS_VERSION}.json"
        found = _measure(folder, tokens, list(_storages(cell)), windows, kept)
        print(f"{cell.title}: measured [{number} of {len(cells)}]")
        for bits, scales, options in _storages(cell):
            yield ScaleRecord(
                variant=cell.variant,
                seed=cell.seed,
                layout=options.layout,
                bits=bits,
                scales=scales,
                figures=found[_spell(options)],
            )


def _spell(options: CacheOptions) -> str:
    return f"{options.layout} {format_options(options)}"


def _measure(
    folder: Path, tokens: Sequence[int], storages: Sequence[Storage], windows: int, kept: Path
) -> dict[str, dict[str, Any]]:
    """All figures of each storage of one network; what is kept already is not measured again."""
    found = cast("dict[str, Any]", decode(kept.read_bytes())) if kept.exists() else {}
    missing = [options for _, _, options in storages if _spell(options) not in found]
    if not missing:
        return found
    network, _ = load_checkpoint(folder)
    text = cut_windows(tokens, context=network.config.max_tokens, most=windows)
    meter = QualityMeter(network, text)
    for options in missing:
        quality = meter.measure(options)
        found[_spell(options)] = {
            **dataclasses.asdict(quality),
            "perplexity_change": quality.perplexity_change,
            "drifts": quality.drifts,
            "meets_int8_gate": quality.meets_int8_gate,
        }
    atomic_write_file(kept, encode(found).encode())
    return found


def _storages(cell: Cell) -> Iterator[Storage]:
    for bits in BITS:
        for way in WAYS:
            yield bits, way, parse_options(f"int{bits}-{way}")
    if "rotary" not in cell.variant:
        return
    for bits in TURNED_BITS:
        for way in TURNED_WAYS:
            options = parse_options(f"int{bits}-{way}")
            yield bits, way, dataclasses.replace(options, layout="rotated")


def measure_study(study: Study, store: Store, *, windows: int) -> ScaleStudy:
    """Returns everything about a study whose networks are in the store."""
    started = now()
    records = tuple(measure_networks(study, store, windows=windows))
    losses: dict[str, list[float]] = {}
    for cell in study.cells():
        record = store.record(cell.run_key)
        loss = None if record is None else record.headline
        losses.setdefault(cell.variant, []).append(float("nan") if loss is None else loss)
    named = "" if study.name == DEFAULT_STUDY else f" {study.name}"
    return ScaleStudy(
        name=study.name,
        question=study.question,
        description=study.description,
        command=f"python studies/ours/quantization/measure.py{named}",
        environment=machine(),
        started=started,
        ended=now(),
        losses={variant: tuple(found) for variant, found in losses.items()},
        seeds=study.seeds,
        windows=records[0].figures["windows"],
        context=records[0].figures["context"],
        records=records,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains and measures what is missing and writes the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "study", nargs="?", default=DEFAULT_STUDY, help="of characters, by name or by path"
    )
    parser.add_argument("--windows", type=int, default=16, help="of held-out text per network")
    parser.add_argument("--workers", type=int, help="processes that train")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where runs are kept")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent, help="folder to write")
    given = parser.parse_args(arguments)
    study, store = load_study(given.study), Store(given.out)
    if given.windows < 1 or not all(setting.keep_networks for setting in study.settings):
        parser.error("expected windows from 1, and a study that keeps its networks")
    runs = StudyRunner(study, store, executor=LocalExecutor(given.workers), say=say).run()
    if runs.exit_code or runs.missing or runs.failed or runs.diverged:
        parser.error(f"expected {runs.planned} trained networks, got {runs.done}")
    files = scale_files(measure_study(study, store, windows=given.windows))
    for name, data in files.items():
        make_directory((given.to / name).parent)
        atomic_write_file(given.to / name, data)
    print(given.to / "README.md")


if __name__ == "__main__":
    main()
