"""Everything runs on a device that is not the CPU, gives what the CPU gives, and seldom waits.

The device is ``tests.fake_device``: a tensor made in the wrong place raises, and each time the host
waits for the device is counted. Where it may wait, the test says so.
"""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from qkvary.analysis.measurement import analyze_windows
from qkvary.arch.caches import CacheLayout, CacheOptions, DecodeKernel
from qkvary.arch.networks import (
    BlockConfig,
    CrossSharing,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    Network,
    VisionTransformerConfig,
)
from qkvary.checkpoints.models import load_model, save_model
from qkvary.conversions.catalog import rewrite_names
from qkvary.conversions.draft import RewriteOptions
from qkvary.conversions.rewriting import run_rewrite
from qkvary.inference import beams, cache_quality
from qkvary.inference.benchmark.measuring import answer_without_cache, measure_bandwidth
from qkvary.inference.decoding import complete, generate, make_cache
from qkvary.inference.evaluation.lengths import lengthen
from qkvary.inference.evaluation.scoring import score_rows, score_windows
from qkvary.inference.evaluation.windows import batch, cut
from qkvary.inference.requests import Request, Sampling
from qkvary.nn.cache import KVCache
from qkvary.nn.encoder import Encoder
from qkvary.nn.encoder_decoder import EncoderDecoder, EncoderDecoderCache
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.quantized_weights import quantize_weights
from qkvary.nn.stack import Stack
from qkvary.nn.vision_transformer import VisionTransformer
from qkvary.storage.errors import DivergedError
from tests.analysis.networks import make_network, make_windows
from tests.contracts.variant_cases import (
    DECISIVE,
    EVERY_LABEL,
    GATE,
    LABELS,
    distance,
    documents,
    make_config,
    make_encoder_config,
    make_language_model_config,
    padding_mask,
    randomize,
    variant_fields,
    variant_values,
)
from tests.conversions import networks as convertible
from tests.conversions.rewrites.test_absorb_skip import with_absorbable
from tests.fake_device import DEVICE, DeviceTensor, FakeDevice
from tests.inference.decoding_networks import make_network as make_decoder
from tests.pairwise import pairwise

CPU = "cpu"
TOKENS = torch.tensor([[1, 12, 3, 3, 0, 7, 5], [0, 0, 9, 2, 11, 4, 6], [8, 1, 1, 10, 2, 12, 0]])
TARGETS = TOKENS.roll(-1, 1).masked_fill(TOKENS == 3, -100)
NETWORKS: dict[Any, Any] = {
    LanguageModelConfig: LanguageModel,
    EncoderConfig: Encoder,
    VisionTransformerConfig: VisionTransformer,
    EncoderDecoderConfig: EncoderDecoder,
}
KINDS = ("language model", "encoder", "pooled encoder", "vision transformer", "encoder-decoder")
BFLOAT16 = 0.15
"""Of the deviation of what is compared: the CPU rounds in other places."""

Work = Callable[[Any, str], Any]


def on_both(model: nn.Module, work: Work, *, gate: float = GATE) -> FakeDevice:
    """Compare the results of some work on the CPU and on the device; all stay on the device."""
    expected = work(copy.deepcopy(model), CPU)
    with FakeDevice() as device:
        there = copy.deepcopy(model).to(DEVICE)
        device.uploads.clear()
        found = work(there, DEVICE)
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if isinstance(other, Tensor):
            assert isinstance(one, DeviceTensor)
            assert one.dtype == other.dtype
            assert distance(one.cpu().double(), other.double()) < gate
        else:
            assert one == other
    return device


def move(arguments: dict[str, Any], device: str) -> dict[str, Any]:
    return tree_map_only(Tensor, lambda one: one.to(device), arguments)


@functools.cache
def configure(kind: str, label: str, cross: CrossSharing = "same") -> Network | None:
    """A small network; ``None`` where there is no such network."""
    block = BlockConfig(d_ff=11, dropout=0.1)
    try:
        causal = kind in ("language model", "encoder-decoder")
        attention = make_config(label, causal=causal)
        if kind == "language model":
            found = make_language_model_config(label, positions="learned")
            return dataclasses.replace(found, block=block)
        if kind == "vision transformer":
            return VisionTransformerConfig(
                attention=attention,
                block=block,
                num_layers=2,
                image_size=6,
                patch_size=2,
                channels=3,
                classes=11,
            )
        if kind == "encoder-decoder":
            return EncoderDecoderConfig(
                attention=attention,
                block=block,
                num_layers=2,
                vocabulary=13,
                source_vocabulary=14,
                max_tokens=17,
                cross_sharing=cross,
            )
        return make_encoder_config(label, pooling="mean" if "pooled" in kind else "none")
    except ValueError:
        # Refused by the configuration (tests/arch holds which).
        return configure(kind, label, "none") if cross == "same" else None


