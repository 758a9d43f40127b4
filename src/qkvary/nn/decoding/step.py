"""Runs a whole decoding step of a network and its cache as one call of ``native/step.cpp``.

The network is not changed: parameters are read in place, and new entries go into the cache's own
buffers, so native steps and calls of the network can alternate.
"""

import ctypes
import math
from typing import TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, type_before_parametrizations

from qkvary.arch.sharing import KEY_ROPE
from qkvary.nn.attention import Attention
from qkvary.nn.blocks import Block, FeedForward, Stack, check_length
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.cache_codes import CACHED, describe_infinite
from qkvary.nn.cache_layouts import needs_slice
from qkvary.nn.cache_storage import StateStore
from qkvary.nn.decoder import Decoder
from qkvary.nn.decoding import native
from qkvary.nn.decoding.native import PROJECTED, Call, Layer, Matrix, Norm, Projected, Step, Sums
from qkvary.nn.encoder_decoder import DecoderBlock, EncoderDecoder, EncoderDecoderCache
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.layout import Rotation, sinusoid
from qkvary.nn.linear import is_watched
from qkvary.nn.linear_attention import State
from qkvary.nn.projections import HeadNorm, Latent, LowRank
from qkvary.nn.quantized_weights import Dequantized, Numbers, find_numbers
from qkvary.nn.shapes import AttentionMask
from qkvary.nn.terms import Decay, term_classes

QUERY_FORMS = {"plain": 0, "residual": 1, "residual-gelu": 2}
LAYER_NORM, RMS_NORM = 1, 2
PLACEMENTS = ("pre", "pre-only", "post", "post-final")
ACTIVATIONS = {"relu": 0, "gelu": 1, "swiglu": 2}
UNKNOWN_TOKEN, NO_SCALE = 2, 3
"""Error codes of ``step.cpp``. Any other code means that memory ran out; 0 is success."""
FEATURES = {"linear": 1, "linear-relu": 2, "linear-softmax": 3, "linear-identity": 4}
"""The numbers by which the library knows the feature maps of linear attention."""


def supports(model: Decoder, cache: KVCache) -> TypeGuard[LanguageModel | EncoderDecoder]:
    """Return whether a step of this network over this cache can be one call on this machine."""
    crossed = cache.cross.layers if isinstance(cache, EncoderDecoderCache) else ()
    if not isinstance(model, LanguageModel | EncoderDecoder):
        return False
    if isinstance(model, EncoderDecoder) != bool(crossed) or not _is_as_built(model):
        return False
    numbers, block = list(find_numbers(model)), model.config.block
    dtype = numbers[0].dtype
    return (
        not model.training
        and block.norm_placement in PLACEMENTS
        and block.norm in ("layernorm", "rmsnorm")
        and block.skips == "both"
        and not block.parallel
        and (isinstance(model, EncoderDecoder) or model.config.logit_cap is None)
        and block.activation in ACTIVATIONS
        and dtype in native.STORAGE
        and all(_is_read(part, dtype) for part in numbers)
        and all(_supports_layer(layer) for layer in cache.layers)
        and all(_supports_scores(layer) and not layer.config.rotated_channels for layer in crossed)
        and native.library() is not None
    )


def _is_as_built(network: nn.Module) -> bool:
    """Return whether a network has all its original modules and none of them has hooks."""
    return not any(is_watched(part) or not _has_own_parts(part) for part in network.modules())


def _has_own_parts(part: nn.Module) -> bool:
    match part:
        case Attention():
            found, kinds = (*part.projections.values(), part.o_proj), (nn.Linear, LowRank)
        case FeedForward():
            found, kinds = (part.up, part.down, part.gate), (nn.Linear,)
        case Latent():
            found, kinds = (part.key, part.value), (nn.Linear,)
        case Block():
            found, kinds = (part.attention, part.feed_forward), (Attention, FeedForward)
        case ParametrizationList():
            found, kinds = tuple(part), (Dequantized,)
        case _:
            return True
    return all(type_before_parametrizations(one) in kinds for one in found if one is not None)


