"""A step as one call: rotations, padding, types, threads, and what it refuses."""

import copy
import ctypes
import itertools
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import ValueRope
from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig
from qkvary.nn.cache import KVCache
from qkvary.nn.decoding import build, native, step
from qkvary.nn.decoding.decode import decode_attention
from qkvary.nn.decoding.step import NativeStep
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.quantized_weights import quantize_weights
from tests.contracts.variant_cases import randomize
from tests.nn.decoding.cases import GATES, distance, draw
from tests.pairwise import pairwise
from tests.small_networks import small_config

PROMPT, NEW, VOCABULARY, LONGEST = 5, 4, 23, 17
FLOAT32 = 1e-5
"""The largest difference of a logit in float32, relative to the largest logit."""

OWN_MEMORY = ("-Wl,-Bsymbolic",) if sys.platform == "linux" else ()
"""A library asks its own operator for memory, whatever others brought along."""

ROTARY = ["QKV@rotary", "Q-K=V@rotary", "Q-MQA@rotary", "I-K-V@rotary", "GQA-2@rotary@qk-norm"]
ROPES: tuple[ValueRope, ...] = ("none", "counter", "rotated")


def make(label: str, *, dtype: torch.dtype = torch.float32, **fields: Any) -> LanguageModel:
    """A network with random weights, drawn in double precision."""
    bias = fields.pop("bias", True)
    usual = {
        "d_model": 20,
        "num_heads": 4,
        "bias": bias,
        "out_bias": bias,
        "block": BlockConfig(d_ff=27, bias=bias),
        "vocabulary": VOCABULARY,
        "max_tokens": LONGEST,
        "positions": "learned",
        "value_rope": "none",
        "rotary_fraction": 1.0,
    }
    model = LanguageModel(small_config(label, **(usual | fields))).double().eval()
    randomize(model, seed=3)
    return model.to(dtype)


def texts(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(VOCABULARY, (rows, PROMPT + NEW), generator=generator)


def new_cache(model: LanguageModel, layout: CacheLayout, **options: object) -> KVCache:
    chosen = CacheOptions(layout=layout, storage="preallocated", **options)  # type: ignore[arg-type]
    return KVCache(model.config.layers, max_tokens=LONGEST, options=chosen)


@torch.no_grad()
def compare(
    model: LanguageModel,
    layout: CacheLayout,
    *,
    rows: int = 1,
    mask: Tensor | None = None,
) -> float:
    """The largest distance of steps from the same network without cache in double precision."""
    tokens = texts(rows)
    reference = copy.deepcopy(model).double()
    expected = reference(tokens, attention_mask=mask)[:, PROMPT:]
    cache = new_cache(model, layout)
    seen = None if mask is None else mask[:, :PROMPT]
    model(tokens[:, :PROMPT], cache=cache, attention_mask=seen)
    assert step.supports(model, cache)
    native_step = NativeStep(model, cache)
    found = []
    for place in range(PROMPT, PROMPT + NEW):
        so_far = None if mask is None else mask[:, : place + 1]
        found.append(native_step(tokens[:, place], so_far))
    assert cache.length == PROMPT + NEW
    assert found[0].dtype == model.embedding.dtype
    return distance(torch.stack(found, dim=1), expected)


@pytest.mark.parametrize(
    ("label", "value_rope", "layout"),
    list(itertools.product(ROTARY, ROPES, ("sources", "rotated", "split"))),
)
@pytest.mark.filterwarnings("ignore:value_rope 'rotated'")
def test_every_rotation_that_is_taken(
    label: str, value_rope: ValueRope, layout: CacheLayout
) -> None:
    model = make(label, value_rope=value_rope, positions="none", d_model=24, rotary_fraction=0.5)
    cache = new_cache(model, layout)
    shared = parse_variant(label).sharing.key == parse_variant(label).sharing.value
    # One tensor that is turned for one role only is read by other means.
    refused = {"sources": value_rope != "none", "rotated": value_rope == "none"}
    assert step.supports(model, cache) == (not (shared and refused.get(layout, False)))
    if step.supports(model, cache):
        assert compare(model, layout, rows=2) < FLOAT32


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7])
def test_every_number_of_rows_with_padding(rows: int) -> None:
    mask = torch.ones(rows, PROMPT + NEW, dtype=torch.bool)
    for row in range(1, rows):
        mask[row, : row % PROMPT] = False
    for label in ("QKV", "Q-MQA@rotary"):
        model = make(label, d_model=32, positions="none" if "rotary" in label else "learned")
        assert compare(model, "sources", rows=rows, mask=mask) < FLOAT32
        # A mask is read where it lies.
        assert compare(model, "sources", rows=rows, mask=mask.mT.contiguous().mT) < FLOAT32


