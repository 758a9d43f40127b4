"""Seeded mistakes that the comparison with the reference must catch, in float64 and in bfloat16.

Each mutant replaces one function of ``qkvary.nn`` by one with a mistake people make. If a mutant
survives, it is the contract that is broken.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.nn import attention as nn_attention
from qkvary.nn.attention import Attention
from qkvary.nn.cache import LayerCache
from qkvary.nn.cache_storage import GrowingStore
from qkvary.nn.layout import Layout
from qkvary.nn.positions import PlusBias, Rotation
from tests.contracts.variant_cases import (
    BATCH,
    GATE,
    TOKENS,
    distance,
    documents,
    make_config,
    padding_mask,
    random_input,
    randomize,
)
from tests.reference.attention import attend

Patch = Callable[[pytest.MonkeyPatch], None]

VISIBLE = 1e-6
"""What a mistake moves at least, in deviations of the output."""


def run_case(
    label: str, dtype: torch.dtype, *, causal: bool, masked: bool
) -> tuple[Tensor, Tensor]:
    """What nn computes, whole and decoded in two chunks, and what the reference computes."""
    layer = Attention(make_config(label, causal=causal))
    randomize(layer, seed=157)
    layer = layer.to(dtype)
    x = random_input(163).to(dtype)
    whole = {"attention_mask": padding_mask(), "document_ids": documents()} if masked else {}
    real = padding_mask()[..., None] if masked else torch.ones(BATCH, TOKENS, 1).bool()
    with torch.no_grad():
        outputs = [layer(x, **whole).double()]
        if causal:
            cache = LayerCache(layer.config)
            parts = [
                layer(
                    x[:, start:stop],
                    cache=cache,
                    **{name: tensor[:, :stop] for name, tensor in whole.items()},
                )
                for start, stop in ((0, 4), (4, 5), (5, TOKENS))
            ]
            outputs.append(torch.cat(parts, dim=1).double())
        weights = {name: p.detach().double() for name, p in layer.named_parameters()}
        call = {"mask": padding_mask(), "documents": documents()} if masked else {}
        expected = attend(layer.config, weights, x.double(), **call)
    found = torch.stack([output * real for output in outputs])
    return found, (expected * real).expand_as(found)


def _shift_positions(patch: pytest.MonkeyPatch) -> None:
    count = Layout._count_positions
    patch.setattr(Layout, "_count_positions", lambda self: count(self) + 1)


def _shift_queries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Layout,
        "query_positions",
        property(lambda self: self.key_positions[:, self.num_keys - self.num_queries :] + 1),
    )


def _restart_positions_at_decode(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Layout,
        "query_positions",
        property(lambda self: self.key_positions[:, : self.num_queries]),
    )


def _show_one_more(patch: pytest.MonkeyPatch) -> None:
    find = Layout._find_blocked

    def mutant(self: Layout, *, causal: bool, window: int | None) -> Tensor | None:
        blocked = find(self, causal=causal, window=window)
        if not causal or blocked is None:
            return blocked
        keys = torch.arange(self.num_keys)
        return blocked & (keys != keys[self.num_keys - self.num_queries :, None] + 1)

    patch.setattr(Layout, "_find_blocked", mutant)


def _hide_oneself(patch: pytest.MonkeyPatch) -> None:
    find = Layout._find_blocked

    def mutant(self: Layout, *, causal: bool, window: int | None) -> Tensor | None:
        blocked = find(self, causal=causal, window=window)
        if not causal or blocked is None:
            return blocked
        keys = torch.arange(self.num_keys)
        own = keys == keys[self.num_keys - self.num_queries :, None]
        return blocked | (own & (keys > 0))

    patch.setattr(Layout, "_find_blocked", mutant)


def _widen_window(patch: pytest.MonkeyPatch) -> None:
    find = Layout._find_blocked

    def mutant(self: Layout, *, causal: bool, window: int | None) -> Tensor | None:
        return find(self, causal=causal, window=None if window is None else window + 1)

    patch.setattr(Layout, "_find_blocked", mutant)


def _forget(name: str) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        find = Layout._find_blocked

        def mutant(self: Layout, *, causal: bool, window: int | None) -> Tensor | None:
            kept = getattr(self, name)
            setattr(self, name, None)
            try:
                return find(self, causal=causal, window=window)
            finally:
                setattr(self, name, kept)

        patch.setattr(Layout, "_find_blocked", mutant)

    return patched


def _next_group(patch: pytest.MonkeyPatch) -> None:
    scores = nn_attention.content_scores
    patch.setattr(nn_attention, "content_scores", lambda q, k: scores(q, k.roll(1, dims=1)))


def _interleave_groups(patch: pytest.MonkeyPatch) -> None:
    """Query head h reads KV head h modulo g, where it is h // (H / g)."""
    mix = nn_attention.mix_values

    def mutant(weights: Tensor, value: Tensor) -> Tensor:
        return mix(weights, value.repeat(1, weights.shape[1] // value.shape[1], 1, 1))

    patch.setattr(nn_attention, "mix_values", mutant)


def _scale_without_root(patch: pytest.MonkeyPatch) -> None:
    scale = AttentionConfig.score_scale.fget  # type: ignore[attr-defined]
    squared = property(lambda self: scale(self) ** 2)
    patch.setattr(AttentionConfig, "score_scale", squared)


def _value_from_key(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    assert key.shape == value.shape
    return query, key, key


def _key_from_query(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    return query, query if query.shape == key.shape else key, value


def _exchange(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    return (key, query, value) if query.shape == key.shape else (query, key, value)


def _change_roles(change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        roles = Attention.roles

        def mutant(self: Attention, *args: Any, **kwargs: Any) -> Any:
            query, key, value, rotation = roles(self, *args, **kwargs)
            return *change(query, key, value), rotation

        patch.setattr(Attention, "roles", mutant)

    return patched


def _negate_temperature(patch: pytest.MonkeyPatch) -> None:
    tau = PlusBias.temperature
    patch.setattr(PlusBias, "temperature", lambda self: -tau(self))


def _bias_by_row_channels(patch: pytest.MonkeyPatch) -> None:
    bias = PlusBias.key_bias

    def mutant(self: PlusBias, positions: Tensor) -> Tensor:
        weight = self.weight
        self.weight = torch.nn.Parameter(weight.flip(-1))
        try:
            return bias(self, positions)
        finally:
            self.weight = weight

    patch.setattr(PlusBias, "key_bias", mutant)


def _turn(change: Callable[[Any, Rotation, Tensor, bool], Tensor]) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        turn = Rotation.turn

        def mutant(self: Rotation, heads: Tensor, *, back: bool = False) -> Tensor:
            return change(turn, self, heads, back)

        patch.setattr(Rotation, "turn", mutant)

    return patched


def _forget_first_token(patch: pytest.MonkeyPatch) -> None:
    """A cache that returns what it held one append ago, with the new tokens behind it."""
    append = LayerCache.append

    def mutant(self: LayerCache, new: Any) -> Any:
        stored = append(self, new)
        return {name: torch.cat([t[:, :, :1] * 0, t[:, :, 1:]], 2) for name, t in stored.items()}

    patch.setattr(LayerCache, "append", mutant)


def _share_cache_between_rows(patch: pytest.MonkeyPatch) -> None:
    append = LayerCache.append

    def mutant(self: LayerCache, new: Any) -> Any:
        return {name: t[:1].expand_as(t) for name, t in append(self, new).items()}

    patch.setattr(LayerCache, "append", mutant)


def _keep_one_too_few(patch: pytest.MonkeyPatch) -> None:
    append = GrowingStore.append

    def mutant(self: GrowingStore, new: Any, most_kept: int | None) -> Any:
        return append(self, new, None if most_kept is None else max(0, most_kept - 1))

    patch.setattr(GrowingStore, "append", mutant)


def _count_from_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Positions that start at the first stored token, as if nothing had been dropped."""
    end = Layout.end

    def mutant(self: Layout, num_keys: int) -> Layout:
        shorter = end(self, num_keys)
        shorter.key_positions = self.key_positions[:, :num_keys]
        return shorter

    patch.setattr(Layout, "end", mutant)


def _mask_the_first(patch: pytest.MonkeyPatch) -> None:
    """The padding of the first tokens, where the last ones are stored."""
    end = Layout.end

    def mutant(self: Layout, num_keys: int) -> Layout:
        shorter = end(self, num_keys)
        mask = self.attention_mask
        shorter.attention_mask = None if mask is None else mask[:, :num_keys]
        return shorter

    patch.setattr(Layout, "end", mutant)


def _diagonal_of_everything(patch: pytest.MonkeyPatch) -> None:
    """The published normalisation, over all tokens, in a causal layer."""
    normalise = nn_attention.normalise_diagonal

    def mutant(scores: Tensor, squares: Tensor, config: AttentionConfig, **masks: Any) -> Tensor:
        object.__setattr__(config, "causal", False)
        try:
            return normalise(scores, squares, config, **masks)
        finally:
            object.__setattr__(config, "causal", True)

    patch.setattr(nn_attention, "normalise_diagonal", mutant)


MUTANTS: dict[str, tuple[Patch, str, bool]] = {
    "positions off by one": (_shift_positions, "(Q=K-V)+", False),
    "query positions off by one": (_shift_queries, "Q=K=V@relative", False),
    "query positions off by one at decode": (_shift_queries, "QKV@rotary", False),
    "positions restart at decode": (_restart_positions_at_decode, "Q=K=V@relative", False),
    "mask shows one token of the future": (_show_one_more, "QKV", False),
    "mask hides the token itself": (_hide_oneself, "Q=K-V", False),
    "window one wider": (_widen_window, "QKV@w3", False),
    "padding attended": (_forget("attention_mask"), "Q-K=V", True),
    "other documents attended": (_forget("document_ids"), "I-K=V", True),
    "wrong head in a group": (_next_group, "GQA-2", False),
    "groups interleaved": (_interleave_groups, "Q-GQA-2", False),
    "scale without the root": (_scale_without_root, "QKV", False),
    "value from the key": (_change_roles(_value_from_key), "Q=K-V", False),
    "key from the query": (_change_roles(_key_from_query), "Q-K=V", False),
    "query and key exchanged": (_change_roles(_exchange), "Q=V", True),
    "temperature sign": (_negate_temperature, "(Q=K-V)+", False),
    "bias from row channels": (_bias_by_row_channels, "(Q=K-V)+", False),
    "rotated twice": (
        _turn(lambda t, r, x, b: t(r, t(r, x, back=b), back=b)),
        "Q-K=V@rotary",
        False,
    ),
    "not turned back": (_turn(lambda t, r, x, b: x if b else t(r, x)), "Q-K=V@rotary", False),
    "turned on": (_turn(lambda t, r, x, b: t(r, x, back=b and False)), "Q=K=V@rotary", False),
    "stale cache": (_forget_first_token, "Q-MQA", False),
    "cache shared between rows": (_share_cache_between_rows, "QKV", False),
    "window keeps one too few": (_keep_one_too_few, "MQA@w3", False),
    "positions counted from what is kept": (_count_from_what_is_kept, "(I-K=V/1)+@w3", False),
    "padding of what is dropped": (_mask_the_first, "QKV@w3", True),
    "diagonal over the future": (_diagonal_of_everything, "Q=K-V@diag-mean", False),
}
"""The mistake, a case in which it must show, and whether that case has masks."""


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, label, masked = MUTANTS[name]
    before = {
        d: run_case(label, d, causal=True, masked=masked) for d in (torch.float64, torch.bfloat16)
    }
    floor = distance(*before[torch.bfloat16])
    assert distance(*before[torch.float64]) < GATE
    assert floor < 0.15
    patch(monkeypatch)
    found, expected = run_case(label, torch.float64, causal=True, masked=masked)
    assert distance(found, expected) > VISIBLE
    found, expected = run_case(label, torch.bfloat16, causal=True, masked=masked)
    assert distance(found, expected) > 4 * floor


def test_without_a_mutant_nothing_is_caught() -> None:
    for label in dict.fromkeys(label for _, label, _ in MUTANTS.values()):
        for causal in (True, False):
            found, expected = run_case(label, torch.float64, causal=causal, masked=True)
            assert distance(found, expected) < GATE
