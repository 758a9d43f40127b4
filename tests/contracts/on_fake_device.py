"""Everything runs on a device that is not the CPU, gives what the CPU gives, and seldom waits.

The device is ``tests.fake_device``: a tensor made in the wrong place raises, and each time the host
waits for the device is counted. Where it may wait, the test says so.
"""

import copy
import dataclasses
import itertools
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from qkvary.arch.caches import CacheLayout, CacheOptions, DecodeKernel
from qkvary.inference import beams
from qkvary.inference.decoding import complete, generate, make_cache
from qkvary.inference.requests import Request, Sampling
from qkvary.nn.blocks import Stack
from qkvary.nn.cache import KVCache
from qkvary.nn.encoder_decoder import EncoderDecoder, EncoderDecoderCache
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.quantized_weights import quantize_weights
from qkvary.storage.errors import DivergedError
from tests.contracts.both_devices import (
    BFLOAT16,
    FEW,
    KINDS,
    TARGETS,
    TOKENS,
    build,
    configure,
    move,
    on_both,
)
from tests.contracts.variant_cases import (
    CODED,
    EVERY_LABEL,
    GATE,
    LABELS,
    documents,
    make_language_model_config,
    options_id,
    padding_mask,
    variant_fields,
    variant_values,
)
from tests.fake_device import DEVICE, FakeDevice
from tests.inference.decoding_networks import make_network as make_decoder
from tests.pairwise import pairwise


def call(kind: str, *, masked: bool) -> dict[str, Any]:
    """The arguments of a training step."""
    mask = padding_mask() if masked else None
    if kind == "vision transformer":
        drawn = torch.Generator().manual_seed(3)
        return {"images": torch.randn(3, 3, 6, 6, generator=drawn, dtype=torch.float64)}
    if kind == "encoder-decoder":
        source = torch.where(padding_mask(), TOKENS + 1, 1)
        return {"tokens": TOKENS, "source": source, "targets": TARGETS, "smoothing": 0.1}
    if kind == "language model":
        ids = documents() if masked else None
        return {"tokens": TOKENS, "targets": TARGETS, "attention_mask": mask, "document_ids": ids}
    return {"tokens": TOKENS, "attention_mask": mask}


MODES = ("plain", "masked", "recomputed", "bf16")


CASES = [
    (kind, label, mode)
    for kind, label, mode in itertools.product(KINDS, EVERY_LABEL, MODES)
    if configure(kind, label) is not None
]


@pairwise("kind, label, mode", CASES, fields={"label": variant_fields}, together=1)
def test_training_step(kind: str, label: str, mode: str) -> None:
    """Forward, fused loss and backward."""
    network, narrow, masked = build(kind, label), mode == "bf16", mode != "plain"
    for module in network.modules():
        if isinstance(module, Stack):
            module.recompute_blocks = mode == "recomputed"

    def step(model: Any, device: str) -> Any:
        given = move(call(kind, masked=masked), device)
        if narrow:
            model.float()
            given = tree_map_only(
                Tensor, lambda one: one.float() if one.is_floating_point() else one, given
            )
        torch.manual_seed(5)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=narrow):
            found = model.train()(**given)
            loss = found if found.dim() == 0 else found.float().square().sum()
        loss.backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        return loss.detach(), torch.cat([one.flatten() for one in gradients]), len(gradients)

    device = on_both(network, step, gate=BFLOAT16 if narrow else GATE, rounded=narrow)
    expected: dict[str, int] = {}
    if kind == "encoder-decoder":
        # The targets that count are picked from the batch.
        expected["nn/fused_loss.py smoothed_loss_sum"] = 1
    assert device.waits == expected
    # The inputs, and a table that is kept.
    assert set(device.uploads) <= {"elsewhere", TABLES[0]}


@pytest.mark.parametrize("label", ["Q-K=V@linear", "Q-K=V@linear@decay-learned"])
def test_documents_of_a_state(label: str) -> None:
    config = make_language_model_config(label)
    chunked = dataclasses.replace(config.attention, kernel="auto")
    model = LanguageModel(dataclasses.replace(config, attention=chunked)).double()

    def step(model: Any, device: str) -> Any:
        ids = documents().to(device)
        model(TOKENS.to(device), targets=TARGETS.to(device), document_ids=ids).backward()
        return [one.grad for one in model.parameters()]

    device = on_both(model, step)
    # A state holds one document at a time: interrupted ones are refused, once for all layers.
    assert device.waits == {"nn/layout.py Layout.check_documents_in_a_row": 1}