LATENT = ["Q-GQA-2@decoupled-6@kv-norm", "Q-GQA-2@decoupled-6@latent-72@kv-norm"]
"""A latent with fixed matrices, and with trained ones."""
STATE = "Q-GQA-2@linear@decay-learned"


@pairwise(
    "label, dtype",
    itertools.product(["QKV", "Q-K=V@rotary", STATE, *LATENT], [torch.bfloat16, torch.float16]),
    together=1,
    ids=str,
)
def test_half_precision_is_no_further_than_the_network(label: str, dtype: torch.dtype) -> None:
    model = make(label, d_model=32, dtype=dtype, positions="none")
    tokens = texts(2)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(tokens)[:, PROMPT:]
        own = distance(model(tokens)[:, PROMPT:], expected)
    layout = "sources" if label in ("QKV", "Q-K=V@rotary") else "rotated"
    assert compare(model, layout, rows=2) < min(GATES[dtype], 4 * own)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize(
    ("label", "d_model", "tied"),
    [
        ("QKV", 20, True),
        ("Q-K=V", 128, False),
        ("Q-K[d/4]-V[r3]", 72, True),
        (LATENT[0], 72, True),
        (LATENT[1], 72, False),
    ],
)
def test_weights_of_8_bits_are_read_as_the_numbers_they_stand_for(
    label: str, d_model: int, tied: bool, rows: int
) -> None:
    """By the layers, whose matrices torch makes of the codes, and in double precision."""
    block = BlockConfig(d_ff=131, activation="swiglu", bias=False)
    plain = make(label, d_model=d_model, block=block, tied_head=tied)
    model = quantize_weights(copy.deepcopy(plain))
    reference = plain.double()
    for name, own in reference.named_parameters():
        place, _, field = name.rpartition(".")
        own.copy_(getattr(model.get_submodule(place), field))
    tokens = texts(rows)
    expected = reference(tokens)[:, PROMPT]
    cache = new_cache(model, "rotated")
    model(tokens[:, :PROMPT], cache=cache)
    assert step.supports(model, cache)
    found = NativeStep(model, cache)(tokens[:, PROMPT], None)
    cache.crop(PROMPT)
    assert distance(found, expected) < FLOAT32
    assert distance(model(tokens[:, PROMPT : PROMPT + 1], cache=cache)[:, -1], expected) < FLOAT32


