"""Our cache supports the operations of transformers, and rejects the rest."""

import random

import pytest
import torch

from qkvary.arch.caches import CacheOptions
from tests.checkpoints.huggingface.causal_models import make_model, prompt
from tests.contracts.variant_cases import GATE, distance

OPTIONS = [CacheOptions(), CacheOptions(storage="preallocated"), CacheOptions(layout="rotated")]


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS, ids=lambda one: f"{one.layout} {one.storage}")
@pytest.mark.parametrize("label", ["Q-K=V@rotary", "QKV", "Q-MQA"])
def test_any_sequence_of_operations_leaves_what_is_computed_anew(
    label: str, options: CacheOptions
) -> None:
    model = make_model(label)
    for seed in range(4):
        choose = random.Random(seed)
        cache = model.make_cache(max_tokens=17, options=options)
        seen = torch.empty(2, 0, dtype=torch.long)
        for step in range(14):
            rows, length = seen.shape
            name = choose.choice(["feed", "feed", "crop", "reorder", "repeat", "select", "reset"])
            if name == "crop" and length:
                removed = choose.randint(0, length)
                cache.crop(-removed)
                seen = seen[:, : length - removed]
            elif name in {"reorder", "select"} and length:
                wanted = rows if name == "reorder" else choose.randint(1, rows)
                chosen = torch.tensor([choose.randrange(rows) for _ in range(wanted)])
                act = cache.reorder_cache if name == "reorder" else cache.batch_select_indices
                act(chosen)
                seen = seen[chosen]
            elif name == "repeat" and length and rows < 4:
                cache.batch_repeat_interleave(2)
                seen = seen.repeat_interleave(2, dim=0)
            elif name == "reset":
                cache.reset()
                seen = torch.empty(2, 0, dtype=torch.long)
            elif length < 14:
                new = prompt(rows, choose.randint(1, 3), seed=100 * seed + step)
                seen = torch.cat((seen, new), dim=1)
                found = model(new, past_key_values=cache).logits
                expected = model(seen, use_cache=False).logits[:, -new.shape[1] :]
                assert distance(found, expected) < GATE
            assert cache.get_seq_length() == seen.shape[1]


@torch.no_grad()
def test_a_recording_cache_takes_tokens_of_a_window_back() -> None:
    model = make_model("Q-K=V@w3")
    cache, ids = model.make_cache(), prompt(2, 9)
    cache.activate_past_recording()
    assert cache.is_croppable
    model(ids, past_key_values=cache)
    cache.crop(-4)
    found = model(ids[:, 5:6], past_key_values=cache).logits
    assert distance(found, model(ids).logits[:, 5:6]) < GATE
    assert cache.nbytes == 2 * 6 * 2 * 20 * 8
    used = model(ids).past_key_values
    used.activate_past_recording()
    assert not used.is_croppable
    assert used.get_seq_length() == 9
