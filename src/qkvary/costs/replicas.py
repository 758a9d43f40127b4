"""Cache bytes on each device of a replica.

A replica is one copy of the model on several devices.

Weights are divided evenly among the devices. Every device stores an equal share of the KV heads,
rounded up to whole heads, so a single KV head is on every device. A tensor from which all heads
make keys and values (a latent or the layer input) is also on every device. A layer that stores any
latent counts as undivided.
"""

from qkvary.arch.blocks import AttentionLayer, Layer, ProjectedAttention
from qkvary.arch.models import Model, count_kinds
from qkvary.costs.cache import crossing_bytes, layer_cache_bytes, layer_read_bytes
from qkvary.costs.formats import Format


def device_cache_bytes(
    model: Model,
    *,
    context: int,
    stored_as: Format | str = "bf16",
    devices: int = 1,
    encoder_tokens: int | None = None,
    is_read: bool = False,
) -> int:
    """Return one sequence's peak cache bytes on the device that stores the most.

    The peak is the maximum over all contexts up to ``context``. If ``is_read`` is True, return the
    bytes that this device reads to decode the last token of ``context``.
    """
    seen = model.count_encoder_tokens(encoder_tokens, context)

    def count(layer: Layer) -> int:
        attention, cross = layer.attention, layer.cross
        own = (
            layer_read_bytes(attention, context=context, stored_as=stored_as)
            if is_read
            else layer_cache_bytes(attention, context=context, stored_as=stored_as, peak=True)
        )
        held = _device_bytes(attention, own, devices)
        if cross is None:
            return held
        crossed = crossing_bytes(layer, encoder_tokens=seen, stored_as=stored_as)
        return held + _device_bytes(cross, crossed, devices)

    return sum(number * count(layer) for layer, number in count_kinds(model.layers))


def _device_bytes(attention: AttentionLayer, size: int, devices: int) -> int:
    """Return how many of a layer's ``size`` bytes are on the device that has the most heads."""
    if not isinstance(attention, ProjectedAttention):
        return size
    if attention.storage in ("input", "latent"):
        # Every head needs all channels.
        return size
    config = attention.config
    # A source with one head, such as a rotary key that all heads share, is on every device.
    cached = config.variant.cached
    held = sum(-(-config.heads(one) // devices) * config.channels(one) for one in cached)
    return -(-size * held // sum(map(config.width, cached)))
