"""The rows of a plan that say what engines allocate."""

from qkvary.arch.families.sizes import load_size
from qkvary.costs.decoding import weight_bytes
from qkvary.costs.devices import Device
from qkvary.costs.formats import parse_format
from qkvary.costs.serving import Demand, plan_serving
from qkvary.planning.engines import EngineRow, compare_engines

GIB = 2**30
BF16 = parse_format("bf16")


def rows(name: str, pool: int, *, context: int) -> dict[str, EngineRow]:
    """The rows of a device whose memory holds the weights and so many bytes more."""
    model = load_size(name)
    held = weight_bytes(model, BF16)
    device = Device(name="own", title="own", memory_bytes=held + pool)
    demand = Demand(device=device, context=context, users=1, weights=BF16, reserve=0)
    found = compare_engines(model, demand, plan_serving(model, demand, BF16))
    return {row.engine.removeprefix("as ").split()[0]: row for row in found}


def test_a_model_with_windows_by_hand() -> None:
    found = rows("gemma-4-31b", round(64.68 * GIB), context=262_144)
    least = 10 * 262_144 * 8192 + 50 * 1023 * 16_384
    assert found["the"].user_bytes == least
    # Two chunks of 8,192 tokens are in flight on a device of 122 GiB.
    blocks = 262_144 // 32 + 5 * (-(-(1023 + 16_384) // 16) + 1)
    assert found["vLLM"].user_bytes == blocks * 10 * 2**18
    assert found["vLLM"].users == 26_491 // blocks == 1
    assert found["vLLM"].tokens == int(26_492 / blocks * 262_144)
    assert found["llama.cpp"].user_bytes == 10 * 262_144 * 8192 + 50 * 1536 * 16_384
    assert found["transformers"].user_bytes == 10 * 262_144 * 8192 + 50 * 1024 * 16_384
    assert {found[engine].users for engine in ("the", "llama.cpp", "transformers")} == {3}


def test_several_devices_hold_what_cannot_be_divided_several_times() -> None:
    found = rows("deepseek-v3", 90 * GIB, context=4096)
    assert found["vLLM"].user_bytes == found["the"].user_bytes
    weights = weight_bytes(load_size("deepseek-v3"), BF16)
    found = rows("deepseek-v3", 90 * GIB - weights, context=4096)
    assert found["vLLM"].user_bytes == 16 * (found["llama.cpp"].user_bytes or 0)
    assert "16 devices" in found["vLLM"].remark
