"""The forms of linear attention equal plain loops and each other; the state is what the paper says.

The tolerances are those of float64: 1e-10 is asked for, and rounding is below 1e-12.
"""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkvary.arch.attention import LINEAR_CHUNK, AttentionConfig, Kernel
from qkvary.arch.caches import CacheOptions, CacheStorage
from qkvary.arch.labels import as_variant
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.cache_storage import StateStore
from qkvary.nn.kernels import name_kernel
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.layout import Layout
from qkvary.nn.linear_attention import State, Sums, attend_in_chunks, step, weigh_pairs
from qkvary.nn.terms import Scores
from tests.conftest import examples
from tests.contracts.variant_cases import (
    D_MODEL,
    distance,
    make_config,
    make_language_model_config,
    random_input,
    randomize,
)
from tests.reference.attention import linear_weights

BATCH, KV_HEADS, GROUP, TOKENS, FEATURES, SIZE = 2, 2, 3, 7, 5, 3
GATE = 1e-12
PLAIN = [[0] * TOKENS] * BATCH
SPLIT = [[0, 0, 0, 1, 1, 7, 7], [3, 2, 2, 2, 2, 2, 5]]
"""Documents that end within a chunk, at its end, and after one token."""

Given = tuple[Tensor, Tensor, Tensor, Tensor]


def draw() -> Given:
    """Positive features of query and key, values, and factors of the KV heads."""
    generator = torch.Generator().manual_seed(5)
    sizes = [
        (BATCH, KV_HEADS * GROUP, TOKENS, FEATURES),
        (BATCH, KV_HEADS, TOKENS, FEATURES),
        (BATCH, KV_HEADS, TOKENS, SIZE),
    ]
    query, key, value = (
        torch.randn(one, generator=generator, dtype=torch.float64) for one in sizes
    )
    factors = torch.tensor([0.7, 0.95], dtype=torch.float64)
    return (
        query.exp().requires_grad_(),
        key.exp().requires_grad_(),
        value.requires_grad_(),
        factors.requires_grad_(),
    )


def collect(output: Tensor, given: Given) -> Tensor:
    """An output, and the gradients of a sum of it with weights that all differ."""
    weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    found = torch.autograd.grad(
        (output * weight).sum(), given, allow_unused=True, materialize_grads=True
    )
    parts = [one.flatten() for one in found]
    return torch.cat([output.detach().flatten(), *parts])