def _is_read(numbers: Numbers, dtype: torch.dtype) -> bool:
    """Return whether the library can read a parameter in place."""
    plain, scales = numbers.stored.is_contiguous(), numbers.scales
    if scales is not None:
        plain = plain and scales.is_contiguous() and scales.dtype == torch.float32
    return plain and numbers.dtype == dtype and numbers.stored.device.type == "cpu"


def _supports_layer(cache: LayerCache) -> bool:
    """Return whether the library supports both the layer and the layout of the layer's cache.

    The library supports layers with a state. It also supports layers with plain scores, if the
    cached entries are used as stored or only have to be rotated.
    """
    config, options = cache.config, cache.options
    variant = config.variant
    if cache.state is not None:
        is_known = variant.core_name in FEATURES and variant.query_form in QUERY_FORMS
        return is_known and cache.max_tokens is not None
    has_codes = options.bits in native.CODES and not options.rotate
    if not (options.storage == "preallocated" or has_codes) or cache.max_tokens is None:
        return False
    if variant.window is not None and variant.window < cache.max_tokens:
        return False
    if not _supports_scores(cache) or config.position.rotates_value:
        return False
    scaling = config.position.scaling
    has_factor = scaling is not None and scaling.attention_factor != 1.0
    if has_factor and config.value_rope == "counter":
        # Keys and the values that are rotated back share one table, so no factor can apply to keys
        # only.
        return False
    if variant.latent is not None and options.layout == "split":
        # The native step cannot read keys and values that were expanded from a latent.
        return False
    if variant.decoupled is not None:
        # In other layouts the rotary key would have to be rotated whenever it is read.
        return options.layout in ("rotated", "split")
    if variant.positions == "none":
        return options.layout in ("sources", "rotated", "split")
    if options.layout == "sources":
        # A value that is the rotated key would have to be rotated as well.
        return variant.sharing.key != variant.sharing.value or needs_slice(config)
    return options.layout == "split" or (options.layout == "rotated" and not needs_slice(config))


def _supports_scores(cache: LayerCache) -> bool:
    variant, scaling = cache.config.variant, cache.config.position.scaling
    return (
        variant.stride is None
        and variant.core_name == "softmax"
        and not (variant.head_norm != "none" and cache.config.scale.norm_adds_one)
        and not (scaling is not None and scaling.query_growth)
        and all(term.is_plain for term in term_classes(variant).values())
        and variant.query_form in QUERY_FORMS
    )


