"""Serving plans: how many users a device holds, how many devices they need, and what binds.

A replica of the model spans one device or several. Over several, weights and KV heads are divided;
a head is not, so that a device holds at least one KV head of every layer, and a latent entirely.
"""

import math
from dataclasses import dataclass
from typing import Literal

from qkvary.arch.blocks import AttentionLayer, ProjectedAttention
from qkvary.arch.models import Model
from qkvary.costs.cache import layerwise_cache_bytes
from qkvary.costs.decoding import Bound, DecodeStep, decode_step, weight_bytes
from qkvary.costs.devices import Device
from qkvary.costs.formats import Format

Fills = Literal["weights", "cache"]
REPLICA_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Devices that a replica may span."""
MOST_TOKENS = 2**36
"""Where a search for the longest context ends: beyond it memory is not what limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is to be served, on what."""

    device: Device
    """The device."""
    context: int
    """Tokens that every user keeps."""
    users: int
    """Users at once, a sequence each."""
    weights: Format
    """How weights are stored."""
    reserve: float = 0.1
    """The share of memory that is left to activations, fragments and the engine."""
    price: float | None = None
    """Of one device and month."""
    encoder_tokens: int | None = None
    """Tokens of the encoder, where the model does not fix them."""
    count_weights: bool = True
    """Whether weights take memory; the papers' scenario leaves them out."""

    def __post_init__(self) -> None:
        if self.context < 1 or self.users < 1:
            raise ValueError(
                f"expected a context and users of at least 1, got {self.context} and {self.users}"
            )
        if not 0 <= self.reserve < 1:
            raise ValueError(f"expected a reserve in [0, 1), got {self.reserve}")
        if self.price is not None and not 0 <= self.price < float("inf"):
            raise ValueError(f"expected a price of at least 0, got {self.price}")

    @property
    def usable_bytes(self) -> int:
        """Memory of one device less the reserve."""
        return math.floor(self.device.memory_bytes * (1 - self.reserve))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """How one model, with its cache in one format, meets a demand."""

    cache: Format
    """How the cache is stored."""
    weight_bytes: int
    """Weights of the whole model."""
    user_bytes: int
    """Cache of one user at the full context."""
    devices_per_replica: int | None
    """Devices that share one copy of the model; ``None`` where no size is enough."""
    users_per_replica: int
    """The largest batch at the full context."""
    users_per_device: float
    """The same, over the devices of a replica."""
    devices: int | None
    """Devices for all users."""
    price_per_month: float | None
    """Of all devices."""
    longest_context: int | None
    """Tokens of one user alone on one replica; ``None`` where memory sets no limit."""
    fills: Fills | None
    """What takes most of a full replica's memory; ``None`` where nothing fits."""
    step: DecodeStep | None
    """One decoding step of a replica that is as full as the demand makes it."""
    tokens_per_second: float | None
    """Of such a replica, at the roofline."""
    tokens_per_second_and_user: float | None
    """What one of its users sees."""
    bound: Bound | None
    """What takes most of the time of that step."""

    @property
    def fits(self) -> bool:
        """Whether all users can be served."""
        return self.devices is not None


