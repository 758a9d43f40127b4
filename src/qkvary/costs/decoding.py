"""One decoding step: the bytes moved, the arithmetic, and the minimum time for both.

The roofline: a step takes at least the time to move its bytes at the device's bandwidth, and at
least the time to compute its matrix products at the device's matrix rate. Real kernels take longer;
the ratios between variants are meaningful.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from qkvary.arch.blocks import Experts, Layer, ProjectedAttention
from qkvary.arch.models import Model, count_kinds
from qkvary.arch.parts import Linear, Norm
from qkvary.costs.cache import layer_cache_bytes
from qkvary.costs.devices import Device
from qkvary.costs.formats import Format
from qkvary.costs.macs import decode_macs
from qkvary.costs.parameters import (
    layer_attention_parameters,
    layer_norms,
    model_parameters,
    projection_parameters,
)
from qkvary.costs.replicas import device_cache_bytes

Bound = Literal["weights", "cache", "arithmetic"]
"""The part of a step that takes the most time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """The cost of one decoding step: one token for each of ``batch`` sequences."""

    batch: int
    """Number of sequences, each of which gets one token."""
    context: int
    """Tokens that each new token attends to, itself included."""
    weight_bytes: float
    """Bytes of weights read; the number of experts is the expected number of distinct ones."""
    cache_bytes: int
    """Number of cache bytes that are read. Every device of a replica counts as if it read as many
    bytes as the device that reads most."""
    written_bytes: int
    macs: int

    @property
    def moved_bytes(self) -> float:
        """The number of bytes read and written."""
        return self.weight_bytes + self.cache_bytes + self.written_bytes

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity: twice the MACs divided by the bytes moved."""
        return 2 * self.macs / self.moved_bytes

    def seconds(self, device: Device, *, devices: int = 1) -> float | None:
        """Return the roofline time on one device, or on several devices that form a replica.

        If the matrix rate is not known, the result is the time to move the bytes. Moving the bytes
        takes most of a step.
        """
        memory, arithmetic = self._times(device)
        return None if memory is None else max(memory, arithmetic or 0.0) / devices

    def bound(self, device: Device) -> Bound | None:
        """Return the resource that takes most of the time; ``None`` for an unknown bandwidth."""
        memory, arithmetic = self._times(device)
        if memory is None:
            return None
        if arithmetic is not None and arithmetic >= memory:
            return "arithmetic"
        return "weights" if self.weight_bytes >= self.cache_bytes else "cache"

    def _times(self, device: Device) -> tuple[float | None, float | None]:
        bandwidth, rate = device.bandwidth_bytes_per_second, device.flops_per_second_16_bit
        memory = None if bandwidth is None else self.moved_bytes / bandwidth
        arithmetic = None if rate is None else 2 * self.macs / rate
        return memory, arithmetic


def decode_step(
    model: Model,
    *,
    batch: int,
    context: int,
    weights: Format,
    cache: Format,
    devices: int = 1,
    encoder_tokens: int | None = None,
) -> DecodeStep:
    """Return the bytes and MACs of one decoding step.

    Each stored tensor is read once. If several ``devices`` form a replica, each device reads
    everything that it holds.
    """
    if batch < 1:
        raise ValueError(f"expected a batch of at least 1 sequence, got {batch}")
    macs = decode_macs(model, context=context, encoder_tokens=encoder_tokens).total
    # A step ends when the device with the most cache has read it.
    read = devices * device_cache_bytes(
        model,
        context=context,
        stored_as=cache,
        devices=devices,
        encoder_tokens=encoder_tokens,
        is_read=True,
    )
    # The keys and values of the encoder are written before the first step.
    written = sum(
        count * layer_cache_bytes(layer.attention, context=1, stored_as=cache)
        for layer, count in count_kinds(model.layers)
    )
    return DecodeStep(
        batch=batch,
        context=context,
        weight_bytes=read_weights(model, batch=batch) * weights.row_bytes(2**20) / 2**20,
        cache_bytes=batch * read,
        written_bytes=batch * written,
        macs=batch * macs,
    )


def weight_bytes(model: Model, weights: Format) -> int:
    """Return the number of bytes that all parameters take in the format ``weights``."""
    return weights.row_bytes(model_parameters(model).total)


def read_weights(model: Model, *, batch: int) -> float:
    """Return the number of parameters that a decoding step of ``batch`` tokens reads.

    A tied head is read as a matrix. Embedding rows are looked up and do not count. The encoder and
    the projections of its output to keys and values do not count, because their results are stored.
    The number of experts is the expected number of distinct experts in a batch, if routing is
    uniform and independent.
    """
    outside = _numbers((*model.head, *model.others, *model.norms)) + model.entries
    kinds = count_kinds(model.layers)
    return outside + sum(count * _read_layer(layer, batch) for layer, count in kinds)


def expected_experts(part: Experts, batch: int) -> float:
    """Return how many distinct experts ``batch`` tokens use on average if routing is uniform."""
    return part.count * (1 - (1 - part.active / part.count) ** batch)


def _read_layer(layer: Layer, batch: int) -> float:
    read: float = layer_attention_parameters(layer.attention).total + layer.entries
    read += _numbers((*layer_norms(layer), *layer.others))
    if layer.cross is not None:
        read += _read_crossing(layer.cross)
    for part in layer.feed_forward:
        if isinstance(part, Experts):
            read += expected_experts(part, batch) * _numbers(part.expert.linears)
            read += _numbers(part.always) + part.entries
        else:
            read += _numbers(part.linears)
    return read


def _read_crossing(cross: ProjectedAttention) -> int:
    """Return the number of parameters of cross attention that decoder tokens pass through."""
    config, variant = cross.config, cross.config.variant
    read = layer_attention_parameters(cross).total
    for source in variant.projections:
        if source in variant.cached and source != variant.sharing.query:
            size = projection_parameters(config, source)
            read -= size.weights + (0 if source in cross.unbiased else size.biases)
    return read


def _numbers(parts: Iterable[Linear | Norm]) -> int:
    return sum(part.weights + part.biases for part in parts)