def mix(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    factors: Tensor,
    documents: list[list[int]],
    **kind: Any,
) -> Tensor:
    """The outputs by the reference, from features of queries and of keys of fewer heads."""
    ids, tokens = torch.tensor(documents), torch.arange(query.shape[2])
    seen = (ids[:, :, None] == ids[:, None]) & (tokens[:, None] >= tokens)
    key, value, factors = (
        one.repeat_interleave(query.shape[1] // key.shape[1], dim=int(one.dim() > 1))
        for one in (key, value, factors)
    )
    rows = zip((query @ key.mT).unbind(), value.unbind(), seen.unbind(), strict=True)
    return torch.stack([linear_weights(one, shown, factors, **kind) @ v for one, v, shown in rows])


def divide(values: Tensor, weights: Tensor | None) -> Tensor:
    return values if weights is None else values / weights[..., None]


def make_sums(factors: Tensor, *, fades: bool, divides: bool, decays_sum: bool) -> Sums:
    return Sums(
        log_decay=factors.log() if fades else None,
        has_weights=divides,
        decays_weights=decays_sum,
    )


def by_map(given: Given, sums: Sums, documents: list[list[int]]) -> Tensor:
    query, key, value, _ = given
    ids = torch.tensor(documents)
    seen = (ids[:, :, None] == ids[:, None, :]).tril()[:, None]
    weights, total = weigh_pairs(query, key, sums, seen)
    return divide(weights @ value.repeat_interleave(GROUP, dim=1), total)


def in_chunks(given: Given, sums: Sums, documents: list[list[int]], chunk: int) -> Tensor:
    query, key, value, _ = given
    ids = None if documents is PLAIN else torch.tensor(documents)
    mixture, state = attend_in_chunks(query, key, value, sums, chunk=chunk, documents=ids)
    assert state is None or chunk < TOKENS
    return divide(*mixture)


def one_by_one(given: Given, sums: Sums) -> Tensor:
    query, key, value, _ = given
    state: State | None = None
    outputs: list[Tensor] = []
    for i in range(TOKENS):
        q, k, v = (part[:, :, i : i + 1] for part in (query, key, value))
        mixture, state = step(q, k, v, sums, state)
        outputs.append(divide(*mixture))
    return torch.cat(outputs, dim=2)


KINDS = [
    {"fades": fades, "divides": divides, "decays_sum": decays_sum}
    for fades, divides, decays_sum in [
        (False, True, True),
        (False, False, True),
        (True, True, True),
        (True, True, False),
        (True, False, True),
    ]
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_all_forms_equal_the_reference_with_gradients(kind: dict[str, bool]) -> None:
    given = draw()
    for documents in (PLAIN, SPLIT):
        decay = given[3] if kind["fades"] else torch.ones(KV_HEADS).double()
        sums = {"divides": kind["divides"], "decays_sum": kind["decays_sum"], "least": 0.0}
        looped = mix(*given[:3], decay, documents, **sums)
        expected = collect(looped, given)
        forms = [by_map(given, make_sums(given[3], **kind), documents)]
        # Chunks of one token, of some that do or do not divide 7, of all, of more than there are.
        forms += [
            in_chunks(given, make_sums(given[3], **kind), documents, chunk)
            for chunk in (1, 2, 3, 6, 7, 8)
        ]
        if documents is PLAIN:
            forms.append(one_by_one(given, make_sums(given[3], **kind)))
        for form in forms:
            assert distance(collect(form, given), expected) < GATE


def make_layer(label: str, *, kernel: Kernel = "auto") -> Attention:
    config = dataclasses.replace(make_config(label, causal=True), kernel=kernel)
    layer = Attention(config).double()
    randomize(layer, seed=67)
    return layer


def find_logits(layer: Attention) -> Tensor:
    """The logits of the learned factors."""
    return dict(layer.named_parameters())["decay.weight"].detach()


LAYERS = (
    "QKV@linear",
    "Q-GQA-2@linear-relu@decay-learned",
    "Q=K=V@linear@decay-fixed@undecayed-sum",
    "Q-MQA@linear-softmax@unnormalised",
    "I-K=V@linear-identity@decay-learned",
)


@pytest.mark.parametrize("label", LAYERS)
def test_long_sequences_are_the_same_in_chunks_by_pairs_and_decoded(label: str) -> None:
    """More tokens than a chunk has, as they are trained, mapped, read as a prompt and decoded."""
    by_pairs, chunked = make_layer(label, kernel="explicit"), make_layer(label)
    tokens = 2 * LINEAR_CHUNK + 3
    x = random_input(71, tokens=tokens, batch=2)
    found = []
    for layer in (by_pairs, chunked):
        given = x.clone().requires_grad_()
        output = layer(given)
        output.square().sum().backward()
        gradients = [part.grad for part in layer.parameters() if part.grad is not None]
        found.append([output.detach(), given.grad, *gradients])
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        assert distance(one, other) < 1e-11
    cache = LayerCache(chunked.config)
    with torch.no_grad():
        parts = x.split([LINEAR_CHUNK + 2, 1, 1, tokens - LINEAR_CHUNK - 4], dim=1)
        decoded = torch.cat([chunked(part, cache=cache) for part in parts], dim=1)
    assert distance(decoded, found[0][0]) < GATE


def one_token(scores: Scores, index: int) -> Scores:
    """The scores of one token that is decoded."""
    return dataclasses.replace(
        scores,
        query=scores.query[:, :, [index]],
        key=scores.key[:, :, [index]],
        layout=Layout(new_tokens=1, cached_tokens=index),
    )


@pytest.mark.parametrize("kernel", ["auto", "explicit"])
@pytest.mark.parametrize("undecayed", [False, True])
def test_weights_that_add_up_to_nothing_count_as_the_least_sum(
    kernel: Kernel, *, undecayed: bool
) -> None:
    """A query without positive features, the first key without them, and weights of 1e-8.

    At once, and by the recurrence of decoding.
    """
    label = "Q-GQA-2@linear-relu@decay-learned" + ("@undecayed-sum" if undecayed else "")
    layer = make_layer(label, kernel=kernel)
    with torch.no_grad():
        layout = Layout(new_tokens=7)
        heads = layer.read(random_input(71, batch=2), layout)
        scores, value = layer.score(heads, layout), heads.value
        scores.query[:, :, 3] = -1.0
        scores.query[:, :, 5] *= 1e-8
        scores.key[:, :, 0] = -1.0
        at_once, store = layer.core(scores, value, training=False), StateStore()
        decoded = [
            layer.core(one_token(scores, i), value[:, :, [i]], training=False, state=store)
            for i in range(7)
        ]
        expected = mix(
            scores.query.clamp(min=0),
            scores.key.clamp(min=0),
            value,
            torch.sigmoid(find_logits(layer)),
            [[0] * 7] * 2,
            divides=True,
            decays_sum=not undecayed,
        )
    for found in (at_once, torch.cat(decoded, dim=2)):
        assert distance(found, expected) < GATE
        assert not found[:, :, [0, 3]].any()


@pytest.mark.parametrize("label", ["Q=K=V@linear", "Q=K=V@linear-relu@decay-learned@undecayed-sum"])
def test_the_identity_of_the_paper(label: str) -> None:
    """Appendix A.1: with one projection, S_t = lambda S_(t-1) + phi(z_t) z_t^T is all there is."""
    layer = make_layer(label)
    x, heads, size = random_input(71, batch=1), 4, D_MODEL // 4
    cache = LayerCache(layer.config)
    with torch.no_grad():
        outputs = torch.cat([layer(x[:, i : i + 1], cache=cache) for i in range(7)], dim=1)
        assert layer.k_proj is not None
        z = layer.k_proj(x[0]).view(7, heads, size)
        relu = "relu" in label
        phi = z.clamp(min=0) if relu else torch.where(z > 0, 1 + z, z.exp())
        logits = find_logits(layer) if relu else torch.full((heads,), math.inf)
        decay = 1 / (1 + torch.exp(-logits.double()))
        state = torch.zeros(heads, size, size, dtype=torch.float64)
        total = torch.zeros(heads, size, dtype=torch.float64)
        expected = []
        for t in range(7):
            mixed = []
            for h in range(heads):
                state[h] = decay[h] * state[h] + torch.outer(phi[t, h], z[t, h])
                total[h] = total[h] + phi[t, h]
                mixed.append(phi[t, h] @ state[h] / max(phi[t, h] @ total[h], torch.tensor(1e-6)))
            expected.append(layer.o_proj(torch.cat(mixed)))
    assert distance(outputs[0], torch.stack(expected)) < GATE
    assert distance(layer(x)[0], torch.stack(expected)) < GATE
    held = cache.state and cache.state.sums
    assert held
    assert held.keys is not None
    assert distance(held.values[0], state) < GATE
    assert distance(held.keys[0], total) < GATE


def test_it_is_a_state_space_model_with_a_readout_that_depends_on_the_input() -> None:
    """h_t = A h_(t-1) + B(z_t) with A = lambda 1, and y_t = C(z_t) h_t, of one head."""
    layer = make_layer("Q=K=V@linear@decay-learned@unnormalised")
    x, size = random_input(71, batch=1), D_MODEL // 4
    with torch.no_grad():
        assert layer.k_proj is not None
        head = 2
        z = layer.k_proj(x[0])[:, head * size : (head + 1) * size]
        phi = torch.where(z > 0, 1 + z, z.exp())
        decay = torch.sigmoid(find_logits(layer)[head])
        transition = decay * torch.eye(size * size, dtype=torch.float64)
        h = torch.zeros(size * size, dtype=torch.float64)
        outputs, unchanging = [], []
        first = torch.kron(phi[:1], torch.eye(size, dtype=torch.float64))
        for t in range(7):
            h = transition @ h + torch.kron(phi[t], z[t])
            readout = torch.kron(phi[t][None], torch.eye(size, dtype=torch.float64))
            unchanging.append(first @ h / math.sqrt(size))
            outputs.append(readout @ h / math.sqrt(size))
        mixed = torch.zeros(7, D_MODEL, dtype=torch.float64)
        mixed[:, head * size : (head + 1) * size] = torch.stack(outputs)
        heads = layer.read(x, Layout(new_tokens=7))
        scores, value = layer.score(heads, Layout(new_tokens=7)), heads.value
        found = layer.core(scores, value, training=False)[0, head]
    assert distance(found, torch.stack(outputs)) < GATE
    # In a state-space model that does not depend on its input, C is one matrix.
    assert distance(found, torch.stack(unchanging)) > 0.1


def test_a_state_is_cropped_to_nothing_or_not_at_all() -> None:
    model = LanguageModel(make_language_model_config("Q-K=V@linear"))
    cache = KVCache(model.config.layers)
    tokens = torch.arange(5)[None]
    with torch.no_grad():
        first = model(tokens, cache=cache)
        message = "expected to keep 0 or 5 tokens, got 4; a state is the sum of all tokens"
        with pytest.raises(ValueError, match=message):
            cache.crop(4)
        with pytest.raises(ValueError, match="expected to keep 0 to 5 tokens, got 6"):
            cache.crop(6)
        # It has no room of a token that a caller could write to.
        assert cache.layers[0].claim(1, 1) == {}
        cache.crop(5)
        assert cache.length == 5
        cache.crop(0)
        assert (cache.length, cache.nbytes) == (0, 0)
        assert torch.equal(model(tokens, cache=cache), first)
        cache.clear()
        assert torch.equal(model(tokens, cache=cache), first)


@pytest.mark.parametrize("storage", ["growing", "preallocated", "int8"])
def test_bytes_do_not_grow_and_do_not_depend_on_storage(storage: CacheStorage) -> None:
    config = make_config("Q-GQA-2@linear", causal=True)
    layer = Attention(config)
    cache = LayerCache(config, 50, CacheOptions(storage=storage, scales="token", layout="input"))
    held = []
    with torch.no_grad():
        for tokens in (1, 1, 7, 41):
            layer(random_input(71, tokens=tokens).float(), cache=cache)
            held.append(cache.nbytes)
    # A matrix and a vector of each of two KV heads.
    assert held == [3 * 4 * 2 * (5 * 5 + 5)] * 4
    with pytest.raises(ValueError, match="expected at most 50 tokens, got 51"):
        layer(random_input(71, tokens=1).float(), cache=cache)
    with pytest.raises(ValueError, match="expected a batch of 3, as in the cache, got 1"):
        layer(random_input(71, tokens=1, batch=1).float(), cache=cache)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@examples(6)
@given(cuts=st.sets(st.integers(1, TOKENS - 1)), chunk=st.integers(1, 6))
def test_a_state_goes_on_where_it_was_left(
    kind: dict[str, bool], cuts: set[int], chunk: int
) -> None:
    query, key, value, factors = (part.detach() for part in draw())
    sums = make_sums(factors, **kind)
    for documents in (None, torch.tensor(SPLIT)):
        whole, last = attend_in_chunks(
            query, key, value, sums, chunk=3, documents=documents, keep=True
        )
        state: State | None = None
        outputs: list[Tensor] = []
        for start, stop in itertools.pairwise([0, *sorted(cuts), TOKENS]):
            own = None if documents is None else documents[:, start:stop]
            before = None if documents is None or not start else documents[:, start - 1]
            q, k, v = (part[:, :, start:stop] for part in (query, key, value))
            mixture, state = attend_in_chunks(
                q,
                k,
                v,
                sums,
                chunk=chunk,
                before=state,
                documents=own,
                document_before=before,
                keep=True,
            )
            outputs.append(divide(*mixture))
        assert distance(torch.cat(outputs, dim=2), divide(*whole)) < GATE
        assert state is not None
        assert last is not None
        for one, other in zip(state, last, strict=True):
            assert (one is None) == (other is None)
            assert one is None or other is None or distance(one, other) < GATE


def test_a_record_names_the_kernel_or_a_core_that_has_none() -> None:
    names = {"QKV": "sdpa", "QKV@linear": "linear", "QKV@sima": "sima", "Q=K-V@soft": "soft"}
    for label, name in names.items():
        config = AttentionConfig(d_model=6, num_heads=2, variant=as_variant(label))
        assert name_kernel(config, 7, training=True) == name