def plan_serving(model: Model, demand: Demand, cache: Format) -> ServingPlan:
    """Plan the serving of one model.

    A replica has the size that needs the fewest devices in all, the smallest among equals.

    Args:
        model: Any model that decodes.
        demand: What is asked.
        cache: How the cache is stored.

    Raises:
        ValueError: if the model does not decode.
    """
    if not model.is_causal:
        raise ValueError("expected a causal model to plan a cache for, got a bidirectional one")
    weights = weight_bytes(model, demand.weights) if demand.count_weights else 0
    best = _choose_replica(model, demand, cache, weights)
    users = sum(_user_bytes(model, demand, cache, demand.context))
    if best is None:
        return ServingPlan(
            cache=cache,
            weight_bytes=weights,
            user_bytes=users,
            devices_per_replica=None,
            users_per_replica=0,
            users_per_device=0.0,
            devices=None,
            price_per_month=None,
            longest_context=_longest_context(model, demand, cache, weights, REPLICA_SIZES[-1]),
            fills=None,
            step=None,
            tokens_per_second=None,
            tokens_per_second_and_user=None,
            bound=None,
        )
    size, batch = best
    devices = size * math.ceil(demand.users / batch)
    step = decode_step(
        model,
        batch=min(batch, demand.users),
        context=demand.context,
        weights=demand.weights,
        cache=cache,
        encoder_tokens=demand.encoder_tokens,
    )
    speed = step.tokens_per_second(demand.device, devices=size)
    return ServingPlan(
        cache=cache,
        weight_bytes=weights,
        user_bytes=users,
        devices_per_replica=size,
        users_per_replica=batch,
        users_per_device=batch / size,
        devices=devices,
        price_per_month=None if demand.price is None else devices * demand.price,
        longest_context=_longest_context(model, demand, cache, weights, size),
        fills="weights" if weights >= min(batch, demand.users) * users else "cache",
        step=step,
        tokens_per_second=speed,
        tokens_per_second_and_user=None if speed is None else speed / step.batch,
        bound=step.bound(demand.device),
    )


def device_cache_bytes(
    model: Model,
    *,
    context: int,
    cache: Format,
    devices: int,
    encoder_tokens: int | None = None,
) -> int:
    """Bytes of one sequence's cache on the fullest device of a replica.

    The most on the way to ``context`` tokens. KV heads are divided among the devices and never
    split, so that a single KV head is on every device.
    """
    layers = layerwise_cache_bytes(
        model, context=context, stored_as=cache, encoder_tokens=encoder_tokens, peak=True
    )
    return sum(
        math.ceil(size * _share(layer.attention, devices))
        for layer, size in zip(model.layers, layers, strict=True)
    )


def _share(attention: AttentionLayer, devices: int) -> float:
    """The part of a layer's cache that the fullest device holds."""
    if not isinstance(attention, ProjectedAttention):
        return 1.0
    heads = max(attention.config.heads(source) for source in attention.config.variant.cached)
    return math.ceil(heads / devices) / heads


def _choose_replica(
    model: Model, demand: Demand, cache: Format, weights: int
) -> tuple[int, int] | None:
    """The devices of a replica and the users that it holds."""
    best: tuple[int, int, int] | None = None
    for size in REPLICA_SIZES:
        free = demand.usable_bytes - math.ceil(weights / size)
        if free <= 0:
            continue
        one = device_cache_bytes(
            model,
            context=demand.context,
            cache=cache,
            devices=size,
            encoder_tokens=demand.encoder_tokens,
        )
        batch = demand.users if one == 0 else free // one
        if batch < 1:
            continue
        devices = size * math.ceil(demand.users / batch)
        if best is None or devices < best[0]:
            best = (devices, size, batch)
        if size >= devices:
            break
    return None if best is None else best[1:]


def _user_bytes(model: Model, demand: Demand, cache: Format, context: int) -> list[int]:
    return list(
        layerwise_cache_bytes(
            model,
            context=context,
            stored_as=cache,
            encoder_tokens=demand.encoder_tokens,
            peak=True,
        )
    )


def _longest_context(
    model: Model, demand: Demand, cache: Format, weights: int, size: int
) -> int | None:
    """The most tokens whose cache fits beside the weights, by bisection; bytes grow with tokens."""
    free = demand.usable_bytes - math.ceil(weights / size)

    def fits(tokens: int) -> bool:
        held = device_cache_bytes(
            model,
            context=tokens,
            cache=cache,
            devices=size,
            encoder_tokens=demand.encoder_tokens,
        )
        return held <= free

    if not fits(1):
        return 0
    if fits(MOST_TOKENS):
        return None
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
