"""The cache memory that engines allocate, compared with the exact minimum.

vLLM divides the heads among the devices of a replica; llama.cpp and transformers divide the layers.
Never imports torch.
"""

from dataclasses import dataclass

from qkvary.arch.models import Model
from qkvary.costs.decoding import weight_bytes
from qkvary.costs.engines import (
    CHUNKS_IN_FLIGHT,
    allocate_llama_cpp,
    allocate_static,
    allocate_vllm,
    default_chunk,
)
from qkvary.costs.serving import Demand, ServingPlan
from qkvary.text.names import count

VLLM = "as vLLM 0.32 allocates"
LLAMA_CPP = "as llama.cpp allocates"
TRANSFORMERS = "as transformers allocates"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """The cache of one user in one engine."""

    engine: str
    user_bytes: int | None = None
    """Bytes of one user's cache on all devices; ``None`` if it is not known for the model."""
    users: int | None = None
    """Number of users whose cache fits into one replica next to the weights."""
    tokens: int | None = None
    """The size of the cache in tokens, as the engine logs it."""
    remark: str
    """The settings of the engine, or the reason why there are no numbers."""


def compare_engines(model: Model, demand: Demand, plan: ServingPlan) -> tuple[EngineRow, ...]:
    """Return one row for the minimum, and one row for what each engine allocates.

    The cache has the format of ``plan``, and the model runs on its number of devices.
    """
    devices = plan.devices_per_replica or 1
    weights = -(-weight_bytes(model, demand.weights) // devices)
    free = max(0, demand.usable_bytes - weights)
    made = [
        EngineRow(
            engine="the exact minimum",
            user_bytes=plan.user_bytes,
            users=plan.users_per_replica,
            remark="each tensor that decoding needs is stored once",
        )
    ]
    for engine, make in ((VLLM, _vllm), (LLAMA_CPP, _llama_cpp), (TRANSFORMERS, _transformers)):
        try:
            made.append(make(model, demand, plan, devices, free))
        except ValueError as error:
            made.append(EngineRow(engine=engine, remark=str(error)))
    return tuple(made)


def _vllm(model: Model, demand: Demand, plan: ServingPlan, devices: int, free: int) -> EngineRow:
    chunk = default_chunk(demand.device)
    cache = allocate_vllm(
        model, context=demand.context, stored_as=plan.cache, chunk=chunk, devices=devices
    )
    tokens = ", ".join(f"{block:,}" for block in sorted({block for block, _ in cache.groups}))
    divided = f"; the heads are divided among {devices} devices" if devices > 1 else ""
    return EngineRow(
        engine=VLLM,
        user_bytes=devices * cache.sequence_bytes,
        users=cache.users(free),
        tokens=None if plan.devices_per_replica is None else cache.tokens(free),
        remark=f"blocks have {tokens} tokens; the layers form {count(len(cache.groups), 'group')}; "
        f"{CHUNKS_IN_FLIGHT} prefill chunks of {chunk:,} tokens are in flight{divided}",
    )


def _llama_cpp(
    model: Model, demand: Demand, plan: ServingPlan, devices: int, free: int
) -> EngineRow:
    cache = allocate_llama_cpp(model, context=demand.context, stored_as=plan.cache)
    held = cache.total_bytes
    cells = cache.window_cells
    windows = "" if cells is None else f" ({cells:,} tokens in layers with a window)"
    return EngineRow(
        engine=LLAMA_CPP,
        user_bytes=held,
        users=devices * free // held,
        remark=f"each user has a slot for {cache.cells:,} tokens{windows}; a micro-batch has 512 "
        "tokens",
    )


def _transformers(
    model: Model, demand: Demand, plan: ServingPlan, devices: int, free: int
) -> EngineRow:
    held = allocate_static(model, context=demand.context, stored_as=plan.cache)
    return EngineRow(
        engine=TRANSFORMERS,
        user_bytes=held,
        users=devices * free // held if held else None,
        remark="the cache is a StaticCache; a DynamicCache grows with the text up to the exact "
        "minimum",
    )
