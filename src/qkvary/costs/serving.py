"""Serving plans: users per device, devices for all users, and the time of a decoding step.

A replica of the model runs on one or several devices. ``costs.replicas`` describes how the devices
divide the model.
"""

import math
from dataclasses import dataclass
from typing import Literal

from qkvary.arch.models import Model
from qkvary.costs.decoding import Bound, DecodeStep, decode_step, weight_bytes
from qkvary.costs.devices import Device
from qkvary.costs.formats import Format
from qkvary.costs.replicas import device_cache_bytes

Fills = Literal["weights", "cache"]
REPLICA_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Allowed numbers of devices per replica."""
MOST_TOKENS = 2**36
"""Upper bound of the search for the longest context. If it fits, the context is unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The workload to serve, and the device that serves it."""

    device: Device
    """The device that serves the model."""
    context: int
    """Tokens that are cached for every user."""
    users: int
    """Concurrent users, each with one sequence."""
    weights: Format
    """The format of the weights."""
    reserve: float = 0.1
    """The share of the memory that is reserved for activations, fragmentation and the engine."""
    price: float | None = None
    """The price of one device per month."""
    encoder_tokens: int | None = None
    """Number of encoder tokens, if the model does not fix it."""
    replica_sizes: tuple[int, ...] = REPLICA_SIZES
    """Allowed numbers of devices per replica, in ascending order."""

    def __post_init__(self) -> None:
        if not 0 <= self.reserve < 1:
            raise ValueError(f"expected a reserve in [0, 1), got {self.reserve}")
        if self.price is not None and not 0 <= self.price < float("inf"):
            raise ValueError(f"expected a price of at least 0, got {self.price}")

    @property
    def usable_bytes(self) -> int:
        """Memory of one device minus the reserve."""
        return math.floor(self.device.memory_bytes * (1 - self.reserve))

    def user_bytes(
        self, model: Model, cache: Format, *, context: int | None = None, devices: int = 1
    ) -> int:
        """Return one user's peak cache bytes on each of the devices that form a replica.

        The peak is the maximum over all contexts up to ``context``, by default the demand's
        context.
        """
        return device_cache_bytes(
            model,
            context=self.context if context is None else context,
            stored_as=cache,
            devices=devices,
            encoder_tokens=self.encoder_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """How one model, with its cache in one format, serves a demand."""

    cache: Format
    weight_bytes: int
    user_bytes: int
    longest_context: int | None
    """Maximum context of a replica with one user, in tokens; ``None`` if memory sets no limit."""
    devices_per_replica: int | None = None
    """Number of devices per replica; ``None`` if the model does not fit on any allowed number."""
    users_per_replica: int = 0
    """Maximum number of users per replica at the full context."""
    devices: int | None = None
    """Number of devices for all users."""
    price_per_month: float | None = None
    fills: Fills | None = None
    """The larger part of a replica's memory at this demand; ``None`` if the model does not fit."""
    step: DecodeStep | None = None
    """The cost of one decoding step of a replica, with one token for each of its users."""
    step_seconds: float | None = None
    """The time of this step by the roofline model; ``None`` if the device's rates are not known."""
    bound: Bound | None = None
    """The largest part of ``step_seconds``; ``None`` if the device's bandwidth is not known."""

    @property
    def fits(self) -> bool:
        """Whether all users can be served."""
        return self.devices is not None

    @property
    def users_per_device(self) -> float:
        """The number of users per device, which can be below 1."""
        return self.users_per_replica / (self.devices_per_replica or 1)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of a replica with all its users, by the roofline."""
        if self.step is None or self.step_seconds is None:
            return None
        return self.step.batch / self.step_seconds

    @property
    def tokens_per_second_and_user(self) -> float | None:
        """Tokens per second of one user, by the roofline."""
        return None if self.step_seconds is None else 1 / self.step_seconds


def plan_serving(model: Model, demand: Demand, cache: Format) -> ServingPlan:
    """Plan the serving of one model.

    The number of devices per replica is the one that serves all users with the fewest devices. If
    several numbers are equally good, the smallest is taken.

    Raises:
        ValueError: if the model does not decode.
    """
    if not model.is_causal:
        raise ValueError("expected a causal model to plan a cache for, got a bidirectional model")
    weights, user = weight_bytes(model, demand.weights), demand.user_bytes(model, cache)
    size, batch = _choose_replica(model, demand, cache, weights) or (None, 0)
    longest = _longest_context(model, demand, cache, weights, size or demand.replica_sizes[-1])
    if size is None:
        return ServingPlan(
            cache=cache, weight_bytes=weights, user_bytes=user, longest_context=longest
        )
    devices = size * _divide_up(demand.users, batch)
    step = decode_step(
        model,
        batch=min(batch, demand.users),
        context=demand.context,
        weights=demand.weights,
        cache=cache,
        devices=size,
        encoder_tokens=demand.encoder_tokens,
    )
    return ServingPlan(
        cache=cache,
        weight_bytes=weights,
        user_bytes=user,
        devices_per_replica=size,
        users_per_replica=batch,
        devices=devices,
        price_per_month=None if demand.price is None else devices * demand.price,
        longest_context=longest,
        fills="weights" if weights >= step.batch * user else "cache",
        step=step,
        step_seconds=step.seconds(demand.device, devices=size),
        bound=step.bound(demand.device),
    )


def _choose_replica(
    model: Model, demand: Demand, cache: Format, weights: int
) -> tuple[int, int] | None:
    """Return a replica's numbers of devices and users, or ``None`` if the model does not fit."""
    best: tuple[int, int, int] | None = None
    for size in demand.replica_sizes:
        if best is not None and size >= best[0]:
            break
        free = demand.usable_bytes - _divide_up(weights, size)
        one = demand.user_bytes(model, cache, devices=size)
        if free < max(1, one):
            continue
        batch = demand.users if one == 0 else free // one
        devices = size * _divide_up(demand.users, batch)
        if best is None or devices < best[0]:
            best = (devices, size, batch)
    return None if best is None else best[1:]


def _longest_context(
    model: Model, demand: Demand, cache: Format, weights: int, size: int
) -> int | None:
    """Return the longest context whose cache fits in memory together with the weights.

    The search is a bisection. The result is 0 if no token fits, and None if any context fits.
    """
    free = demand.usable_bytes - _divide_up(weights, size)

    def fits(tokens: int) -> bool:
        return demand.user_bytes(model, cache, context=tokens, devices=size) <= free

    if not fits(1):
        return 0
    if fits(MOST_TOKENS):
        return None
    low, high = 1, MOST_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _divide_up(amount: int, parts: int) -> int:
    """Return ``amount / parts`` rounded up, exact for integers of any size."""
    return -(-amount // parts)
