"""Ten mistakes of decoding, made on purpose: the gate notices each in float64 and in bfloat16.

One text each way through prompts in chunks, padding on the left, a crop and single steps, against
the plain loops of the reference. The gate is calibrated without the mistake.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.inference import decoding
from qkvary.nn import attention, cache_layouts
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.cache_layouts import RotatedForm
from qkvary.nn.cache_storage import GrowingStore
from qkvary.nn.layout import Layout
from tests.contracts.decoding_gates import assert_one_function, exact_network, find_network
from tests.reference.networks import language_model_logits

Patch = Callable[[pytest.MonkeyPatch], None]

DTYPES = (torch.float64, torch.bfloat16)
PROMPTS = ((3, 1, 4), (1, 5, 9, 2, 6, 5, 3), (5,))
WRONG, FOLLOWING = (12, 0), (11, 2)
"""What is taken back, and what follows instead."""


@functools.cache
def reference(name: str, dtype: torch.dtype) -> Tensor:
    """The logits behind every prompt and what follows, by plain loops, row by row."""
    model = exact_network(name, dtype)
    weights = {key: value.detach() for key, value in model.named_parameters()}
    rows = [
        language_model_logits(model.config, weights, torch.tensor([[*prompt, *FOLLOWING]]))[:, -3:]
        for prompt in PROMPTS
    ]
    return torch.cat(rows)


@functools.cache
def uncached(name: str, dtype: torch.dtype) -> Tensor:
    """The same by the network without a cache and without neighbours: what rounding does."""
    model = find_network(name, dtype)
    with torch.no_grad():
        rows = [model(torch.tensor([[*prompt, *FOLLOWING]]))[:, -3:] for prompt in PROMPTS]
    return torch.cat(rows)


def decoded(name: str, dtype: torch.dtype, layout: CacheLayout) -> Tensor:
    """The same with a cache, in one batch."""
    model = find_network(name, dtype)
    cache = KVCache(model.config.layers, options=CacheOptions(layout=layout))
    tokens, mask = decoding.pad_left(PROMPTS, torch.device("cpu"))
    assert mask is not None
    mask = torch.cat((mask, mask.new_ones(3, 2)), dim=1)
    with torch.no_grad():
        logits = [decoding.prefill(model, tokens, cache=cache, attention_mask=mask, chunk=3)]
        model(torch.tensor([WRONG] * 3), cache=cache, attention_mask=mask)
        cache.crop(tokens.shape[1])
        for token in FOLLOWING:
            seen = mask[:, : cache.length + 1]
            step = model(torch.tensor([[token]] * 3), cache=cache, attention_mask=seen)
            logits.append(step[:, -1])
    return torch.stack(logits, dim=1)


def decoding_is_right(name: str, dtype: torch.dtype, layout: CacheLayout) -> None:
    """The contract."""
    found = decoded(name, dtype, layout)
    assert_one_function(reference(name, dtype), uncached(name, dtype), decoded=found)


def _shift_queries_at_decode(patch: pytest.MonkeyPatch) -> None:
    positions = Layout.query_positions.fget  # type: ignore[attr-defined]

    def mutant(self: Layout) -> Tensor:
        return positions(self) + (0 if self.num_queries == self.num_keys else 1)

    patch.setattr(Layout, "query_positions", property(mutant))


def _show_one_more(patch: pytest.MonkeyPatch) -> None:
    find = Layout._find_blocked

    def mutant(self: Layout, **call: Any) -> Tensor | None:
        blocked = find(self, **call)
        if blocked is None:
            return None
        keys = torch.arange(self.num_keys)
        return blocked & (keys != keys[self.num_keys - self.num_queries :, None] + 1)

    patch.setattr(Layout, "_find_blocked", mutant)


def _rotate_what_was_stored_rotated(patch: pytest.MonkeyPatch) -> None:
    read = RotatedForm.read

    def mutant(self: RotatedForm, stored: Any, turn: Any, /) -> Any:
        key, value = read(self, stored, turn)
        return turn().turn(key), value

    patch.setattr(RotatedForm, "read", mutant)


def _take_the_rotated_key_for_the_value(patch: pytest.MonkeyPatch) -> None:
    rotate = cache_layouts.rotate_roles

    def mutant(*call: Any) -> Any:
        turned, _ = rotate(*call)
        return turned, turned

    patch.setattr(cache_layouts, "rotate_roles", mutant)


def _crop_the_wrong_end(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: GrowingStore, tokens: int) -> None:
        assert self._stored is not None
        self._stored = self._stored[:, :, tokens:].clone()

    patch.setattr(GrowingStore, "drop_last", mutant)


def _attend_to_padding(patch: pytest.MonkeyPatch) -> None:
    find = Layout._find_blocked

    def mutant(self: Layout, **call: Any) -> Tensor | None:
        mask, self.attention_mask = self.attention_mask, None
        try:
            return find(self, **call)
        finally:
            self.attention_mask = mask

    patch.setattr(Layout, "_find_blocked", mutant)


def _take_the_next_group(patch: pytest.MonkeyPatch) -> None:
    scores = attention.content_scores
    patch.setattr(attention, "content_scores", lambda q, k: scores(q, k.roll(1, dims=1)))


def _forget_the_root(patch: pytest.MonkeyPatch) -> None:
    """1 / d for 1 / sqrt(d)."""
    scores = attention.content_scores
    patch.setattr(attention, "content_scores", lambda q, k: scores(q / q.shape[-1] ** 0.5, k))


def _share_the_first_row(patch: pytest.MonkeyPatch) -> None:
    append = LayerCache.append

    def mutant(self: LayerCache, new: Any) -> Any:
        return {name: t[:1].expand_as(t) for name, t in append(self, new).items()}

    patch.setattr(LayerCache, "append", mutant)


def _read_the_last_column(patch: pytest.MonkeyPatch) -> None:
    """Padding on the right, so that the last column of a short row is no token of it."""

    def mutant(prompts: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        width = max(map(len, prompts))
        rows = [[*prompt, *[0] * (width - len(prompt))] for prompt in prompts]
        real = [[place < len(prompt) for place in range(width)] for prompt in prompts]
        return torch.tensor(rows, device=device), torch.tensor(real, device=device)

    patch.setattr(decoding, "pad_left", mutant)


MUTANTS: dict[str, tuple[Patch, str, CacheLayout]] = {
    "position off by one at decode": (_shift_queries_at_decode, "GQA", "sources"),
    "mask off by one": (_show_one_more, "QKV", "sources"),
    "rotated again after the cache": (_rotate_what_was_stored_rotated, "counter", "rotated"),
    "value from the rotated key": (
        _take_the_rotated_key_for_the_value,
        "value before rotation",
        "sources",
    ),
    "stale after a crop": (_crop_the_wrong_end, "Q-K=V", "sources"),
    "padding attended": (_attend_to_padding, "Q=K-V", "split"),
    "wrong head in a group": (_take_the_next_group, "GQA", "sources"),
    "scale without the root": (_forget_the_root, "I-K=V", "input"),
    "cache shared between rows": (_share_the_first_row, "low rank", "latent"),
    "logits of a padding slot": (_read_the_last_column, "trained", "sources"),
}
"""The mistake, and a network and layout in which it must show."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_is_noticed(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, network, layout = MUTANTS[name]
    decoding_is_right(network, dtype, layout)
    patch(monkeypatch)
    with pytest.raises(AssertionError, match=r"decoded: .* from float64"):
        decoding_is_right(network, dtype, layout)
