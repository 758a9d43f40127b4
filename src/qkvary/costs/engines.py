"""Caches as engines allocate them: blocks of vLLM, cells of llama.cpp, tensors of transformers.

An engine allocates more than the minimum: whole blocks, windows with room for a prefill chunk,
separate keys and values. The rules are those of vLLM 0.32.0, of llama.cpp since October 2025, and
of transformers 5.23.0; each function names the file that it follows.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from qkvary.arch.blocks import (
    AttentionLayer,
    LatentAttention,
    Layer,
    ProjectedAttention,
    RecurrentLayer,
)
from qkvary.arch.models import Model
from qkvary.costs.cache import entries_bytes, layerwise_cache_bytes
from qkvary.costs.devices import Device
from qkvary.costs.formats import SCALE_BYTES, Format, parse_format

VLLM_BLOCK = 16
"""Tokens per block. Some backends need larger blocks."""
VLLM_LATENT = (512, 64)
"""Numbers of channels in the latent and in the rotary key that every backend of vLLM supports. On
CPUs, vLLM supports no other numbers (vllm/v1/attention/backends/mla)."""
VLLM_LATENT_SIZES = (320, 512, 576)
"""Totals of latent and rotary channels that vLLM accepts on any device (``MLACommonMetadata`` in
vllm/model_executor/layers/attention/mla_attention.py)."""
LATENT_STEP = 128
"""If a model also has states, a block of latents holds a multiple of this many tokens."""
CELLS_STEP = 256
"""llama.cpp allocates a multiple of this many cells."""
MICRO_BATCH = 512
"""Number of tokens that llama.cpp computes at a time; a window keeps extra room for them."""
GGML_BLOCK = 32
"""Number of values that share a 16-bit scale in the types q8_0 and q4_0."""

CHUNKS_IN_FLIGHT = 2
"""Number of prefill chunks that may be in flight, for which a window keeps extra room. 2 with
asynchronous scheduling, 1 without it and before 0.26 (vllm-project/vllm#47728)."""
GIB = 2**30


def default_chunk(device: Device) -> int:
    """Return the prefill chunk of ``vllm serve`` on a device.

    Source: ``EngineArgs.get_batch_defaults`` in vllm/engine/arg_utils.py.
    """
    if device.memory_bytes >= 160 * GIB:
        return 16_384
    return 8_192 if device.memory_bytes >= 70 * GIB and "A100" not in device.title else 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCache:
    """The cache in vLLM: a pool of blocks that the layer groups of a model share."""

    context: int
    """Maximum tokens per sequence (``--max-model-len``)."""
    groups: tuple[tuple[int, int], ...]
    """For each group of layers: tokens per block, and blocks per sequence."""
    block_bytes: int
    """Bytes of a block, over all layers of a group."""

    @property
    def blocks_per_sequence(self) -> int:
        """Number of blocks of a sequence in all groups."""
        return sum(blocks for _, blocks in self.groups)

    @property
    def sequence_bytes(self) -> int:
        """Bytes of the blocks that a sequence of full length takes."""
        return self.blocks_per_sequence * self.block_bytes

    def blocks(self, pool: int) -> int:
        """Return the number of blocks in a pool of ``pool`` bytes."""
        return pool // self.block_bytes

    def users(self, pool: int) -> int:
        """Return how many sequences of full length fit in a pool at once.

        Source: ``BlockPool`` in vllm/v1/core/block_pool.py, which gives out all blocks except one.
        """
        return max(0, self.blocks(pool) - 1) // self.blocks_per_sequence

    def tokens(self, pool: int) -> int:
        """Return the "GPU KV cache size" in tokens, as vLLM logs it since 0.20.1."""
        return int(self.blocks(pool) / self.blocks_per_sequence * self.context)


@dataclass(frozen=True, slots=True)
class _Spec:
    """The cache that one layer needs: an entry per token, or a state."""

    token_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0
    is_latent: bool = False


def allocate_vllm(
    model: Model,
    *,
    context: int,
    stored_as: Format | str = "bf16",
    chunk: int = 8192,
    chunks_in_flight: int = CHUNKS_IN_FLIGHT,
    states: int = 2,
    devices: int = 1,
) -> VllmCache:
    """Return the cache of a model as vLLM 0.32 allocates it.

    Pages of all layers get the same size: a layer with small entries has more tokens per block, and
    states are padded to a page. Layers of one kind are divided into groups. A group has as many
    layers as the smallest kind, or as the largest kind if all kinds have about equally many.

    Args:
        model: A decoder-only model.
        context: Maximum tokens per sequence.
        stored_as: The format of the cache.
        chunk: Tokens per prefill chunk (``--max-num-batched-tokens``).
        chunks_in_flight: Number of prefill chunks that may be in flight.
        states: Blocks of state per sequence: 2 with prefix caching, otherwise 1.
        devices: Number of devices over which tensor parallelism divides the heads.

    Source: ``get_kv_cache_groups`` and what it calls in vllm/v1/core/kv_cache_utils.py,
    vllm/v1/kv_cache_interface.py, ``_align_hybrid_block_size`` in vllm/platforms/interface.py.
    """
    _check_decoder(model)
    form = parse_format(stored_as) if isinstance(stored_as, str) else stored_as
    if not form.is_uniform or (form.group is not None and form.name not in ("int8", "int4")):
        raise ValueError(f"expected fp32, bf16, fp16, fp8, int8 or int4 for vLLM, got {form.name}")
    specs = [spec for layer in model.layers for spec in _vllm_specs(layer, form, devices)]
    if not specs:
        raise ValueError("expected layers with a cache for vLLM, got none")
    block = _vllm_block(specs)

    def page(spec: _Spec) -> int:
        return spec.token_bytes * block or spec.state_bytes

    def per_sequence(spec: _Spec, tokens: int) -> int:
        if spec.state_bytes:
            return states
        if spec.window is None:
            return math.ceil(context / tokens)
        in_flight = chunk * chunks_in_flight
        return math.ceil(min(spec.window - 1 + in_flight, context) / tokens) + 1

    if len({(spec.window, spec.state_bytes) for spec in specs}) == 1:
        groups = ((block, per_sequence(specs[0], block)),)
        return VllmCache(context=context, groups=groups, block_bytes=sum(map(page, specs)))
    largest = max(map(page, specs))

    def tokens(spec: _Spec) -> int:
        # A page size that does not divide the largest one is padded.
        return block * (largest // page(spec)) if largest % page(spec) == 0 else block

    kinds = Counter(specs)
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < 1.5 * fewest else fewest
    return VllmCache(
        context=context,
        groups=tuple(
            (tokens(spec), per_sequence(spec, tokens(spec)))
            for spec, count in kinds.items()
            for _ in range(math.ceil(count / size))
        ),
        block_bytes=size * largest,
    )


def _vllm_block(specs: list[_Spec]) -> int:
    """Return the number of tokens per block, large enough that a page can also hold a state."""
    state = max(spec.state_bytes for spec in specs)
    entries = [spec for spec in specs if spec.token_bytes]
    if not state or not entries:
        return VLLM_BLOCK
    step = LATENT_STEP if any(spec.is_latent for spec in entries) else VLLM_BLOCK
    return step * math.ceil(state / (step * max(spec.token_bytes for spec in entries)))


def _vllm_specs(layer: Layer, form: Format, devices: int) -> Iterator[_Spec]:
    attention = layer.attention
    kept = _with_entries(attention)
    if isinstance(attention, RecurrentLayer):
        bits = attention.sum_bits or max(16, form.bits)
        state = (attention.sums * bits + _engine_recent(attention) * max(16, form.bits)) // 8
        if state:
            yield _Spec(state_bytes=state // devices)
    elif isinstance(kept, LatentAttention):
        yield from _vllm_latents(kept, form)
    elif kept is not None:
        heads, channels = _heads(kept)
        # Quantised entries have one scale per head, for keys and for values.
        scale = 0 if form.group is None else SCALE_BYTES
        of_head = sum(width * form.bits // 8 + scale for width in channels)
        yield _Spec(token_bytes=max(1, heads // devices) * of_head, window=kept.reach)


def _vllm_latents(attention: LatentAttention, form: Format) -> Iterator[_Spec]:
    """Yield the latent and the 8-bit key of an indexer. Every device keeps the whole latent."""
    if form.group is not None:
        raise ValueError(f"expected bf16 or fp8 for latents in vLLM, got {form.name}")
    rank, rope, index = attention.kv_rank, attention.rope_dim, attention.own_indexer
    held = (rank + rope) * form.bits // 8
    # With an indexer, 8-bit latents have scales and a rotated key of 16 bits (``fp8_ds_mla``).
    if attention.indexer is not None and form.bits == 8:
        held = rank + SCALE_BYTES * (rank // 128) + 2 * rope
    yield _Spec(token_bytes=held, window=attention.window, is_latent=True)
    if index is not None:
        scales = SCALE_BYTES * math.ceil(index.width / 128)
        yield _Spec(token_bytes=index.width + scales, is_latent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppCache:
    """The buffers of llama.cpp for all sequences."""

    cells: int
    """Cells per stream in layers without a window."""
    window_cells: int | None
    """Cells per stream in layers with a window; ``None`` if they have as many as other layers."""
    kv_bytes: int
    """Bytes of keys and values in layers without a window."""
    window_bytes: int
    """Bytes of keys and values in layers with a window."""
    state_bytes: int

    @property
    def total_bytes(self) -> int:
        """Number of bytes of all buffers."""
        return self.kv_bytes + self.window_bytes + self.state_bytes


def allocate_llama_cpp(
    model: Model,
    *,
    context: int,
    sequences: int = 1,
    stored_as: Format | str = "fp16",
    unified: bool = False,
) -> LlamaCppCache:
    """Return the cache of a model as llama.cpp allocates it for all sequences together.

    Keys and values are stored separately, except for latents (since #19067). If every layer has a
    window, as in Mistral 7B 0.1, llama.cpp keeps all tokens. int8 means the type q8_0, int4 q4_0.

    Source: src/llama-context.cpp (padding to 256), src/llama-kv-cache-iswa.cpp (windows),
    src/llama-memory-recurrent.cpp (states, in 32 bits). The arguments correspond to ``-c``,
    ``-np``, ``-ctk`` with ``-ctv``, and ``--kv-unified``.
    """
    _check_decoder(model)
    form = parse_format(stored_as) if isinstance(stored_as, str) else stored_as
    streams = 1 if unified else sequences
    cells = _pad(_pad(context) // streams)
    kept = _layers_with_entries(model)
    has_both = any(one.reach is None for one in kept)
    kv = windowed = 0
    window_cells = None
    for one in kept:
        if one.reach is None or not has_both:
            kv += cells * _ggml_bytes(one, form)
        else:
            seen = one.reach * (sequences if unified else 1) + MICRO_BATCH
            window_cells = _pad(min(cells, seen))
            windowed += window_cells * _ggml_bytes(one, form)
    states = sum(
        layer.attention.sums + _engine_recent(layer.attention)
        for layer in model.layers
        if isinstance(layer.attention, RecurrentLayer)
    )
    return LlamaCppCache(
        cells=cells,
        window_cells=window_cells,
        kv_bytes=streams * kv,
        window_bytes=streams * windowed,
        state_bytes=sequences * 4 * states,
    )


def _ggml_bytes(attention: ProjectedAttention | LatentAttention, form: Format) -> int:
    """Return the bytes of one cell (the entry of one token) in one layer."""
    if isinstance(attention, LatentAttention):
        index = attention.own_indexer
        rows = [attention.stored_width, *([] if index is None else [index.width])]
    else:
        heads, channels = _heads(attention)
        rows = [heads * width for width in channels]
    if form.name in ("int8", "int4"):
        of_block = GGML_BLOCK * form.bits // 8 + 2
        return sum(math.ceil(row / GGML_BLOCK) * of_block for row in rows)
    if not form.is_uniform or form.group is not None or form.bits < 16:
        raise ValueError(f"expected fp32, bf16, fp16, int8 or int4 for llama.cpp, got {form.name}")
    return sum(row * form.bits // 8 for row in rows)


def _pad(cells: int) -> int:
    return math.ceil(cells / CELLS_STEP) * CELLS_STEP


def allocate_static(model: Model, *, context: int, stored_as: Format | str = "bf16") -> int:
    """Return the size in bytes of a Hugging Face ``StaticCache`` for one sequence.

    It allocates all ``context`` tokens from the start. A window of w tokens takes w entries, where
    a ``DynamicCache`` keeps w - 1 (``costs.cache``).

    Source: ``StaticLayer`` and ``StaticSlidingWindowLayer`` in transformers/cache_utils.py.
    """
    total = sum(layerwise_cache_bytes(model, context=context, stored_as=stored_as))
    for attention in _layers_with_entries(model):
        window = attention.reach
        if window is not None and window <= context:
            total += entries_bytes(attention, seen=context, kept=1, stored_as=stored_as)
    return total


def _check_decoder(model: Model) -> None:
    if model.encoder is not None or not model.is_causal:
        raise ValueError(
            "expected a decoder-only model for an engine's cache, got another kind of model"
        )


def sequence_bytes(model: Model, *, context: int, stored_as: Format) -> dict[str, int | None]:
    """Return the cache bytes of one sequence on one device, for each engine with its defaults.

    A value is ``None`` if the engine's rules do not cover the model or the format.
    """
    found: dict[str, int | None] = {"vllm": None, "llama.cpp": None, "transformers": None}
    with suppress(ValueError):
        cache = allocate_vllm(model, context=context, stored_as=stored_as)
        found["vllm"] = cache.sequence_bytes
    with suppress(ValueError):
        cells = allocate_llama_cpp(model, context=context, stored_as=stored_as)
        found["llama.cpp"] = cells.total_bytes
    with suppress(ValueError):
        found["transformers"] = allocate_static(model, context=context, stored_as=stored_as)
    return found


def _layers_with_entries(model: Model) -> list[ProjectedAttention | LatentAttention]:
    """Return the attention of the layers that keep their own entries."""
    found = [_with_entries(layer.attention) for layer in model.layers]
    return [attention for attention in found if attention is not None]


def _with_entries(attention: AttentionLayer) -> ProjectedAttention | LatentAttention | None:
    if isinstance(attention, RecurrentLayer):
        return None
    if isinstance(attention, LatentAttention):
        return attention
    if not isinstance(attention, ProjectedAttention) or attention.config.variant.keeps_state:
        raise ValueError(
            "expected attention over keys and values for an engine's cache, got linear or "
            "compressed attention"
        )
    if attention.reads_layer is not None:
        return None
    config, variant = attention.config, attention.config.variant
    if variant.decoupled is None or variant.sharing.key != variant.sharing.value:
        return attention
    # Engines run this form as latent attention.
    return LatentAttention(
        d_model=config.d_model,
        num_heads=config.num_heads,
        q_rank=None,
        kv_rank=config.width(variant.sharing.key),
        nope_dim=config.size_per_head,
        rope_dim=variant.decoupled,
        value_dim=config.size_per_head,
        window=attention.reach,
    )


def _heads(attention: ProjectedAttention) -> tuple[int, tuple[int, int]]:
    """Return the number of KV heads, and the channels per head of key and value."""
    config = attention.config
    return config.num_kv_heads, (config.compared_channels, config.size_per_head)


def _engine_recent(layer: RecurrentLayer) -> int:
    """Return how many values of recent tokens an engine stores, without those of the new token."""
    return layer.recent - layer.recent // layer.taps if layer.taps else layer.recent