class NativeStep:
    """Computes the next logits of every row in one library call.

    The addresses of the parameters are looked up only once, so make a new step after you move or
    cast the network.
    """

    def __init__(self, model: LanguageModel | EncoderDecoder, cache: KVCache) -> None:
        """Prepare steps of a network that ``supports`` accepts. The cache must hold a token."""
        loaded = native.library()
        if loaded is None:
            raise RuntimeError("the native kernels cannot be built here")
        self._library = loaded
        self.model, self.cache = model, cache
        self._numbers = {(one.module, one.name): one for one in find_numbers(model)}
        self._dtype = self._numbers[model, "embedding"].dtype
        self._kept: list[Tensor] = []
        self._rotations: dict[object, tuple[Tensor, Tensor]] = {}
        self._max_tokens = max(1, *(layer.max_tokens or 0 for layer in cache.layers))
        if isinstance(model, EncoderDecoder):
            stack, table, output = model.decoder, model.target_positions, "head_weight"
        else:
            stack, table, output = model.stack, model.position_embedding, model.output_name
        config = model.config
        described = self._describe(stack)
        self._layers = (Layer * len(described))(*described)
        own = [layer for layer in self._layers if not layer.reads_memory]
        # Looking a field up makes an object each time, in every layer of every step.
        self._own = [(layer, layer.attention) for layer in own]
        final = stack.final_norm
        self._step = Step(
            layers=self._layers,
            num_layers=len(described),
            width=config.d_model,
            storage=native.STORAGE[self._dtype],
            bytes=sum(part.nbytes for part in model.parameters()),
            embedding=self._matrix(model, "embedding", None),
            embedding_scale=math.sqrt(config.d_model) if config.scale_embedding else 1.0,
            positions=self._positions(table),
            final_norm=Norm() if final is None else self._norm(final),
            head=self._matrix(model, output, model.head_bias),
        )

    def __call__(
        self, tokens: Int[Tensor, " rows"], attention_mask: AttentionMask | None
    ) -> Float[Tensor, "rows vocabulary"]:
        """Return the logits after one new token per row, and store the entries of the tokens."""
        index = self.cache.length
        check_length(self.model.config, cached=index, new=1)
        tokens = tokens.to(torch.int64).contiguous()
        valid = _as_read(attention_mask, tokens.shape[0], index + 1)
        position = torch.full_like(tokens, index)
        if valid is not None:
            # Positions count from the first real token, as in ``Layout``.
            position = (position - valid.int().argmax(dim=-1)).clamp(min=0)
        shape = (tokens.shape[0], self.model.config.vocabulary)
        logits = torch.empty(shape, dtype=self._dtype)
        step = self._step
        step.rows, step.index, step.threads = tokens.shape[0], index, torch.get_num_threads()
        step.tokens, step.position = tokens.data_ptr(), position.data_ptr()
        step.logits = logits.data_ptr()
        states = [
            self._claim(layer, call, cache, tokens.shape[0], valid)
            for (layer, call), cache in zip(self._own, self.cache.layers, strict=True)
        ]
        if isinstance(self.cache, EncoderDecoderCache):
            self._read_memory(self.cache, tokens.shape[0])
        failure = self._library.qkvary_step(ctypes.byref(step))
        if failure == UNKNOWN_TOKEN:
            most = step.embedding.width - 1
            raise IndexError(f"expected tokens from 0 to {most}, got {tokens.tolist()}")
        if failure == NO_SCALE:
            raise ValueError(describe_infinite(CACHED))
        if failure:
            raise MemoryError("not enough memory for the partial results of a step")
        for cache, state in zip(self.cache.layers, states, strict=True):
            if cache.state is not None and state is not None:
                cache.state.sums = state
            cache.commit(1)
        return logits

    def _claim(
        self, layer: Layer, call: Call, cache: LayerCache, rows: int, valid: Tensor | None
    ) -> State | None:
        """Give the library the memory that a layer writes to. Return the layer's next state.

        The result is None for a layer that stores keys and values instead of a state.
        """
        claimed = cache.claim(1, rows)
        native.cover(call, rows, cache.length + 1, valid)
        if cache.state is not None:
            return _point_sums(layer.sums, cache.state)
        key, value = _part_names(cache)
        parts = [(call.key, claimed[key]), (call.value, claimed[value])]
        if KEY_ROPE in claimed:
            parts.append((layer.rope, claimed[KEY_ROPE]))
        for stored, part in parts:
            if isinstance(part, Tensor):
                native.point(stored, part)
            else:
                layer.closing = part.closing
                call.coded = cache.length + 1 - part.newest.shape[2] + part.closing
                native.point_codes(stored, part)
        return None

    def _read_memory(self, cache: EncoderDecoderCache, rows: int) -> None:
        """Give the library the addresses of the memory's keys and values, and of its mask."""
        length = cache.cross.length
        mask = _as_read(cache.memory_mask, rows, length)
        # A row that has only padding attends to all of it, so that its softmax is defined.
        self._memory_mask = None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)
        crossing = (layer for layer in self._layers if layer.reads_memory)
        for layer, memory in zip(crossing, cache.cross.layers, strict=True):
            entries, call = memory.read(), layer.attention
            if (found := next(iter(entries.values())).shape[0]) != rows:
                raise ValueError(f"expected a memory of {rows} rows, got a memory of {found} rows")
            for stored, name in zip((call.key, call.value), _part_names(memory), strict=True):
                native.point(stored, entries[name])
            native.cover(call, rows, length, self._memory_mask)

    def _describe(self, stack: Stack) -> list[Layer]:
        """Return a description of each layer for the library.

        Cross attention is described as a separate layer, which comes before the feed-forward
        network of its block.
        """
        layers: list[Layer] = []
        for index, (block, cache) in enumerate(zip(stack.layers, self.cache.layers, strict=True)):
            layers.append(self._layer(block.attention, block.attention_norm, cache))
            if isinstance(block, DecoderBlock) and isinstance(self.cache, EncoderDecoderCache):
                memory = self.cache.cross.layers[index]
                layers.append(self._layer(block.cross, block.cross_norm, memory, reads_memory=True))
            layer, feed_forward = layers[-1], block.feed_forward
            layer.post = block.config.norm_placement.startswith("post")
            layer.feed_forward_norm = self._norm(block.feed_forward_norm)
            layer.up, layer.down = self._linear(feed_forward.up), self._linear(feed_forward.down)
            if feed_forward.gate is not None:
                layer.gate = self._linear(feed_forward.gate)
            layer.activation = ACTIVATIONS[feed_forward.config.activation]
        return layers

    def _layer(
        self,
        attention: Attention,
        norm: nn.Module,
        cache: LayerCache,
        *,
        reads_memory: bool = False,
    ) -> Layer:
        config = cache.config
        sharing, layout = config.variant.sharing, cache.options.layout
        is_rotary = config.variant.positions == "rotary"
        stores_rotated = is_rotary and layout != "sources"
        place = {source: index for index, source in enumerate(PROJECTED)}
        layer = Layer(
            attention_norm=self._norm(norm),
            query=place[sharing.query],
            key=place[sharing.key],
            value=place[sharing.value],
            residual=QUERY_FORMS[config.variant.query_form],
            out=self._linear(attention.o_proj),
            queries=config.heads(sharing.query),
            turns_key=stores_rotated,
            turns_value=stores_rotated and config.value_rope != "none",
            turns_back=config.value_rope == "counter",
            turns_by_index=is_rotary and layout == "sources",
            reads_memory=reads_memory,
            attention=self._attention(cache),
        )
        if cache.state is not None:
            layer.sums = self._sums(attention)
        layer.norms_value = attention.kv_norm is not None
        key_norm = attention.kv_norm or attention.key_norm
        for name, own in (("key_norm", key_norm), ("query_norm", attention.query_norm)):
            if own is not None:
                setattr(layer, name, self._norm(own))
                layer.norms_heads = not own.is_wide
        if attention.latent is not None:
            layer.latent_key = self._matrix(attention.latent.key, "weight", None)
            layer.latent_value = self._matrix(attention.latent.value, "weight", None)
        for source, projection in attention.projections.items():
            if reads_memory and source != sharing.query:
                continue
            down = Matrix()
            if isinstance(projection, LowRank):
                down = self._matrix(projection, "down", None)
            weight = self._matrix(projection, "weight", projection.bias)
            layer.sources[place[source]] = Projected(down=down, weight=weight)
        if config.rotated_channels:
            # Layers with the same rotation share the tables of all positions.
            key = (config.position, config.rotated_channels)
            if key not in self._rotations:
                index = torch.arange(self._max_tokens)[None]
                table = Rotation(index, config, torch.float32, self._max_tokens)
                self._rotations[key] = (table.cos[0, 0].contiguous(), table.sin[0, 0].contiguous())
            cos, sin = self._rotations[key]
            layer.cos, layer.sin, layer.pairs = self._at(cos), self._at(sin), cos.shape[-1]
        return layer

    def _sums(self, attention: Attention) -> Sums:
        variant, decay = attention.config.variant, None
        for term in attention.terms:
            if isinstance(term, Decay):
                fixed = term.fixed_logits(torch.device("cpu")).float()
                decay = self._at(fixed if term.weight is None else term.weight)
        return Sums(
            decay=decay,
            decay_is_learned=variant.decay == "learned",
            decays_keys=variant.normaliser != "undecayed-sum",
            features=FEATURES[variant.core_name],
            scale=1.0 if variant.is_normalised else attention.score_scale,
        )

    def _attention(self, cache: LayerCache) -> Call:
        config = cache.config
        groups, bits = config.heads(config.variant.sharing.key), cache.options.bits
        plain = native.STORAGE[self._dtype]
        parts = _part_names(cache)
        call = Call(
            shared=parts[0] == parts[1],
            storage=plain if bits is None else native.CODES[bits],
            plain=plain,
            groups=groups,
            rows=config.heads(config.variant.sharing.query) // groups,
            queries=1,
            rounded=self._dtype == torch.bfloat16,
            scale=config.content_scale * native.LOG2_E,
        )
        if config.variant.positions == "rotary" and cache.options.layout == "sources":
            self._kept += native.rotate_when_read(call, config, self._max_tokens)
        return call

    def _linear(self, linear: nn.Linear) -> Matrix:
        return self._matrix(linear, "weight", linear.bias)

    def _matrix(self, module: nn.Module, name: str, bias: Tensor | None) -> Matrix:
        numbers = self._numbers[module, name]
        width, inner = numbers.stored.shape
        return Matrix(
            weight=self._at(numbers.stored),
            bias=None if bias is None else self._at(bias),
            scales=None if numbers.scales is None else self._at(numbers.scales),
            width=width,
            inner=inner,
        )

    def _norm(self, norm: nn.Module) -> Norm:
        weight, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
        return Norm(
            weight=None if weight is None else self._at(weight),
            bias=None if bias is None else self._at(bias),
            kind=RMS_NORM if isinstance(norm, nn.RMSNorm | HeadNorm) else LAYER_NORM,
            epsilon=norm.eps,
        )

    def _positions(self, learned: Tensor | None) -> int | None:
        """Return the address of the table that is added to the embedded tokens, or None."""
        model = self.model
        if learned is not None:
            return self._at(learned)
        if model.config.positions == "none":
            return None
        index = torch.arange(self._max_tokens)[None]
        table = sinusoid(index, model.config.d_model, model.embedding.dtype, model.config.positions)
        return self._at(table[0].contiguous())

    def _at(self, tensor: Tensor) -> int:
        # Detached: a cast would give the parameter new memory, and free this.
        self._kept.append(tensor.detach())
        return tensor.data_ptr()


