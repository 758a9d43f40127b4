"""Measures what rounded caches cost the networks that a study kept. Needs torch."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from qkvary.arch.caches import CacheOptions
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.durable import atomic_write_file, make_directory
from qkvary.checkpoints.errors import UsageError
from qkvary.checkpoints.jsonvalues import decode, encode
from qkvary.costs.formats import parse_options, spell_options
from qkvary.data.shakespeare import load_shakespeare
from qkvary.inference.cache_quality import QualityMeter, cut_windows
from qkvary.studies.scale_records import BITS, WAYS, ScaleRecord
from qkvary.studies.store import Store
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
        storages = list(_storages(cell))
        kept = store.path / FOLDER / f"{cell.run_key}-{_digest(storages, windows)}.json"
        if not kept.exists():
            rows = _measure(folder, tokens, storages, windows)
            atomic_write_file(kept, encode(rows).encode())
            tell(f"{cell.title}: measured [{number} of {len(cells)}]")
        found = cast("list[dict[str, Any]]", decode(kept.read_bytes()))
        for (bits, scales, options), figures in zip(storages, found, strict=True):
            yield ScaleRecord(
                variant=cell.variant,
                seed=cell.seed,
                layout=options.layout,
                bits=bits,
                scales=scales,
                figures=figures,
            )


def _digest(storages: Sequence[Storage], windows: int) -> str:
    """Names a measurement, so that one that was made is not made again."""
    names = [f"{options.layout} {spell_options(options)}" for _, _, options in storages]
    identity = f"{names}\n{windows} windows\nnumerics {NUMERICS_VERSION}\n"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _measure(
    folder: Path, tokens: Sequence[int], storages: Sequence[Storage], windows: int
) -> list[dict[str, Any]]:
    """All figures of each storage of one network."""
    network, _ = load_checkpoint(folder)
    text = cut_windows(tokens, context=network.config.max_tokens, most=windows)
    meter = QualityMeter(network, text)
    found: list[dict[str, Any]] = []
    for _, _, options in storages:
        quality = meter.measure(options)
        found.append(
            {
                **dataclasses.asdict(quality),
                "perplexity_change": quality.perplexity_change,
                "drifts": quality.drifts,
                "meets_int8_gate": quality.meets_int8_gate,
            }
        )
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
