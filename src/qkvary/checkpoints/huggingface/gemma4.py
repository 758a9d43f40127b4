"""An exact smaller cache for the global layers of an unmodified Hugging Face Gemma 4.

With ``attention_k_eq_v``, a global layer projects once and caches two tensors: the value ``V =
norm(x W)`` and the key ``K = RoPE_p(gamma * V)``, which rotates only some channels (128 of 512 as
published). So V and the rotated channels of K determine both tensors, and so do V and the
positions. Layers with a window and layers that read another layer's keys are unchanged.

The cache is bit-exact in float32 and float64. In 16 bits the model computes K from the unrounded
norm and rounds K once, but this cache computes K from the rounded V, an error of half a unit in the
last place.

Source: the modelling files of Gemma 4 in transformers 5.23.0.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

Layout = Literal["value and slice", "rotate when read"]
"""What the cache stores: V and the rotated channels of K, or V alone with the position of each
token."""

GLOBAL = "full_attention"
FIXED_ROTATIONS = ("default", "proportional")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFromValue:
    """Computes the keys of a layer from its values."""

    gain: nn.Parameter
    """The weight of the key norm, one value per channel."""
    rotary: nn.Module
    angles: int
    """The number of rotated channel pairs: the first channels of the two halves of a head."""

    def apply_gain(self, values: Tensor, computed_in: torch.dtype) -> Tensor:
        """Return ``gamma * V``, multiplied in float32 as in the model, in ``computed_in``."""
        return (values.float() * self.gain.float()).to(computed_in)

    def rotated(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotated channels in the first and in the second half of the keys' channels."""
        half = keys.shape[-1] // 2
        return keys[..., : self.angles], keys[..., half : half + self.angles]

    def rotate(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Apply ``RoPE_p`` to the rotated channels, in the order of operations of the model."""
        cos, sin = self.rotary(keys, positions, GLOBAL)
        cos, sin = (part[..., : self.angles].unsqueeze(1) for part in (cos, sin))
        first, second = self.rotated(keys)
        turned = (first * cos + -second * sin, second * cos + first * sin)
        return self.join(keys, torch.cat(turned, dim=-1))

    def join(self, still: Tensor, turned: Tensor) -> Tensor:
        """Return keys with the rotated channels ``turned`` and the other channels of ``still``."""
        half = still.shape[-1] // 2
        first, second = turned.chunk(2, dim=-1)
        return torch.cat(
            (first, still[..., self.angles : half], second, still[..., half + self.angles :]),
            dim=-1,
        )


class ValueAndSliceLayer(DynamicLayer):
    """Stores V and the rotated channels of K."""

    def __init__(self, make_key: KeyFromValue) -> None:
        super().__init__()
        self.make_key = make_key

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new tokens and return all keys and values."""
        part = torch.cat(self.make_key.rotated(key_states), dim=-1)
        turned, values = super().update(part, value_states, *args, **kwargs)
        still = self.make_key.apply_gain(values, value_states.dtype).to(key_states.dtype)
        return self.make_key.join(still, turned), values


class RotateWhenReadLayer(DynamicLayer):
    """Stores V and computes K at every step.

    In place of keys, the first such layer of a cache stores the positions of the tokens, 4 bytes
    each; the other layers store nothing.
    """

    def __init__(self, make_key: KeyFromValue, first: "RotateWhenReadLayer | None") -> None:
        super().__init__()
        self.make_key = make_key
        self.first = first or self
        self.announced: tuple[Tensor | None] | None = None
        """The positions of the next tokens, which the model's hook puts into a tuple of length 1;
        ``(None,)`` means the positions after the stored ones."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new tokens and return all keys and values."""
        stored = key_states[..., :0]
        if self.first is self:
            stored = self._take_positions(key_states)
        _, values = super().update(stored, value_states, *args, **kwargs)
        still = self.make_key.apply_gain(values, value_states.dtype).to(key_states.dtype)
        positions = cast("Tensor", self.first.keys)[:, 0, :, 0].to(key_states.device)
        return self.make_key.rotate(still, positions), values

    def _take_positions(self, keys: Tensor) -> Tensor:
        """Return the positions that the model's hook set, of shape [rows, 1, tokens, 1]."""
        rows, _, tokens, _ = keys.shape
        if self.announced is None:
            raise ValueError(
                "expected positions from the model that this cache was made for, got a call of "
                "another model"
            )
        (new,) = self.announced
        self.announced = None
        if new is None:
            seen = self.get_seq_length()
            new = torch.arange(seen, seen + tokens, device=keys.device)[None]
        new = new.to(device=keys.device, dtype=torch.int32)
        return new.expand(rows, tokens)[:, None, :, None]

    def get_seq_length(self) -> int:
        """Return the number of cached tokens."""
        return 0 if self.values is None or self.values.ndim < 4 else self.values.shape[-2]


_EXACT_LAYERS = (ValueAndSliceLayer, RotateWhenReadLayer)
_HOOKS: WeakKeyDictionary[nn.Module, RemovableHandle] = WeakKeyDictionary()


def exact_cache(model: nn.Module, *, layout: Layout = "value and slice") -> DynamicCache:
    """Make an empty cache that a Gemma 4 model takes as ``past_key_values``.

    The cache takes less memory than the usual one, and the model's results are exactly the same.

    Args:
        model: A Hugging Face Gemma 4: the whole model, or its language model alone.
        layout: ``value and slice`` adds no rotations to a step; ``rotate when read`` stores less,
            but rotates every stored key at every step. This layout needs the positions of the
            tokens, so ``exact_cache`` adds a hook to the model; ``uninstall`` removes the hook.

    Raises:
        ValueError: if no layer shares key and value, or if the layout saves no memory.
    """
    text = _find_text_model(model)
    makers = _find_makers(text, layout)
    if layout == "rotate when read" and text not in _HOOKS:
        _hook(text, None)
    cache = DynamicCache(config=cast("Any", text).config)
    _swap_layers(cache, makers, layout)
    return cache


def install(model: nn.Module, *, layout: Layout = "value and slice") -> None:
    """Replace every new cache of a Gemma 4 model by a smaller cache with exactly the same results.

    This includes the caches that ``generate`` makes. The model gets a hook that replaces the layers
    of empty dynamic caches; the model's code and weights are unchanged. A static or quantised cache
    is refused when it is used. The arguments and errors are those of ``exact_cache``.
    """
    text = _find_text_model(model)
    _find_makers(text, layout)
    uninstall(model)
    _hook(text, layout)


def uninstall(model: nn.Module) -> None:
    """Undo ``install`` and ``exact_cache``, if they were called."""
    handle = _HOOKS.pop(_find_text_model(model), None)
    if handle is not None:
        handle.remove()


def cache_bytes(cache: Cache) -> int:
    """Return the size of a cache in bytes with its positions; shared memory counts once."""
    layers = cast("list[Any]", cache.layers)
    held: list[Tensor | None] = [part for one in layers for part in (one.keys, one.values)]
    storages = {
        part.untyped_storage().data_ptr(): part.untyped_storage().nbytes()
        for part in held
        if part is not None
    }
    return sum(storages.values())


def _hook(text: nn.Module, layout: Layout | None) -> None:
    hook = partial(_before_forward, layout=layout)
    _HOOKS[text] = text.register_forward_pre_hook(hook, with_kwargs=True)


def _before_forward(
    text: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    layout: Layout | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names = list(inspect.signature(text.forward).parameters)
    given = dict(zip(names, args, strict=False)) | kwargs
    cache = given.get("past_key_values")
    if layout is not None:
        wanted = given.get("use_cache")
        if cache is None and (cast("Any", text).config.use_cache if wanted is None else wanted):
            cache = given["past_key_values"] = exact_cache(text, layout=layout)
        elif isinstance(cache, Cache):
            _swap_layers(cache, _find_makers(text, layout), layout)
    if isinstance(cache, Cache):
        for layer in cache.layers:
            if isinstance(layer, RotateWhenReadLayer):
                layer.announced = (given.get("position_ids"),)
    return (), given


def _swap_layers(cache: Cache, makers: Mapping[int, KeyFromValue], layout: Layout) -> None:
    """Replace the layers of an empty dynamic cache; a used cache is unchanged."""
    if cache.layer_class_to_replicate is not None:
        # A cache made without a configuration adds layers on first use.
        while len(cache.layers) <= max(makers):
            cache.layers.append(cache.layer_class_to_replicate())
    first: RotateWhenReadLayer | None = None
    for index, make_key in makers.items():
        layer = cache.layers[index]
        if isinstance(layer, _EXACT_LAYERS):
            continue
        if type(layer) is not DynamicLayer:
            raise ValueError(
                "expected a DynamicCache, because its layers can be replaced by smaller ones, got "
                f"a cache with {type(layer).__name__}; pass a DynamicCache, or uninstall the exact "
                "cache"
            )
        if layer.get_seq_length():
            continue
        if layout == "value and slice":
            cache.layers[index] = ValueAndSliceLayer(make_key)
        else:
            cache.layers[index] = made = RotateWhenReadLayer(make_key, first)
            first = first or made


def _find_text_model(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if _attentions(module):
            return module
    raise ValueError(
        f"expected a Gemma 4 model with attention_k_eq_v, got {type(model).__name__}, which has no "
        "layers that share key and value"
    )


def _attentions(text: nn.Module) -> dict[int, nn.Module]:
    layers = getattr(text, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not hasattr(text, "rotary_emb"):
        return {}
    found = {index: getattr(layer, "self_attn", None) for index, layer in enumerate(layers)}
    return {
        index: attention
        for index, attention in found.items()
        if isinstance(attention, nn.Module)
        and getattr(attention, "use_alternative_attention", False)
        and not getattr(attention, "is_kv_shared_layer", False)
    }


def _find_makers(text: nn.Module, layout: Layout) -> dict[int, KeyFromValue]:
    """Return, for each layer with K=V, the object that computes its keys from its values."""
    if layout not in get_args(Layout):
        raise ValueError(
            f"expected a layout, got {layout!r}; choices: {', '.join(get_args(Layout))}"
        )
    rotary = cast("Any", text).rotary_emb
    kind = rotary.rope_type[GLOBAL]
    scaling = getattr(rotary, f"{GLOBAL}_attention_scaling")
    if kind not in FIXED_ROTATIONS or scaling != 1.0:
        raise ValueError(
            f"expected rotary positions with fixed frequencies and scale 1, got {kind} with "
            f"the scale {scaling}; choices: {', '.join(FIXED_ROTATIONS)}"
        )
    angles = int((getattr(rotary, f"{GLOBAL}_inv_freq") != 0).sum())
    makers: dict[int, KeyFromValue] = {}
    for index, module in _attentions(text).items():
        attention = cast("Any", module)
        if attention.k_norm.eps != attention.v_norm.eps:
            raise ValueError(
                "expected the same epsilon in the norms of keys and values, got "
                f"{attention.k_norm.eps} and {attention.v_norm.eps}"
            )
        if layout == "value and slice" and 2 * angles >= attention.head_dim:
            raise ValueError(
                f"expected keys with some unrotated channels for the layout {layout!r}, got keys "
                f"with all {attention.head_dim} channels rotated; choices: rotate when read"
            )
        makers[index] = KeyFromValue(gain=attention.k_norm.weight, rotary=rotary, angles=angles)
    return makers
