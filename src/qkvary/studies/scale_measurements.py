"""Measures what rounded caches cost the networks that a study kept. Needs torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

from qkvary.arch.caches import CacheOptions
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.errors import UsageError
from qkvary.costs.formats import parse_options
from qkvary.data.shakespeare import load_shakespeare
from qkvary.inference.cache_quality import QualityMeter, cut_windows
from qkvary.studies.scale_records import BITS, WAYS, ScaleRecord
from qkvary.studies.store import Store
from qkvary.studies.study import Cell, Study

TURNED_WAYS = ("g32", "b32")
TURNED_BITS = (8, 4)
"""What is measured of keys that are stored after their rotation by position."""
TRAINED_SHARE = 0.9


def measure_networks(
    study: Study, store: Store, *, windows: int, tell: Callable[[str], None]
) -> Iterator[ScaleRecord]:
    """Measure every storage on every network of a study, on text that none was trained on.

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
    cells = study.cells()
    for number, cell in enumerate(cells, start=1):
        folder = store.network(cell.run_key)
        if folder is None:
            raise UsageError(f"expected the network of {cell.title} in {store.path}, got none")
        network, _ = load_checkpoint(folder)
        context = network.config.max_tokens
        meter = QualityMeter(network, cut_windows(tokens, context=context, most=windows))
        yield from _measure(cell, meter)
        tell(f"{cell.title}: measured [{number} of {len(cells)}]")


def _measure(cell: Cell, meter: QualityMeter) -> Iterator[ScaleRecord]:
    for bits, scales, options in _storages(cell):
        quality = meter.measure(options)
        yield ScaleRecord(
            variant=cell.variant,
            seed=cell.seed,
            layout=options.layout,
            bits=bits,
            scales=scales,
            figures={
                **dataclasses.asdict(quality),
                "perplexity_change": quality.perplexity_change,
                "drifts": quality.drifts,
                "meets_int8_gate": quality.meets_int8_gate,
            },
        )


def _storages(cell: Cell) -> Iterator[tuple[int, str, CacheOptions]]:
    for bits in BITS:
        for way in WAYS:
            yield bits, way, parse_options(f"int{bits}-{way}")
    if "rotary" not in cell.variant:
        return
    for bits in TURNED_BITS:
        for way in TURNED_WAYS:
            options = parse_options(f"int{bits}-{way}")
            yield bits, way, dataclasses.replace(options, layout="rotated")
