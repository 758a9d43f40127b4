"""Our networks in transformers: equal text by every decoding method, and equal bytes."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from qkvary.arch.canonical import canonical_json
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.huggingface.cache import NetworkCache
from qkvary.checkpoints.huggingface.causal import QKVForCausalLM, register
from qkvary.costs.network import network_costs
from qkvary.nn.language_model import LanguageModel
from tests.checkpoints.equal_networks import same_weights
from tests.checkpoints.huggingface.causal_models import (
    LABELS,
    PADDING,
    decode_greedily,
    left_padding,
    make_model,
    prompt,
)
from tests.contracts.variant_cases import GATE, distance
from tests.pairwise import pairwise

LENGTH, STEPS = 5, 8


def generate(model: Any, ids: Tensor, mask: Tensor | None = None, **options: Any) -> Any:
    torch.manual_seed(7)
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        pad_token_id=PADDING,
        return_dict_in_generate=True,
        output_scores=True,
        **{"max_new_tokens": STEPS, **options},
    )


def check_equal(found: Any, expected: Any) -> None:
    assert torch.equal(found.sequences, expected.sequences)
    for one, other in zip(found.scores, expected.scores, strict=True):
        finite = torch.isfinite(other)
        assert torch.equal(torch.isfinite(one), finite)
        assert distance(one[finite], other[finite]) < GATE


@pytest.mark.parametrize("label", LABELS)
def test_generate_is_our_own_decoding_with_and_without_cache(label: str) -> None:
    model = make_model(label)
    ids, mask = left_padding(prompt(3, LENGTH))
    cached = generate(model, ids, mask)
    check_equal(cached, generate(model, ids, mask, use_cache=False))
    own = decode_greedily(model.network, ids, mask, STEPS)
    assert torch.equal(cached.sequences, own)
    cache = cached.past_key_values
    assert isinstance(cache, NetworkCache)
    costs = network_costs(model.network.config, length=LENGTH + STEPS - 1, dtype="float64")
    assert cache.nbytes == 3 * (costs.cache_bytes_per_sequence or 0)
    assert cache.get_seq_length() == LENGTH + STEPS - 1


WAYS: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampled": {"do_sample": True, "num_return_sequences": 2, "top_k": 5},
    "chunked": {"prefill_chunk_size": 2},
    "static": {"cache_implementation": "static"},
}


@pairwise("label, way", itertools.product(LABELS, WAYS), together=1, ids=str)
def test_every_way_to_generate_gives_the_same_with_and_without_cache(label: str, way: str) -> None:
    options = WAYS[way]
    model = make_model(label)
    ids, mask = left_padding(prompt(3, LENGTH))
    plain = {} if way in ("chunked", "static") else options
    expected = generate(model, ids, mask, use_cache=False, **plain)
    check_equal(generate(model, ids, mask, **options), expected)


@pytest.mark.parametrize("label", [label for label in LABELS if "linear" not in label])
def test_rejected_tokens_are_cropped(label: str) -> None:
    """By looking up the prompt, and by another network."""
    model, assistant = make_model(label), make_model("GQA-2")
    ids = prompt(1, 4).repeat(1, 2)
    expected = generate(model, ids, use_cache=False)
    assert torch.equal(
        generate(model, ids, prompt_lookup_num_tokens=2).sequences, expected.sequences
    )
    assisted = generate(model, ids, assistant_model=assistant)
    assert torch.equal(assisted.sequences, expected.sequences)


WINDOWS = ("QKV@w3", "Q-MQA@rotary@w4", "Q-K=V@w4@s3", "I-K=V@alibi@w5")


@pytest.mark.parametrize("assistant", WINDOWS)
@pytest.mark.parametrize("label", ["QKV", "Q-K=V@w6"])
def test_an_assistant_with_a_window_takes_tokens_back(label: str, assistant: str) -> None:
    model, other = make_model(label), make_model(assistant)
    other.generation_config.num_assistant_tokens = 4
    # Longer than any window, so that the assistant has dropped tokens before it takes some back.
    ids = prompt(1, 4).repeat(1, 2)
    expected = generate(model, ids, use_cache=False)
    found = generate(model, ids, assistant_model=other)
    assert torch.equal(found.sequences, expected.sequences)


def test_an_assistant_without_a_way_back_is_refused() -> None:
    message = "expected layers that cache tokens, because this kind of generation removes tokens"
    with pytest.raises(ValueError, match=message):
        generate(make_model("QKV"), prompt(1, 8), assistant_model=make_model("QKV@linear"))


@pytest.mark.parametrize(("bits", "gate"), [(8, 0.05), (4, 0.7)])
def test_a_quantised_cache_holds_codes_of_the_key_alone(bits: int, gate: float) -> None:
    model = make_model("Q-K=V")
    ids = prompt(3, LENGTH)
    options = {"nbits": bits, "q_group_size": 5, "residual_length": 2}
    found = generate(
        model, ids, cache_implementation="quantized", cache_config=options, max_new_tokens=4
    )
    expected = generate(model, ids, max_new_tokens=4)
    # Codes of 5 channels take 5 or 3 bytes, and a scale takes 4; 2 tokens are kept as they are.
    # The last of the 4 new tokens was not fed back.
    tokens, heads = LENGTH + 3 - 2, 4
    coded = tokens * heads * ((5 if bits == 8 else 3) + 4)
    assert found.past_key_values.nbytes == 3 * 2 * (coded + 2 * 20 * 8)
    assert 0 < distance(found.scores[1][:1], expected.scores[1][:1]) < gate


@pairwise("label, tied", itertools.product(LABELS, [True, False]), together=1, ids=str)
def test_saved_and_loaded_is_the_same_bit_by_bit(label: str, tied: bool, tmp_path: Path) -> None:
    register()
    register()
    model = make_model(label, tied_head=tied, positions="learned", head_bias=not tied)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is QKVForCausalLM
    assert loaded.network.config == model.network.config
    assert loaded.config.tie_word_embeddings == tied
    assert same_weights(loaded.network, model.network)
    # Here too, without transformers.
    found, tokenizer = load_checkpoint(tmp_path)
    assert (found.config, tokenizer) == (model.network.config, None)
    assert same_weights(found, model.network)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"config.json", "generation_config.json", "model.safetensors"}
    stored = json.loads((tmp_path / "config.json").read_text("utf-8"))["network"]
    assert stored == json.loads(canonical_json(model.network.config))
    check_equal(generate(loaded, prompt(2, LENGTH)), generate(model, prompt(2, LENGTH)))


def test_weights_that_are_missing_get_first_values(tmp_path: Path) -> None:
    model = make_model("Q-K=V")
    stored = {
        name: value
        for name, value in model.state_dict().items()
        if "blocks.1.attention" not in name and "final_norm.bias" not in name
    }
    model.save_pretrained(tmp_path, state_dict=dict(stored))
    loaded = QKVForCausalLM.from_pretrained(tmp_path).network.state_dict()
    first = LanguageModel(model.network.config, seed=0).double().state_dict()
    assert len(loaded) - len(stored) == 9
    for name, value in loaded.items():
        assert torch.equal(value, stored.get(f"network.{name}", first[name])), name


def test_loss_is_that_of_the_next_token_and_gradients_arrive() -> None:
    model = make_model("Q-K=V").train()
    ids = prompt(3, LENGTH)
    labels = ids.clone()
    labels[1, :3] = -100
    output = model(ids, labels=labels)
    expected = F.cross_entropy(
        model.network(ids)[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
    )
    assert torch.allclose(output.loss, expected, rtol=1e-6)
    assert output.past_key_values is None
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    summed = model(ids, labels=labels, num_items_in_batch=torch.tensor(4)).loss
    assert torch.allclose(summed, expected * 10 / 4, rtol=1e-6)


def test_forward_is_the_network() -> None:
    model = make_model("(Q=K-V)+")
    ids, mask = left_padding(prompt(3, LENGTH))
    expected = model.network(ids, attention_mask=mask)
    output = model(ids, attention_mask=mask)
    assert torch.equal(output.logits, expected)
    assert output.past_key_values.get_seq_length() == LENGTH
    assert torch.equal(model(ids, mask, return_dict=False)[0], expected)
    assert model(ids, mask, use_cache=False).past_key_values is None
    # A product of fewer rows may add up in another order.
    few = model(ids, mask, logits_to_keep=2).logits
    torch.testing.assert_close(few, expected[:, -2:], rtol=0, atol=1e-6)
    chosen = torch.tensor([0, 3])
    few = model(ids, mask, logits_to_keep=chosen).logits
    torch.testing.assert_close(few, expected[:, chosen], rtol=0, atol=1e-6)


def test_unknown_arguments_are_rejected() -> None:
    model = make_model("Q-K=V")
    ids = prompt(2, LENGTH)
    with pytest.raises(ValueError, match="expected no unknown arguments, got position_ids; choi"):
        model(ids, position_ids=torch.arange(LENGTH)[None])
    model(ids, output_attentions=False, position_ids=None)
    with pytest.raises(ValueError, match=r"expected a cache from make_cache\(\).* got Dynamic"):
        model(ids, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match=r"cache_implementation .* device, got offloaded; choi"):
        generate(model, ids, cache_implementation="offloaded")
    for wrong in ({"nbits": 2}, {"backend": "hqq"}):
        with pytest.raises(ValueError, match=r"expected a cache_config of nbits 4 or 8, .* got \{"):
            generate(model, ids, cache_implementation="quantized", cache_config=wrong)