@pytest.mark.parametrize("label", ["Q-K=V", STATE, *LATENT])
def test_threads_do_not_change_a_bit(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(label, d_model=64, positions="none")
    found: list[Tensor] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        cache = new_cache(model, "rotated")
        with torch.no_grad():
            model(texts(2)[:, :PROMPT], cache=cache)
            take = NativeStep(model, cache)
            found.append(torch.stack([take(texts(2)[:, PROMPT + i], None) for i in range(NEW)]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@torch.no_grad()
def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    """As by the network; memory is written and read without another check."""
    model = make("Q-K=V")
    tokens = texts(3)
    options = CacheOptions(storage="preallocated")
    cache = KVCache(model.config.layers, max_tokens=LONGEST + 40, options=options)
    model(tokens[:, :PROMPT], cache=cache)
    take = NativeStep(model, cache)
    for wrong in (VOCABULARY, -1):
        with pytest.raises(IndexError, match="expected tokens from 0 to 22"):
            take(torch.tensor([2, wrong, 3]), None)
    with pytest.raises(ValueError, match="expected a batch of 3, as in the cache, got 4"):
        take(torch.zeros(4, dtype=torch.long), None)
    for shape in ([3, PROMPT], [3, PROMPT + 2], [2, PROMPT + 1]):
        with pytest.raises(ValueError, match=r"expected attention_mask \[3, 6\]"):
            take(tokens[:, PROMPT], torch.ones(shape, dtype=torch.bool))
    assert cache.length == PROMPT
    expected = copy.deepcopy(model).double()(tokens[:, : PROMPT + 1])[:, -1]
    assert distance(take(tokens[:, PROMPT], None), expected) < FLOAT32
    for _ in range(LONGEST - PROMPT - 1):
        take(tokens[:, PROMPT], None)
    with pytest.raises(ValueError, match="expected at most 17 tokens, got 17 cached and 1 new"):
        take(tokens[:, PROMPT], None)
    assert cache.length == LONGEST
    cache.clear()
    with pytest.raises(ValueError, match="expected a cache that has seen a token, got an empty"):
        take(tokens[:, PROMPT], None)
    assert cache.length == 0


@torch.no_grad()
def test_numbers_and_masks_of_other_types_mean_the_same() -> None:
    model = make("QKV")
    tokens = texts(3)
    mask = torch.ones(3, PROMPT + 1, dtype=torch.bool)
    mask[1:, :2] = False
    found: list[Tensor] = []
    for kind in (torch.bool, torch.int64):
        cache = new_cache(model, "sources")
        model(tokens[:, :PROMPT], cache=cache, attention_mask=mask[:, :PROMPT])
        new = tokens[:, PROMPT] if kind is torch.bool else tokens[:, PROMPT].int()
        found.append(NativeStep(model, cache)(new, mask.to(kind)))
    assert torch.equal(found[0], found[1])


def test_what_a_step_does_not_take() -> None:
    taken = make("QKV")
    assert step.supports(taken, new_cache(taken, "sources"))
    for label in ("QKV+", "QKV@alibi", "QKV@relative", "QKV@w3", "Q[map]=K-V"):
        model = make(label)
        assert not step.supports(model, new_cache(model, "sources")), label
    stream = BlockConfig(d_ff=11, norm_placement="stream")
    model = make("QKV", block=stream)
    assert not step.supports(model, new_cache(model, "sources"))
    # A window that nothing leaves is none.
    model = make(f"QKV@w{LONGEST}")
    assert step.supports(model, new_cache(model, "sources"))
    for options in ({"layout": "input"}, {"storage": "growing"}):
        chosen = CacheOptions(**{"storage": "preallocated", **options})  # type: ignore[arg-type]
        cache = KVCache(taken.config.layers, max_tokens=LONGEST, options=chosen)
        assert not step.supports(taken, cache), options
    assert not step.supports(make("QKV").train(), new_cache(taken, "sources"))
    assert not step.supports(make("QKV", dtype=torch.float64), new_cache(taken, "sources"))


def test_hooks_are_called_by_layers_and_not_skipped() -> None:
    model = make("Q-K=V")
    cache = new_cache(model, "sources")
    attention = model.stack.blocks[1].attention
    everywhere = torch.nn.modules.module
    for register in (
        model.register_forward_hook,
        attention.o_proj.register_forward_pre_hook,
        everywhere.register_module_forward_hook,
        everywhere.register_module_forward_pre_hook,
    ):
        hook = register(lambda *_: None)
        assert not step.supports(model, cache)
        hook.remove()
        assert step.supports(model, cache)
    attention.forward = attention.forward
    assert not step.supports(model, cache)
    del attention.forward
    assert step.supports(model, cache)


# ---- states of linear attention


@torch.no_grad()
def test_padding_before_and_among_the_tokens_adds_nothing() -> None:
    """A finished row goes on as padding; its state fades and nothing is added."""
    model = make("GQA-2@linear@decay-learned")
    tokens = texts(3)
    mask = torch.ones(3, PROMPT + NEW, dtype=torch.bool)
    mask[1, :2] = mask[2, PROMPT + 1] = False
    expected = copy.deepcopy(model).double()(tokens, attention_mask=mask)
    cache = new_cache(model, "rotated")
    model(tokens[:, :PROMPT], cache=cache, attention_mask=mask[:, :PROMPT])
    take = NativeStep(model, cache)
    for place in range(PROMPT, PROMPT + NEW):
        found = take(tokens[:, place], mask[:, : place + 1])
        real = mask[:, place]
        assert distance(found[real], expected[real, place]) < FLOAT32


def states(cache: KVCache) -> list[Tensor]:
    """The tensors of the states in a cache themselves."""
    kept = [layer.state.sums for layer in cache.layers if layer.state is not None]
    return [part for state in kept if state is not None for part in state if part is not None]


@torch.no_grad()
def test_a_step_leaves_earlier_states_and_those_of_a_failure_as_they_were() -> None:
    """A state that others hold is not written to, and a refused token adds nothing."""
    model = make("Q-K=V@linear")
    tokens = texts(3)
    expected = copy.deepcopy(model).double()(tokens)
    cache = new_cache(model, "rotated")
    model(tokens[:, :PROMPT], cache=cache)
    take, held = NativeStep(model, cache), states(cache)
    copied = [part.clone() for part in held]
    with pytest.raises(IndexError, match="expected tokens from 0 to 22"):
        take(tokens[:, PROMPT] + 100, None)
    assert all(map(torch.equal, states(cache), copied))
    take(tokens[:, PROMPT], None)
    assert cache.length == PROMPT + 1
    assert all(torch.equal(one, other) for one, other in zip(held, copied, strict=True))
    # Calls of the network, rows in another order and steps follow each other.
    cache.reorder(torch.tensor([2, 0]))
    rows = tokens[[2, 0]]
    among = model(rows[:, PROMPT + 1 : PROMPT + 2], cache=cache)[:, -1]
    assert distance(among, expected[[2, 0], PROMPT + 1]) < FLOAT32
    assert distance(take(rows[:, PROMPT + 2], None), expected[[2, 0], PROMPT + 2]) < FLOAT32
    cache.clear()
    with pytest.raises(ValueError, match="expected a cache that has seen a token, got an empty"):
        take(rows[:, 0], None)


# ---- memory that is full

FAILING = """
#include <cstdint>
#include <cstdlib>
#include <new>

static thread_local bool counts = false;
static int64_t left = -1;

extern "C" void fail_after(int64_t requests) { left = requests, counts = requests >= 0; }

void *operator new(std::size_t size) {
  if (left >= 0 && counts && left-- == 0) throw std::bad_alloc();
  if (void *place = std::malloc(size ? size : 1)) return place;
  throw std::bad_alloc();
}
void operator delete(void *place) noexcept { std::free(place); }
void operator delete(void *place, std::size_t) noexcept { std::free(place); }

#include "SOURCE"
"""


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library with a memory that gives nothing from some request on, to whoever said so."""
    source = tmp_path_factory.mktemp("failing") / "failing.cpp"
    source.write_text(FAILING.replace("SOURCE", str(native.SOURCES[0])), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", (*build.FLAGS[1:], "-O0", *OWN_MEMORY))
        patch.setattr(native, "SOURCES", (source, *native.SOURCES))
        loaded = native.library.__wrapped__()
    assert loaded is not None
    return loaded


@torch.no_grad()
@pytest.mark.compile
@pytest.mark.parametrize("threads", [1, 3])
def test_a_memory_that_is_full_is_an_error_and_not_the_end(
    failing: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Wherever it is full: in threads that begin, in a plan, in its scratch, in a merge."""
    monkeypatch.setattr(native, "library", lambda: failing)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    model = make("Q-K=V", d_model=64)
    tokens = texts(2)
    key, query = draw(1, 2, 3000, 64, seed=1), draw(1, 4, 1, 64, seed=2)
    attended = decode_attention(query, key, key, scale=0.1, kernel="native")

    def use() -> Tensor:
        cache = new_cache(model, "sources")
        model(tokens[:, :PROMPT], cache=cache)
        take = NativeStep(model, cache)
        failing.fail_after(requests)
        try:
            return take(tokens[:, PROMPT], None)
        except MemoryError:
            assert cache.length == PROMPT
            raise

    requests = -1
    expected, failures = use(), 0
    for requests in range(40):
        for call in (use, lambda: decode_attention(query, key, key, scale=0.1, kernel="native")):
            failing.fail_after(requests)
            try:
                assert torch.equal(call(), expected if call is use else attended)
            except MemoryError as error:
                failures += "not enough memory for the partial results of" in str(error)
            failing.fail_after(-1)
    assert failures >= 2
