"""What decoding keeps and reads: token by token, with plain lists.

Written from what the fields of a model mean and shares no code with ``qkvary.costs``, nor with the
properties of ``qkvary.arch`` that are derived.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import (
    AttentionLayer,
    CompressedAttention,
    Compressor,
    LatentAttention,
    ProjectedAttention,
)
from qkvary.arch.models import Model

Rows = list[int]
"""Widths of the rows that one token leaves; numbers of a row are stored side by side."""

BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}


def bytes_of(rows: Sequence[int], stored_as: str) -> int:
    """Pack every row by itself; each group that is begun brings a scale and a zero point."""
    name, _, group = stored_as.partition("-g")
    total = 0
    for width in rows:
        bits = 0
        for index in range(width):
            bits += BITS[name]
            if name.startswith("int") and index % int(group or 64) == 0:
                total += 2 + 2
        total += math.ceil(bits / 8)
    return total


@dataclass
class Summaries:
    """What one compressor holds."""

    part: Compressor
    waiting: list[Rows] = field(default_factory=list[Rows])
    overlap: list[Rows] = field(default_factory=list[Rows])
    closed: list[Rows] = field(default_factory=list[Rows])

    def add(self) -> None:
        """One token more, whose content and gate wait until there are enough for a summary."""
        width = self.part.width
        self.waiting.append([width * (2 if self.part.overlapping else 1)] * 2)
        if len(self.waiting) == self.part.rate:
            self.closed.append([width])
            # The next summary sees one half of each token's content and gate once more.
            self.overlap = [[width, width] for _ in self.waiting] if self.part.overlapping else []
            self.waiting = []

    def rows(self) -> Rows:
        """Everything held."""
        return [row for rows in (*self.closed, *self.waiting, *self.overlap) for row in rows]


@dataclass
class Memory:
    """What one layer holds of one sequence, and what its newest token looked at."""

    kept: list[tuple[int, Rows]] = field(default_factory=list[tuple[int, Rows]])
    summaries: list[Summaries] = field(default_factory=list[Summaries])
    read: Rows = field(default_factory=Rows)

    def rows(self) -> Rows:
        """Everything held."""
        own = [row for _, rows in self.kept for row in rows]
        return own + [row for part in self.summaries for row in part.rows()]


def remember(attention: AttentionLayer, tokens: int) -> Memory:
    """Feed tokens one by one and drop at once what the next one cannot see."""
    memory, window = Memory(), window_of(attention)
    if isinstance(attention, CompressedAttention):
        parts = (attention.compressor, attention.indexer)
        memory.summaries = [Summaries(part) for part in parts if part is not None]
    for now in range(tokens):
        memory.kept.append((now, _entry(attention)))
        for part in memory.summaries:
            part.add()
        memory.read = [row for at, rows in memory.kept if now - at < window for row in rows]
        memory.read += _chosen(attention, memory)
        memory.kept = [(at, rows) for at, rows in memory.kept if now + 1 - at < window]
    return memory


def window_of(attention: AttentionLayer) -> float:
    if isinstance(attention, CompressedAttention):
        return attention.window
    given = None if isinstance(attention, LatentAttention) else attention.config.variant.window
    return math.inf if given is None else given


def _entry(attention: AttentionLayer) -> Rows:
    if isinstance(attention, CompressedAttention):
        return [attention.head_dim]
    if isinstance(attention, LatentAttention):
        return [attention.kv_rank, attention.rope_dim]
    config, sharing = attention.config, attention.config.variant.sharing
    keys = [head_dim(config)] * heads_of(config, sharing.key)
    values = [head_dim(config)] * heads_of(config, sharing.value)
    if config.variant.decoupled is not None and not attention.storage.startswith("input"):
        plain = dataclasses.replace(config.variant, decoupled=None)
        rest = dataclasses.replace(config, variant=plain)
        rows = _entry(dataclasses.replace(attention, config=rest))
        return [*rows, config.variant.decoupled]
    if config.variant.latent is not None and attention.storage == "needed":
        return [config.variant.latent]
    if attention.storage in ("input", "input elsewhere"):
        return [config.d_model]
    if attention.storage == "keys":
        return keys
    if attention.storage == "latent":
        rows: Rows = []
        for source in dict.fromkeys((sharing.key, sharing.value)):
            whole = [head_dim(config)] * heads_of(config, source)
            inner = inner_width(config, source)
            rows += whole if inner is None or inner >= sum(whole) else [inner]
        return rows
    if attention.storage == "value and slice":
        pairs = int(head_dim(config) * config.position.rotary_fraction / 2)
        return values + [2 * max(1, pairs)] * len(keys)
    return keys if sharing.key == sharing.value and attention.storage == "needed" else keys + values


def _chosen(attention: AttentionLayer, memory: Memory) -> Rows:
    """The summaries that the newest token reads: all, or all keys of the indexer and its picks."""
    if not memory.summaries:
        return []
    assert isinstance(attention, CompressedAttention)
    own, *index = memory.summaries
    picked = own.closed if not index else own.closed[: attention.index_top]
    return [row for rows in (*picked, *(r for part in index for r in part.closed)) for row in rows]


def head_dim(config: AttentionConfig) -> int:
    return config.head_dim or config.d_model // config.num_heads


def heads_of(config: AttentionConfig, source: str) -> int:
    sharing = config.variant.sharing
    if source == "x" or source not in (sharing.key, sharing.value):
        return config.num_heads
    return config.variant.num_kv_heads or config.num_heads


def kept_bytes(model: Model, tokens: int, stored_as: str, *, encoder_tokens: int) -> list[int]:
    """What each layer holds of one sequence."""
    found: list[int] = []
    for layer in model.layers:
        rows: Rows = []
        if not _reads_another(layer.attention):
            rows += remember(layer.attention, tokens).rows()
        if layer.cross is not None and layer.cross.storage != "input elsewhere":
            for _ in range(encoder_tokens):
                rows += _entry(layer.cross)
        found.append(bytes_of(rows, stored_as))
    return found


def read_bytes(model: Model, tokens: int, stored_as: str, *, encoder_tokens: int) -> int:
    """What the newest token reads in all layers, from the same or another layer."""
    total = 0
    for layer in model.layers:
        attention = layer.attention
        if isinstance(attention, ProjectedAttention) and attention.reads_layer is not None:
            attention = model.layers[attention.reads_layer].attention
        total += bytes_of(remember(attention, tokens).read, stored_as)
        for _ in range(encoder_tokens if layer.cross else 0):
            assert layer.cross is not None
            total += bytes_of(_entry(layer.cross), stored_as)
    return total


def _reads_another(attention: AttentionLayer) -> bool:
    return isinstance(attention, ProjectedAttention) and attention.reads_layer is not None


def inner_width(config: AttentionConfig, source: str) -> int | None:
    rank = {"k": config.variant.k_rank, "v": config.variant.v_rank}.get(source)
    if rank is None:
        return None
    return config.d_model // rank.size if rank.of_width else rank.size