@variant_values("label, kind", EVERY_LABEL, ["language model", "encoder", "encoder-decoder"])
def test_attention_maps(label: str, kind: str) -> None:
    network = build(kind if configure(kind, label) else "encoder", label)

    def look(model: Any, device: str) -> Any:
        tokens = TOKENS.to(device)
        with torch.inference_mode():
            if isinstance(model, EncoderDecoder):
                return tuple(model.attention_maps(tokens, tokens))
            return model.attention_maps(tokens)

    assert on_both(network.eval(), look).waits == {}


# ---- decoding

PENALISED = Sampling(temperature=0.8, top_k=7, top_p=0.9, min_p=0.01, repetition_penalty=1.2)
REQUESTS = [
    Request(prompt=(1, 2, 3), max_new_tokens=2),
    Request(prompt=(4, 5), max_new_tokens=6, stop_tokens=(3,)),
    Request(prompt=(7,), max_new_tokens=2, sampling=Sampling(temperature=1.5), seed=2),
    Request(prompt=(9, 9, 9, 1), max_new_tokens=4, sampling=PENALISED, seed=4, logprobs=True),
]
PER_TOKEN = ("inference/decoding.py check_finite", "inference/decoding.py _decode")
"""The host reads every token, and whether its logits are finite: text and stops are made there."""
FILTERS = ("inference/sampling.py keep_top_k", "inference/sampling.py keep_top_p")


@pairwise(
    "label, kernel",
    itertools.product(FEW, ["layer", "folded", "matmul"]),
    together=1,
)
def test_generation(label: str, kernel: DecodeKernel) -> None:
    """Greedy and sampled rows of different lengths, which end at different steps."""

    def answer(model: Any, _device: str) -> Any:
        answers = complete(
            model, REQUESTS, new_cache=lambda limit: make_cache(model, limit, kernel=kernel)
        )
        return [one.tokens for one in answers]

    device = on_both(build("language model", label).eval(), answer)
    steps = device.waits[PER_TOKEN[0]]
    assert steps <= max(request.max_new_tokens for request in REQUESTS)
    assert device.waits == {
        **dict.fromkeys(PER_TOKEN, steps),
        # Asked for by a request.
        "inference/sampling.py log_probabilities": steps,
        # How many tokens a filter keeps or sorts, while a row has one.
        **{place: device.waits[place] for place in FILTERS},
        # Where rows are dropped, not at every step.
        "inference/sampling.py Sampler.keep": device.waits["inference/sampling.py Sampler.keep"],
    }
    assert max(device.waits[place] for place in FILTERS) <= steps
    assert device.waits["inference/sampling.py Sampler.keep"] <= 2
    # Settings of the rows at first, then their uniform numbers at every step.
    assert device.uploads["inference/sampling.py Sampler._column"] <= 6 + steps


def test_a_step_by_the_rule() -> None:
    def answer(model: Any, _device: str) -> Any:
        return generate(
            model,
            [[1, 2, 3]],
            max_new_tokens=5,
            new_cache=lambda limit: make_cache(model, limit, kernel="auto"),
        )

    assert on_both(make_decoder("Q-K=V"), answer).waits == dict.fromkeys(PER_TOKEN, 5)


@pytest.mark.parametrize("label", FEW[::3])
def test_beams(label: str) -> None:
    def answer(model: Any, _device: str) -> Any:
        request = Request(prompt=(1, 2, 3), max_new_tokens=5)
        return [beam.tokens for beam in beams.search(model, request, beams=3)]

    device = on_both(build("language model", label).eval(), answer)
    assert device.waits == {"inference/decoding.py check_finite": 5, "inference/beams.py search": 5}


STORAGES = [CacheOptions(storage="growing"), CacheOptions(storage="preallocated"), *CODED]
TABLES = (
    "nn/layout.py _frequencies",
    "nn/cache_codes.py _codes_of_bytes",
    "nn/cache_codes.py rotation",
)
"""Made once and kept."""


