"""Measures what rounded caches cost the networks that a study kept. Needs torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from qkvary.arch.caches import CacheOptions
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.costs.formats import parse_options, spell_options
from qkvary.data.shakespeare import load_shakespeare
from qkvary.inference.cache_quality import QualityMeter, cut_windows
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.studies.running.store import Store
from qkvary.studies.scale_records import BITS, WAYS, ScaleRecord
from qkvary.studies.study import Cell, Study
from qkvary.training.config import NUMERICS_VERSION

TURNED_WAYS = ("g32", "b32")
TURNED_BITS = (8, 4)
"""What is measured of keys that are stored after their rotation by position."""
TRAINED_SHARE = 0.9
FOLDER = "scales"
"""Below the store: what was measured, a file for each network."""
Storage = tuple[int, str, CacheOptions]
"""Bits of a code, how codes share scales, and both as options of a cache."""


def measure_networks(
    study: Study, store: Store, *, windows: int, tell: Callable[[str], None]
) -> Iterator[ScaleRecord]:
    """Measure every storage on every network of a study, on text that none was trained on.

    A network that was measured in the same way before is not measured again.

    Args:
        study: Of characters of tiny Shakespeare; its networks are in the store.
        store: Where they are.
        windows: Pieces of the text, as long as the network sees.
        tell: Told what was measured.

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
        tell(f"{cell.title}: measured [{number} of {len(cells)}]")
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
    return f"{options.layout} {spell_options(options)}"


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
