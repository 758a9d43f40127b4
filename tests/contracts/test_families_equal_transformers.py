"""Every family, read from its configuration, costs what transformers builds and stores.

Parameters are counted once each; buffers are none. What a cache holds is the bytes of its entries,
what it allocates the bytes of the storages that they lie in. Multiply-accumulates are counted as an
explicit kernel computes them, all pairs of a prompt among them. Two differences are exact:
transformers expands every stored latent in every step, and attends to all summaries where the
indexer has chosen some.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, TypeVar

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache

from qkvary.arch.blocks import AttentionLayer, CompressedAttention, LatentAttention
from qkvary.arch.families.sizes import published_configs
from qkvary.arch.families.table import FAMILIES, MULTIMODAL, read_model
from qkvary.arch.models import Model
from qkvary.costs.cache import layerwise_cache_bytes, model_cache_bytes
from qkvary.costs.exact_savings import apply_saving, find_savings
from qkvary.costs.formats import parse_format
from qkvary.costs.macs import decode_macs, forward_macs
from qkvary.costs.parameters import model_parameters
from tests.contracts.flops import count_macs
from tests.contracts.transformers_cases import (
    CASES,
    COMPRESSED,
    GEMMA4_EQUAL,
    HOLDS_MORE,
    INSIDE,
    NAMED_OTHERWISE,
    ONCE,
    STORES_NOTHING,
    Config,
    count_parameters,
    few,
    saved,
)

PROMPT = 9
STEPS = 4
ENCODER_TOKENS = 6
NUMBER = 4
"""Bytes of a float32."""
Made = TypeVar("Made")
CACHES = ("past_key_values", "cache_params", "state")
STATES = ("conv1d_state", "recurrent_states")


def make_config(family: str, config: Config) -> Any:
    return transformers.AutoConfig.for_model(family, **config)


def read(family: str, config: Config) -> Model:
    return read_model({"model_type": family, **config}, family)


def read_whole(family: str, config: Config) -> Model:
    """The model of a file with every field."""
    return read_model(saved(make_config(family, config)), family)


def once(make: Callable[[str, Config], Made]) -> Callable[[str, Config], Made]:
    """Make something of each configuration once, for all tests."""

    @functools.cache
    def kept(family: str, text: str) -> Made:
        return make(family, json.loads(text))

    return lambda family, config: kept(family, json.dumps(config))


@once
def build(family: str, config: Config) -> nn.Module:
    """The model that transformers builds, with random weights; of several modalities, the text's.

    The grouped kernel for experts asks for sizes that no test should have: it is not taken.
    """
    made = make_config(family, config)
    if family in MULTIMODAL:
        made = made.get_text_config()
    kinds = (
        (transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForSpeechSeq2Seq)
        if made.is_encoder_decoder
        else (transformers.AutoModelForCausalLM,)
    )
    kind = next(kind for kind in kinds if type(made) in kind._model_mapping)
    torch.manual_seed(1)
    return kind.from_config(made, experts_implementation="eager").eval()


def encoder_input(config: Any) -> dict[str, Tensor]:
    """Tokens, or as many frames of sound as the model always takes."""
    if hasattr(config, "num_mel_bins"):
        frames = 2 * config.max_source_positions
        return {"input_features": torch.ones(1, config.num_mel_bins, frames)}
    return {"input_ids": torch.arange(3, 3 + ENCODER_TOKENS)[None]}


class Decoder:
    """One sequence, a prompt first, then token by token."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.config: Any = model.config
        keeps_states = self.config.model_type == "recurrent_gemma"
        self.cache: Any = DynamicCache(config=model.config) if keeps_states else None
        self.encoded: Any = None

    @torch.no_grad()
    def feed(self, tokens: int) -> None:
        ids = torch.arange(3, 3 + tokens)[None]
        if self.config.is_encoder_decoder:
            encoder = (
                {"encoder_outputs": self.encoded} if self.encoded else encoder_input(self.config)
            )
            output = self.model(
                decoder_input_ids=ids, past_key_values=self.cache, use_cache=True, **encoder
            )
            self.encoded = (output.encoder_last_hidden_state,)
        else:
            known = inspect.signature(self.model.forward).parameters
            held = {name: self.cache for name in CACHES if name in known}
            output = self.model(input_ids=ids, use_cache=True, **held)
        self.cache = next((output[name] for name in CACHES if name in output), self.cache)

    @property
    def held(self) -> Any:
        """The cache, and the states that modules of RecurrentGemma keep."""
        modules = [vars(part) for part in self.model.modules()]
        return self.cache, [part.get(name) for name in STATES for part in modules]


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of entries that a cache holds, however it is nested; positions are none."""
    if isinstance(value, Tensor):
        if value.ndim and value.numel() and value.is_floating_point():
            yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)
    elif type(value).__module__.startswith("transformers.") and not isinstance(value, type):
        yield from tensors(vars(value))


def held_bytes(cache: Any) -> int:
    """The bytes of the entries; where one tensor serves as two, it counts once."""
    found = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors(cache)}
    return sum(found.values())


def allocated_bytes(cache: Any) -> int:
    """The bytes of the storages that the entries lie in."""
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors(cache)}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


@once
def decode(family: str, config: Config) -> tuple[tuple[int, int, int], ...]:
    """A prompt and steps: tokens so far, multiply-accumulates, and bytes that the cache holds."""
    decoder, found = Decoder(build(family, config)), list[tuple[int, int, int]]()
    for context in range(PROMPT, PROMPT + STEPS + 1):
        macs = count_macs(decoder.feed, PROMPT if context == PROMPT else 1)
        found.append((context, macs, held_bytes(decoder.held)))
    return tuple(found)


# ---- costs

ROTARY = {"rope_type": "default", "rope_theta": 5000.0}
SCALED = {"rope_type": "linear", "factor": 2.0}


def in_every_configuration(cases: dict[str, list[Config]]) -> pytest.MarkDecorator:
    every = [
        pytest.param(family, config, id=f"{family}-{index}")
        for family, configs in cases.items()
        for index, config in enumerate(configs)
    ]
    return pytest.mark.parametrize(("family", "config"), every)


def theory_bytes(model: Model, tokens: int) -> int:
    return model_cache_bytes(model, context=tokens, stored_as="fp32", encoder_tokens=ENCODER_TOKENS)


def copies(family: str, config: Config, attention: AttentionLayer) -> int:
    """How often a layer stores each entry, which is once unless ``HOLDS_MORE`` says why not."""
    if family == "falcon" and config.get("new_decoder_architecture"):
        heads: int = config["num_attention_heads"]
        return heads // config.get("num_kv_heads", heads)
    is_window = isinstance(attention, CompressedAttention) and attention.compressor is None
    return 2 if is_window else 1


def stored_bytes(family: str, config: Config, tokens: int) -> int:
    """What theory says of each layer, as often as the layer stores it."""
    if family in STORES_NOTHING:
        return 0
    if family == "gpt_neo":
        config = {**config, "attention_types": [[["global"], 6]]}
    model = read_whole(family, config)
    layers = layerwise_cache_bytes(
        model, context=tokens, stored_as="fp32", encoder_tokens=ENCODER_TOKENS
    )
    return sum(
        size * copies(family, config, layer.attention)
        for size, layer in zip(layers, model.layers, strict=True)
    )


def test_every_family_is_held_against_transformers() -> None:
    assert {*CASES, *ONCE, *INSIDE, *NAMED_OTHERWISE} == set(FAMILIES)
    assert all(CASES.values())
    assert {*HOLDS_MORE, *STORES_NOTHING} <= {*CASES, *ONCE}


@in_every_configuration(CASES | ONCE)
def test_parameters_are_those_that_are_built(family: str, config: Config) -> None:
    """A saved file names every field, the defaults among them, and nests what rotates."""
    unusual = saved(make_config(family, config), short=True)
    short = read_model(unusual, family) if family in ONCE else read(family, config)
    whole = read_whole(family, config)
    assert model_parameters(short).total == count_parameters(build(family, config))
    assert model_parameters(whole) == model_parameters(short)
    assert theory_bytes(whole, PROMPT) == theory_bytes(short, PROMPT)
    assert (whole.layers, whole.notes) == (short.layers, short.notes)


@in_every_configuration(CASES | ONCE)
def test_a_cache_holds_what_theory_says_after_every_token(family: str, config: Config) -> None:
    for tokens, _, held in decode(family, config):
        assert held == stored_bytes(family, config, tokens), tokens
    if family not in HOLDS_MORE | STORES_NOTHING:
        assert held == theory_bytes(read_whole(family, config), tokens)


def extra_products(attention: AttentionLayer, context: int) -> int:
    """MACs of a step in transformers that are not needed."""
    heads = attention.num_heads if not hasattr(attention, "config") else 0
    if isinstance(attention, LatentAttention):
        expanded = attention.nope_dim + attention.value_dim
        again = (context - 1) * attention.kv_rank * heads * expanded
        # Scores and values of expanded heads instead of those of the latent.
        absorbed = attention.stored_width + attention.kv_rank
        return again + context * heads * (attention.key_dim + attention.value_dim - absorbed)
    if isinstance(attention, CompressedAttention) and attention.indexer:
        closed = context // attention.indexer.rate
        return max(0, closed - attention.index_top) * 2 * heads * attention.head_dim
    return 0


@in_every_configuration(CASES)
def test_a_prompt_and_every_token_after_it_multiply_as_counted(family: str, config: Config) -> None:
    model, ((_, prompt, _), *steps) = read(family, config), decode(family, config)
    macs = forward_macs(model, tokens=PROMPT, pairs="square", encoder_tokens=ENCODER_TOKENS)
    assert prompt == macs.total
    assert len(steps) == STEPS
    every_extra = 0
    for context, multiplied, _ in steps:
        counted = decode_macs(model, context=context, encoder_tokens=ENCODER_TOKENS)
        extra = sum(extra_products(layer.attention, context) for layer in model.layers)
        assert multiplied == counted.total + extra, context
        every_extra += extra
    # These families and no other multiply more in a step than has to be.
    assert bool(every_extra) == (family in ("deepseek_v2", "deepseek_v3", "deepseek_v4"))


def test_a_window_allocates_the_token_that_it_lets_go() -> None:
    """Of a window of 5, 4 tokens are held; they are a view of the 5 that were just attended to.

    After a prompt they are a view of all of it: 3 layers, K and V, 2 KV heads of 16 channels.
    """
    decoder = Decoder(build("mistral", few("mistral", sliding_window=5)))
    token = 3 * 2 * 2 * 16 * NUMBER
    decoder.feed(PROMPT)
    assert (held_bytes(decoder.cache), allocated_bytes(decoder.cache)) == (4 * token, 9 * token)
    decoder.feed(1)
    assert (held_bytes(decoder.cache), allocated_bytes(decoder.cache)) == (4 * token, 5 * token)


def test_gemma_4_holds_keys_and_values_that_one_tensor_makes() -> None:
    """Of 7 layers 3 are global, with a KV head of 22 channels; 4 have a window of 5 tokens.

    13 tokens in float32: one tensor would do in a global layer, transformers stores two. The keys
    are the values with a gain, and 4 of 22 channels rotated.
    """
    decoder = Decoder(build("gemma4_text", GEMMA4_EQUAL))
    decoder.feed(13)
    local, one_tensor = 4 * 2 * 4 * 2 * 16 * NUMBER, 3 * 13 * 22 * NUMBER
    model = read("gemma4_text", GEMMA4_EQUAL)
    assert held_bytes(decoder.cache) == theory_bytes(model, 13) == local + 2 * one_tensor
    needed = apply_saving(model, "rotate when read")
    assert needed is not None
    assert theory_bytes(needed, 13) == local + one_tensor
    found = find_savings(model, context=13, stored_as=parse_format("fp32")).savings
    equal = [one for one in found if one.layers == (1, 4, 6)]
    assert {one.method: (one.bytes_now, one.bytes_then) for one in equal} == {
        "value and rotated slice": (2 * one_tensor, 3 * 13 * (22 + 4) * NUMBER),
        "rotate when read": (2 * one_tensor, one_tensor),
    }


@pytest.mark.parametrize("chunks", [(1,) * 31, (9, *(1,) * 22), (3, 7, 1, 1, 12, 2, 1, 5)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "form"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16")], ids=str
)
def test_deepseek_v4_at_many_lengths(
    chunks: tuple[int, ...], dtype: torch.dtype, form: str
) -> None:
    """Summaries, what waits for one, and the overlap, whatever was fed at once; all in one dtype.

    The layer with a window only is stored twice, the others hold their one tensor once.
    """
    decoder = Decoder(deepcopy(build("deepseek_v4", COMPRESSED)).to(dtype))
    model, tokens = read("deepseek_v4", COMPRESSED), 0
    for chunk in chunks:
        decoder.feed(chunk)
        tokens += chunk
        window, *others = layerwise_cache_bytes(model, context=tokens, stored_as=form)
        held = [held_bytes(layer) for layer in decoder.cache.layers]
        assert held == [2 * window, *others], tokens


def test_a_named_size_has_the_defaults_that_it_claims() -> None:
    assert transformers.__version__ == "5.23.0"
    for name, published in published_configs().items():
        if not published.source.startswith("defaults of "):
            continue
        kind = published.source.removeprefix("defaults of ").removesuffix(" in transformers 5.23.0")
        assert make_config(str(published.config["model_type"]), {}).__class__.__name__ == kind
        defaults = getattr(transformers, kind)().to_dict()
        # What the published file of Qwen 3.5 says of its states, and the class does not know.
        own = {key: value for key, value in published.config.items() if key != "mamba_ssm_dtype"}
        assert {field: defaults[field] for field in own} == own, name


@pytest.mark.parametrize(
    "given",
    [
        {"rope_theta": 300.0},
        {"rope_parameters": ROTARY, "rope_theta": 300.0},
        {"rope_parameters": ROTARY, "rope_scaling": SCALED},
        {"rope_parameters": ROTARY, "rope_scaling": SCALED | {"rope_theta": 7000.0}},
        {"rope_parameters": {"rope_theta": 7000.0}, "rope_scaling": ROTARY},
        {"rope_parameters": ROTARY, "rope_scaling": {}},
        {"rope_parameters": ROTARY, "rope_scaling": None},
        {"rope_scaling": SCALED, "rope_theta": 300.0},
    ],
)
def test_the_rotary_base_is_read_where_transformers_reads_it(given: dict[str, object]) -> None:
    config = transformers.LlamaConfig(**deepcopy(given))
    assert config.rope_parameters is not None
    plain = transformers.LlamaConfig().to_dict()
    model = read_model({**{key: plain[key] for key in plain if "rope" not in key}, **given}, "x")
    layer = model.layers[0].attention
    assert layer.config.position.rotary_base == config.rope_parameters["rope_theta"]