def _as_read(mask: Tensor | None, rows: int, tokens: int) -> Tensor | None:
    """Return a checked mask in the library's form, one byte per token."""
    if mask is None:
        return None
    if mask.shape != (rows, tokens):
        raise ValueError(f"expected attention_mask [{rows}, {tokens}], got {list(mask.shape)}")
    mask = mask.bool()
    return mask if mask.stride(-1) == 1 else mask.contiguous()


def _point_sums(sums: Sums, store: StateStore) -> State:
    """Set ``sums`` to the state and to memory for the next one; a failed step keeps the state."""
    before = store.sums
    if before is None:
        raise ValueError("expected a state that has seen a token, got an empty state")
    values, keys = before.values.float().contiguous(), before.keys
    keys = None if keys is None else keys.float().contiguous()
    store.sums = State(values, keys)
    after = State(torch.empty_like(values), None if keys is None else torch.empty_like(keys))
    sums.values, sums.values_after = values.data_ptr(), after.values.data_ptr()
    if keys is not None and after.keys is not None:
        sums.keys, sums.keys_after = keys.data_ptr(), after.keys.data_ptr()
    return after


def _part_names(cache: LayerCache) -> tuple[str, str]:
    """Return the names under which a cache stores its keys and its values."""
    sharing = cache.config.variant.sharing
    if cache.options.layout == "sources":
        return sharing.key, sharing.value
    if cache.options.layout == "rotated" and sharing.key == sharing.value:
        return "key", "key"
    return "key", "value"
