"""The smaller cache of Gemma 4 is the same function: equal logits, the promised bytes."""

import itertools
import random
from typing import Any, get_args

import pytest
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, StaticCache

from qkvary.arch.families.table import read_model
from qkvary.checkpoints.huggingface import gemma4
from qkvary.checkpoints.huggingface.gemma4 import Layout, exact_cache, install, uninstall
from qkvary.costs.exact_savings import Method, Saving, find_savings
from qkvary.costs.formats import parse_format
from tests.checkpoints.huggingface.gemma4_models import (
    CONFIG,
    GLOBAL_LAYERS,
    build,
    decode,
    storage_bytes,
    tokens,
)
from tests.checkpoints.huggingface.test_causal import generate
from tests.pairwise import pairwise

LAYOUTS = get_args(Layout)
METHODS: dict[str, Method] = {
    "value and slice": "value and rotated slice",
    "rotate when read": "rotate when read",
}
SHARED: dict[str, Any] = {
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 11,
}
MODELS: dict[str, dict[str, Any]] = {
    "text": {},
    "eager": {"attn_implementation": "eager"},
    "biased": {"attention_bias": True, "num_global_key_value_heads": None},
    "shared layers": SHARED,
    "without tower": {"model_type": "gemma4_unified_text"},
}


@pytest.fixture(scope="module")
def model() -> Any:
    return build()


def dynamic(model: Any) -> DynamicCache:
    return DynamicCache(config=model.config)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_logits_are_equal_bit_by_bit(name: str, dtype: torch.dtype) -> None:
    model, ids = build(dtype, **MODELS[name]), tokens(3, 17)
    expected = decode(model, ids, dynamic(model))
    for layout in LAYOUTS:
        assert torch.equal(decode(model, ids, exact_cache(model, layout=layout)), expected)
    uninstall(model)


def find_saving(model: Any, layout: Layout, *, context: int) -> Saving:
    config = {"model_type": model.config.model_type, **CONFIG}
    report = find_savings(
        read_model(config, "tiny"), context=context, stored_as=parse_format("fp32")
    )
    return next(saving for saving in report.savings if saving.method == METHODS[layout])


@pytest.mark.parametrize(
    ("layout", "share"), [("value and slice", 0.375), ("rotate when read", 0.5)]
)
def test_bytes_are_those_that_the_costs_promise(model: Any, layout: Layout, share: float) -> None:
    rows, length = 3, 17
    expected = find_saving(model, layout, context=length)
    stock, smaller = dynamic(model), exact_cache(model, layout=layout)
    for cache in (stock, smaller):
        decode(model, tokens(rows, length), cache)
    measured = [
        storage_bytes([cache.layers[index] for index in expected.layers])
        for cache in (stock, smaller)
    ]
    assert expected.layers == GLOBAL_LAYERS
    positions = 0 if layout == "value and slice" else 4 * rows * length
    assert measured == [rows * expected.bytes_now, rows * expected.bytes_then + positions]
    assert 1 - (measured[1] - positions) / measured[0] == share
    assert gemma4.cache_bytes(smaller) == storage_bytes(smaller.layers)
    uninstall(model)


GENERATIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "num_return_sequences": 2, "top_k": 20},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "chunked": {"prefill_chunk_size": 4},
    "looked up": {"prompt_lookup_num_tokens": 3},
}


@pairwise("name, layout", itertools.product(GENERATIONS, LAYOUTS), together=1, ids=str)
def test_generate_gives_the_same_text_and_scores(model: Any, name: str, layout: Layout) -> None:
    options = GENERATIONS[name]
    ids = tokens(3, 11)
    if name == "looked up":
        # One sequence that repeats itself, so that guesses are made, and some taken back.
        ids = ids[:1, :4].repeat(1, 3)
    mask = torch.ones_like(ids)
    for row, hidden in zip(mask, (0, 3, 7), strict=False):
        row[:hidden] = 0
    expected = generate(model, ids, mask, **options)
    install(model, layout=layout)
    found = generate(model, ids, mask, **options)
    uninstall(model)
    kinds = {type(found.past_key_values.layers[index]) for index in GLOBAL_LAYERS}
    assert kinds == {gemma4.ValueAndSliceLayer if "slice" in layout else gemma4.RotateWhenReadLayer}
    assert torch.equal(found.sequences, expected.sequences)
    assert len(found.scores) == len(expected.scores)
    for one, other in zip(found.scores, expected.scores, strict=True):
        assert torch.equal(one, other)


ACTIONS = ("feed", "feed", "crop", "reorder", "repeat", "select", "reset", "offload")