@functools.cache
def build(kind: str, label: str) -> nn.Module:
    """The network in float64, with weights that make a difference."""
    network = NETWORKS[type(configure(kind, label))](configure(kind, label))
    randomize(network.double(), seed=43)
    return network


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
        return {
            "tokens": TOKENS,
            "targets": TARGETS,
            "attention_mask": mask,
            "document_ids": ids,
        }
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

    device = on_both(network, step, gate=BFLOAT16 if narrow else GATE)
    expected: dict[str, int] = {}
    if kind == "encoder-decoder":
        # The targets that count are picked from the batch.
        expected["nn/smoothed_loss.py smoothed_loss_sum"] = 1
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

FEW = (*DECISIVE, "Q-K=V@rotary", "Q-K=V@linear")
PENALISED = Sampling(temperature=0.8, top_k=7, top_p=0.9, min_p=0.01, repetition_penalty=1.2)
REQUESTS = [
    Request(prompt=(1, 2, 3), max_new_tokens=2),
    Request(prompt=(4, 5), max_new_tokens=6, stop_tokens=(3,)),
    Request(prompt=(7,), max_new_tokens=2, sampling=Sampling(temperature=1.5), seed=2),
    Request(prompt=(9, 9, 9, 1), max_new_tokens=4, sampling=PENALISED, seed=4, logprobs=True),
]
PER_TOKEN = ("inference/decoding.py check_finite", "inference/decoding.py _decode")
"""The host reads every token, and whether its logits are finite: text and stops are made there."""


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
        # Where rows are dropped, not at every step.
        "inference/sampling.py Sampler.keep": device.waits["inference/sampling.py Sampler.keep"],
    }
    assert device.waits["inference/sampling.py Sampler.keep"] <= 2
    # Settings of the rows at first, then their uniform numbers at every step.
    assert device.uploads["inference/sampling.py Sampler._column"] <= 5 + steps


def test_the_fastest_step_is_found_by_timing() -> None:
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


STORAGES = [
    CacheOptions(storage="growing"),
    CacheOptions(storage="preallocated"),
    CacheOptions(storage="int8", group=3),
    CacheOptions(storage="int4", group=3, residual=2),
    CacheOptions(storage="int8", group=5, rotate=True),
    CacheOptions(storage="int4", scales="channel", block=2),
    CacheOptions(storage="int3", scales="channel", block=3, residual=1, rotate=True),
    CacheOptions(storage="int2", scales="channel", block=2, residual=1),
]


TABLES = (
    "nn/positions.py _frequencies",
    "nn/cache_codes.py _codes_of_bytes",
    "nn/cache_codes.py rotation",
)
"""Made once and kept."""


def named(options: object) -> str | None:
    if not isinstance(options, CacheOptions):
        return None
    return f"{options.storage}-{options.scales}-{options.residual}-{options.rotate}"


@pairwise(
    "label, options, layout",
    zip(
        LABELS * len(STORAGES),
        [options for options in STORAGES for _ in LABELS],
        itertools.cycle(get_args(CacheLayout)),
        strict=False,
    ),
    fields={"label": variant_fields},
    ids=named,
    together=1,
)
def test_cache(label: str, options: CacheOptions, layout: CacheLayout) -> None:
    """Chunks and single tokens with padding, then other rows, and a crop where there is one."""
    config = make_language_model_config(label)
    keeps = all(layer.variant.keeps_state for layer in config.layers)
    if options.scales == "channel" and any(layer.variant.window for layer in config.layers):
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
            if not keeps and all(layer.can_undo(1) for layer in cache.layers):
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
            with pytest.raises(DivergedError, match="not finite"):
                complete(
                    there,
                    [Request(prompt=(1, 5, 2), max_new_tokens=4)],
                    new_cache=lambda _, cache=cache: cache,
                )


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


# ---- evaluation, analysis, conversion


