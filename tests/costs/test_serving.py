"""Serving plans against the papers' scenario, plain loops, and what more memory must never do."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.models import Model, as_model
from qkvary.arch.named_networks import gpt_300m
from qkvary.costs.cache import layerwise_cache_bytes
from qkvary.costs.decoding import weight_bytes
from qkvary.costs.devices import Device, find_device
from qkvary.costs.formats import parse_format
from qkvary.costs.replicas import device_cache_bytes
from qkvary.costs.serving import Demand, ServingPlan, plan_serving
from tests.conftest import examples
from tests.costs.toy_models import ALL_KINDS, language_model

BF16, INT4 = parse_format("bf16"), parse_format("int4")
KINDS = st.sampled_from(ALL_KINDS)


def make_demand(memory: int = 10**6, **fields: object) -> Demand:
    given: dict[str, object] = {"context": 11, "users": 5, "weights": BF16, "reserve": 0.0}
    device = Device(
        name="toy",
        title="toy",
        memory_bytes=memory,
        bandwidth_bytes_per_second=1e9,
        flops_per_second_16_bit=1e12,
    )
    return Demand(device=device, **(given | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("label", "context", "weighed", "users", "devices"),
    [
        # The papers: 32,000 tokens and no weights.
        ("QKV", 32_000, False, 15, 7),
        ("Q-K=V", 32_000, False, 30, 4),
        # With caches of 32,768 tokens, and the weights.
        ("QKV", 32_768, True, 14, 8),
        ("GQA-4", 32_768, True, 58, 2),
        ("MQA", 32_768, True, 235, 1),
    ],
)
def test_the_papers_scenario(
    label: str, context: int, weighed: bool, users: int, devices: int
) -> None:
    model, card = as_model(gpt_300m(label)), find_device("a100-40gb")
    room = 40 * 10**9 + (0 if weighed else weight_bytes(model, BF16))
    demand = Demand(
        device=dataclasses.replace(card, memory_bytes=room),
        context=context,
        users=100,
        weights=BF16,
        reserve=0.0,
        price=2_000,
        replica_sizes=(1,),
    )
    found = plan_serving(model, demand, BF16)
    assert (found.users_per_replica, found.devices) == (users, devices)
    assert found.fills == "cache"
    assert found.price_per_month == 2_000 * devices
    # The same by division, from the bytes of a token.
    token = {"QKV": 81_920, "Q-K=V": 40_960, "GQA-4": 20_480, "MQA": 5_120}[label]
    free = room - found.weight_bytes
    assert found.user_bytes == context * token
    assert found.users_per_replica == free // (context * token)
    assert found.longest_context == free // token


def held_by_loop(model: Model, context: int, devices: int) -> int:
    """The fullest device's part of one sequence, head by head."""
    layers = layerwise_cache_bytes(model, context=context, stored_as=BF16, peak=True)
    total = 0
    for layer, size in zip(model.layers, layers, strict=True):
        config = layer.attention.config  # type: ignore[union-attr]
        held = [0] * devices
        for head in range(config.num_kv_heads):
            held[head % devices] += size // config.num_kv_heads
        total += max(held)
    return total


def devices_by_loop(model: Model, demand: Demand) -> tuple[int | None, int | None, int]:
    """Devices in all, of a replica, and its users: replicas filled user by user."""
    found: list[tuple[int, int, int]] = []
    for size in demand.replica_sizes:
        weights = -(-weight_bytes(model, demand.weights) // size)
        users = 0
        one = held_by_loop(model, demand.context, size)
        while users < 10**4 and weights + (users + 1) * one <= demand.usable_bytes:
            users += 1
        if users:
            replicas, placed = 0, 0
            while placed < demand.users:
                replicas, placed = replicas + 1, placed + users
            found.append((replicas * size, size, users))
    return min(found, default=(None, None, 0))


@given(
    label=st.sampled_from(["QKV", "Q-K=V", "GQA-4", "GQA-2", "MQA", "Q-MQA", "QKV@w5"]),
    memory=st.integers(1_000, 600_000),
    users=st.integers(1, 300),
    context=st.integers(1, 60),
)
def test_replicas_by_a_plain_loop(label: str, memory: int, users: int, context: int) -> None:
    model = language_model(label)
    demand = make_demand(memory, users=users, context=context)
    found = plan_serving(model, demand, BF16)
    placed = (found.devices, found.devices_per_replica, found.users_per_replica)
    assert placed == devices_by_loop(model, demand)


def context_by_scan(model: Model, demand: Demand, devices: int) -> int:
    """The longest context, token by token."""
    weights = -(-weight_bytes(model, demand.weights) // devices)
    tokens = 0
    while tokens < 3_000:
        held = device_cache_bytes(model, context=tokens + 1, stored_as=BF16, devices=devices)
        if weights + held > demand.usable_bytes:
            break
        tokens += 1
    return tokens


@examples(7)
@given(model=KINDS, memory=st.integers(30_000, 400_000), size=st.sampled_from([1, 2, 8]))
def test_longest_context_by_scanning(model: Model, memory: int, size: int) -> None:
    demand = make_demand(memory, replica_sizes=(size,))
    scanned = context_by_scan(model, demand, size)
    found = plan_serving(model, demand, BF16).longest_context
    assert scanned == (3_000 if found is None or found >= 3_000 else found)


@given(
    model=KINDS,
    memory=st.integers(1, 10**7),
    more=st.integers(0, 10**6),
    users=st.integers(1, 10**4),
    context=st.integers(1, 500),
    reserve=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_more_memory_never_needs_more(
    model: Model, memory: int, more: int, users: int, context: int, reserve: float
) -> None:
    def plan_at(size: int, **fields: object) -> ServingPlan:
        demand = make_demand(size, users=users, context=context, reserve=reserve, **fields)
        return plan_serving(model, demand, BF16)

    less, enough = plan_at(memory), plan_at(memory + more)
    assert (enough.devices or 10**9) <= (less.devices or 10**9)
    for size in (1, 4):
        less, enough = (plan_at(m, replica_sizes=(size,)) for m in (memory, memory + more))
        assert enough.users_per_replica >= less.users_per_replica
        assert (enough.longest_context or 10**12) >= (less.longest_context or 0)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"reserve": 1.0}, r"expected a reserve in \[0, 1\), got 1.0"),
        ({"reserve": float("nan")}, r"expected a reserve in \[0, 1\), got nan"),
        ({"price": -1.0}, "expected a price of at least 0, got -1.0"),
    ],
)
def test_impossible_demands_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_demand(**fields)