def act(caches: list[DynamicCache], name: str, rows: int, choose: random.Random) -> int:
    """Do one thing to all caches, which hold something; returns the rows that they then have."""
    chosen = torch.tensor([choose.randrange(rows) for _ in range(choose.randint(1, rows))])
    removed = choose.randint(0, caches[0].get_seq_length())
    for cache in caches:
        if name == "crop":
            cache.crop(-removed)
        elif name == "reorder":
            cache.reorder_cache(torch.arange(rows).flip(0))
        elif name == "select":
            cache.batch_select_indices(chosen)
        elif name == "repeat":
            cache.batch_repeat_interleave(2)
        elif name == "reset":
            cache.reset()
        elif cache is not caches[0]:
            for layer in cache.layers:
                layer.offload()
                layer.prefetch()
    return {"select": len(chosen), "repeat": 2 * rows, "reset": 2}.get(name, rows)


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_sequence_of_operations_leaves_what_the_stock_cache_has(layout: Layout) -> None:
    """Without windows, so that every crop is possible."""
    model = build(num_hidden_layers=3, layer_types=["full_attention"] * 3)
    for seed in range(5):
        choose = random.Random(seed)
        caches = [dynamic(model), exact_cache(model, layout=layout)]
        rows = 2
        for step in range(14):
            name = choose.choice(ACTIONS)
            if name == "feed" or not caches[0].get_seq_length() or (name == "repeat" and rows > 3):
                ids = tokens(rows, choose.randint(1, 4), seed=100 * seed + step)
                first, second = (model(ids, past_key_values=cache).logits for cache in caches)
                assert torch.equal(first, second)
            else:
                rows = act(caches, name, rows, choose)
            assert caches[0].get_seq_length() == caches[1].get_seq_length()
    uninstall(model)


def test_installed_caches_are_smaller_however_they_are_made(model: Any) -> None:
    ids = tokens(2, 6)
    install(model)
    with torch.no_grad():
        made = [
            model(ids).past_key_values,
            model(ids, past_key_values=DynamicCache()).past_key_values,
            model(ids, None, None, None, use_cache=True).past_key_values,
        ]
        assert model(ids, use_cache=False).past_key_values is None
        with_text_only = model.model(ids, None, None, dynamic(model)).past_key_values
    uninstall(model)
    for cache in (*made, with_text_only):
        smaller = [isinstance(layer, gemma4.ValueAndSliceLayer) for layer in cache.layers]
        assert smaller == [index in GLOBAL_LAYERS for index in range(len(smaller))]
    stock = dynamic(model)
    decode(model, tokens(1, 17), stock)
    install(model)
    with torch.no_grad():
        model(ids[:1], past_key_values=stock)
    uninstall(model)
    assert {type(stock.layers[index]) for index in GLOBAL_LAYERS} == {DynamicLayer}
    with torch.no_grad():
        assert type(model(ids).past_key_values.layers[1]) is DynamicLayer
    uninstall(model)


def test_tokens_that_share_one_position_are_stored_with_it(model: Any) -> None:
    place = torch.tensor([[0]])
    caches = [dynamic(model), *(exact_cache(model, layout=one) for one in LAYOUTS)]
    for ids in (tokens(1, 4), tokens(1, 1)):
        calls = [model(ids, position_ids=place, past_key_values=one).logits for one in caches]
        assert all(torch.equal(one, calls[0]) for one in calls)
    uninstall(model)


def test_fixed_caches_are_refused(model: Any) -> None:
    ids = tokens(1, 5)
    install(model)
    expected = "expected a DynamicCache, .* got a cache with StaticLayer; "
    with pytest.raises(ValueError, match=expected):
        model.generate(ids, cache_implementation="static", max_new_tokens=2)
    with pytest.raises(ValueError, match=expected):
        model(ids, past_key_values=StaticCache(config=model.config, max_cache_len=7))
    uninstall(model)
    model.generate(ids, cache_implementation="static", disable_compile=True, max_new_tokens=2)


def test_layouts_that_do_not_exist_or_save_nothing_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="got 'keys'; choices: value and slice, rotate when read"):
        exact_cache(model, layout="keys")  # type: ignore[arg-type]
    rotation = {"rope_type": "default", "rope_theta": 10_000.0}
    whole = build(rope_parameters=dict.fromkeys(CONFIG["layer_types"], rotation))
    with pytest.raises(ValueError, match="all 24 channels rotated; choices: rotate when read"):
        install(whole)
    ids = tokens(2, 17)
    expected = decode(whole, ids, dynamic(whole))
    assert torch.equal(decode(whole, ids, exact_cache(whole, layout="rotate when read")), expected)
    uninstall(whole)
    whole.model.rotary_emb.rope_type["full_attention"] = "dynamic"
    with pytest.raises(
        ValueError, match=r"got dynamic with the scale 1.0; choices: default, propor"
    ):
        exact_cache(whole, layout="rotate when read")