@pytest.mark.parametrize("label", FEW[1::3])
def test_evaluation(label: str) -> None:
    text = np.arange(90) * 7 % 13
    windows = cut(np.array([[0, 33], [33, 60], [60, 90]]), context=8, stride=4)

    def score(model: Any, _device: str) -> Any:
        losses = score_windows(model, text, windows, batch_size=4)
        rows = score_rows(model, text.reshape(-1, 10), batch_size=5)
        return [np.round(one, 8).tolist() for one in (np.nan_to_num(losses), rows)]

    device = on_both(build("language model", label).eval(), score)
    batches = len(batch(windows, size=4)) + 2
    assert device.waits == {"inference/evaluation/scoring.py _score": batches}


def test_caches_are_measured() -> None:
    options = [CacheOptions(storage="int4", group=2)]

    def measure(model: Any, _device: str) -> Any:
        text = [number * 7 % 13 for number in range(34)]
        (found,) = cache_quality.measure_text(model, text, options, contexts=[8], most_tokens=16)
        return round(found.quality.mean_kl, 9), found.quality.bits_per_token

    device = on_both(build("language model", "Q-K=V").eval(), measure)
    # Each figure is read once, at the end.
    assert set(device.waits.values()) <= {1, 2, 3}


def test_a_network_that_reads_longer_windows() -> None:
    model = LanguageModel(make_language_model_config("Q-K=V@alibi")).double().eval()

    def read(model: Any, device: str) -> Any:
        tokens = torch.arange(30, device=device)[None] % 13
        with torch.no_grad():
            return lengthen(model, 40)(tokens)

    assert on_both(model, read).waits == {}


def test_answers_are_timed() -> None:
    def answer(model: Any, device: str) -> Any:
        rate = measure_bandwidth(torch.ones(1000, device=device))
        found = answer_without_cache(model, ((1, 2, 3), (4, 5, 6)), ((1, 2), (3, 4)), [0, 1])
        return found.tokens, rate > 0

    device = on_both(make_decoder("Q-K=V"), answer)
    assert sum(device.waits.values()) == 4


AFTER_THE_TEXT = {
    "analysis/attention_statistics.py AttentionStatistics.result",
    "analysis/layers.py LayerStatistics._compare_heads",
    "analysis/measurement.py _keep_maps",
    "nn/role_maps.py _make_source",
    "nn/role_maps.py _shape_query",
}
"""Matrices of a layer, which the CPU takes apart; and the maps of the first window."""


@pytest.mark.parametrize("label", ["(Q=K-V)+", "Q[map]=K-V@alibi", "MQA@rotary@w3@t0.5"])
def test_analysis(label: str) -> None:
    windows = make_windows(0, 41, 11)

    def analyze(model: Any, _device: str) -> Any:
        found = analyze_windows(model, windows, context=64)
        head = found.layers[0].key_values[0]
        figures = (found.loss, head.similarity, head.forecast, found.layers[1].attention[0].entropy)
        return [round(one, 7) for one in figures], found.maps.round(7).tolist()

    device = on_both(make_network(label), analyze)
    # Tokens are drawn on the CPU, the same for every device, and the loss is read.
    assert device.waits.pop("analysis/observation.py read_window") == 2 * len(windows)
    assert set(device.waits) <= AFTER_THE_TEXT


REWRITTEN = {
    "absorb-skip": lambda: with_absorbable(convertible.make_network("QKV", block=RELU), 20),
    "reduce-plus": lambda: convertible.make_network("(Q=K-V)+"),
    "merge-query-key": lambda: convertible.make_network("QKV", heads=1),
    "merge-value-output": lambda: convertible.make_network("QKV", heads=1),
}
RELU = BlockConfig(d_ff=40, activation="relu", norm="none")


@pytest.mark.parametrize("name", rewrite_names())
def test_rewrite(name: str) -> None:
    make = REWRITTEN.get(name, lambda: convertible.make_network("QKV"))

    def rewrite(model: Any, device: str) -> Any:
        made = run_rewrite(name, model, RewriteOptions()).network
        with torch.no_grad():
            return made(TOKENS.to(device))

    on_both(make(), rewrite, gate=1e-9)


def test_a_checkpoint_of_the_device_is_one_of_the_cpu(tmp_path: Path) -> None:
    model = build("language model", "(Q=K-V)+").eval()
    with FakeDevice():
        save_model(tmp_path / "there", copy.deepcopy(model).to(DEVICE))
        loaded = load_model(tmp_path / "there").network
        assert {one.device.type for one in loaded.parameters()} == {CPU}
        again = loaded.to(DEVICE)
    for name, weight in again.state_dict().items():
        assert torch.equal(weight.cpu(), model.state_dict()[name])
