"""One copy of a model on several devices: the part of the cache on each.

Weights are divided evenly. KV heads are divided but never split, so a single KV head is on every
device. A tensor from which all heads make keys and values (a latent, the layer input, or keys that
give the values) is on every device too. A layer that stores any latent counts as undivided.
"""

from qkvary.arch.blocks import INPUT_STORED, AttentionLayer, Layer, ProjectedAttention
from qkvary.arch.models import Model, count_kinds
from qkvary.costs.cache import (
    crossing_bytes,
    crossing_read_bytes,
    layer_cache_bytes,
    layer_read_bytes,
)
from qkvary.costs.formats import Format

NEEDED_WHOLE = (*INPUT_STORED, "latent", "keys")
"""Storage of which every head needs all channels."""


def device_cache_bytes(
    model: Model,
    *,
    context: int,
    stored_as: Format,
    devices: int,
    encoder_tokens: int | None = None,
) -> int:
    """Return the peak bytes of one sequence's cache on the fullest device, up to ``context``."""
    seen = model.count_encoder_tokens(encoder_tokens, context)

    def keep(layer: Layer) -> int:
        own = layer_cache_bytes(layer.attention, context=context, stored_as=stored_as, peak=True)
        crossed = crossing_bytes(layer, encoder_tokens=seen, stored_as=stored_as)
        return _on_fullest(layer, own, crossed, devices)

    return sum(count * keep(layer) for layer, count in count_kinds(model.layers))


def device_read_bytes(
    model: Model,
    *,
    context: int,
    stored_as: Format,
    devices: int,
    encoder_tokens: int | None = None,
) -> int:
    """Return the bytes of one sequence's cache that the fullest device reads for one token.

    The new token is the last of ``context``.
    """
    seen = model.count_encoder_tokens(encoder_tokens, context)

    def read(layer: Layer) -> int:
        own = layer_read_bytes(layer.attention, context=context, stored_as=stored_as)
        crossed = crossing_read_bytes(layer, encoder_tokens=seen, stored_as=stored_as)
        return _on_fullest(layer, own, crossed, devices)

    return sum(count * read(layer) for layer, count in count_kinds(model.layers))


def _device_bytes(attention: AttentionLayer, size: int, devices: int) -> int:
    """Return how many of ``size`` bytes are on the device with the most heads."""
    if not isinstance(attention, ProjectedAttention) or attention.storage in NEEDED_WHOLE:
        return size
    config = attention.config
    # A source with one head, such as a rotary key that all heads share, is on every device.
    cached = config.variant.cached
    held = sum(-(-config.heads(one) // devices) * config.channels(one) for one in cached)
    return -(-size * held // sum(map(config.width, cached)))


def _on_fullest(layer: Layer, own: int, crossed: int, devices: int) -> int:
    """Return the bytes of a layer and of its cross attention on the fullest device."""
    held = _device_bytes(layer.attention, own, devices)
    return held if layer.cross is None else held + _device_bytes(layer.cross, crossed, devices)