@pairwise(
    "label, options, layout",
    zip(
        LABELS * len(STORAGES),
        [options for options in STORAGES for _ in LABELS],
        itertools.cycle(get_args(CacheLayout)),
        strict=False,
    ),
    fields={"label": variant_fields},
    ids=options_id,
    together=1,
)
def test_cache(label: str, options: CacheOptions, layout: CacheLayout) -> None:
    """Chunks and single tokens with padding, then other rows, and a crop where there is one."""
    config = make_language_model_config(label)
    keeps = all(layer.variant.keeps_state for layer in config.layers)
    forgets = any(layer.variant.window for layer in config.layers)
    if options.scales == "channel" and forgets:
        options = CacheOptions(storage="int4", group=2)
    options = dataclasses.replace(options, layout=layout)

    def decode(model: Any, device: str) -> Any:
        cache = KVCache(model.config.layers, max_tokens=11, options=options)
        tokens, mask = TOKENS.to(device), padding_mask().to(device)
        found: list[Tensor] = []
        with torch.no_grad():
            for start, stop in ((0, 4), (4, 5), (5, 6), (6, 7)):
                now = {"attention_mask": mask[:, :stop]}
                found.append(model(tokens[:, start:stop], cache=cache, **now))
            cache.reorder(torch.tensor([2, 0, 2], device=device))
            found.append(model(tokens[:, :1], cache=cache))
            if not (keeps or forgets or options.is_quantized):
                cache.crop(7)
                found.append(model(tokens[:, 1:3], cache=cache))
        return found

    # Codes may round to either side where numbers differ in the last bit.
    gate = 0.3 if options.is_quantized else GATE
    device = on_both(build("language model", label).eval(), decode, gate=gate)
    assert device.waits == {}
    assert set(device.uploads) <= {"elsewhere", *TABLES}


def test_numbers_without_a_scale_are_seen_in_the_logits() -> None:
    """On a CPU they are refused at once; a device would have to be asked in every layer."""
    model = build("language model", "Q-K=V").eval()
    for storage in (CacheOptions(storage="int8"), CacheOptions(storage="int4", scales="channel")):
        with FakeDevice():
            there = copy.deepcopy(model).to(DEVICE)
            with torch.no_grad():
                there.embedding[5].fill_(1e300)
            cache = KVCache(there.config.layers, max_tokens=9, options=storage)
            asked = [Request(prompt=(1, 5, 2), max_new_tokens=4)]
            with pytest.raises(DivergedError, match="not finite"):
                complete(there, asked, new_cache=lambda _, cache=cache: cache)


@pytest.mark.parametrize("label", ["QKV", "Q=K=V", "GQA-2", "Q-K=V@rotary", "(Q=K-V)+"])
def test_memory_of_an_encoder(label: str) -> None:
    def answer(model: Any, device: str) -> Any:
        with torch.inference_mode():
            memory, mask = model.encode(torch.where(padding_mask(), TOKENS + 1, 1).to(device))

        def new_cache(limit: int) -> EncoderDecoderCache:
            return EncoderDecoderCache(model.config, memory, mask, max_tokens=limit)

        said = generate(model, [[0]] * 3, max_new_tokens=6, stop_tokens=(2, 3), new_cache=new_cache)
        return memory, said

    device = on_both(build("encoder-decoder", label).eval(), answer)
    keep = "inference/sampling.py Sampler.keep"
    assert set(device.waits) <= {*PER_TOKEN, keep}
    assert max(device.waits[place] for place in PER_TOKEN) <= 6


@pytest.mark.parametrize("label", ["QKV", "Q-K=V@rotary"])
def test_weights_of_8_bits(label: str) -> None:
    def read(model: Any, device: str) -> Any:
        tokens = TOKENS.to(device)
        quantize_weights(model)
        with torch.no_grad():
            return model(tokens)

    device = on_both(build("language model", label).eval(), read)
    # Each matrix once, when its codes are made.
    assert set(device.waits) == {"nn/cache_codes.py check_finite.<locals>.<genexpr>"}
