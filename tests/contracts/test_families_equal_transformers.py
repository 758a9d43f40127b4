"""Every family, read from its configuration, costs what transformers builds, stores and multiplies.

Parameters are counted once each; buffers are none. What a cache holds is the bytes of its entries,
what it allocates the bytes of the storages that they lie in.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers.cache_utils import Cache, CacheLayerMixin

from qkvary.arch.blocks import AttentionLayer, CompressedAttention, ProjectedAttention
from qkvary.arch.families.published_configs import PUBLISHED_CONFIGS
from qkvary.arch.families.table import FAMILIES, read_model
from qkvary.arch.models import Model
from qkvary.costs.cache import layerwise_cache_bytes, model_cache_bytes
from qkvary.costs.macs import forward_macs
from qkvary.costs.parameters import model_parameters
from tests.contracts.transformers_cases import (
    CASES,
    FALCON,
    GROUPED,
    HOLDS_MORE,
    UNCOUNTED_MACS,
    Config,
)

PROMPT = 9
STEPS = 4
ENCODER_TOKENS = 6
NUMBER = 4
"""Bytes of a float32."""

ALL = [
    pytest.param(family, config, id=f"{family}-{index}")
    for family, configs in CASES.items()
    for index, config in enumerate(configs)
]
MULTIPLIED = [case for case in ALL if case.values[0] not in UNCOUNTED_MACS]


def make_config(family: str, config: Config) -> Any:
    return transformers.AutoConfig.for_model(family, **config)


def read(family: str, config: Config) -> Model:
    return read_model({"model_type": family, **config}, family)


def build(family: str, config: Config) -> nn.Module:
    """The model that transformers builds, with random weights; of several modalities, the text's.

    The grouped kernel for experts asks for sizes that no test should have: it is not taken.
    """
    made = make_config(family, config)
    if FAMILIES[family].text_section:
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
        self.cache: Any = None
        self.encoded: Any = None

    @torch.no_grad()
    def feed(self, tokens: int) -> None:
        ids = torch.arange(3, 3 + tokens)[None]
        if not self.config.is_encoder_decoder:
            output = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True)
        else:
            output = self._feed_encoder_decoder(ids)
        self.cache = output.past_key_values

    def _feed_encoder_decoder(self, ids: Tensor) -> Any:
        arguments: dict[str, Any] = {
            "decoder_input_ids": ids,
            "past_key_values": self.cache,
            "use_cache": True,
        }
        if self.encoded is None:
            output = self.model(**encoder_input(self.config), **arguments)
            self.encoded = (output.encoder_last_hidden_state,)
            return output
        return self.model(encoder_outputs=self.encoded, **arguments)


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of more than one number that a cache holds, however it is nested."""
    if isinstance(value, Tensor):
        if value.ndim and value.numel():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Cache | CacheLayerMixin):
        yield from tensors(vars(value))


def held_bytes(cache: Any) -> int:
    """The bytes of the entries; where one tensor serves as two, it counts once."""
    found = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors(cache)}
    return sum(found.values())


def allocated_bytes(cache: Any) -> int:
    """The bytes of the storages that the entries lie in."""
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors(cache)}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def theory_bytes(model: Model, tokens: int) -> int:
    return model_cache_bytes(model, context=tokens, stored_as="fp32", encoder_tokens=ENCODER_TOKENS)


def copies(family: str, config: Config, attention: AttentionLayer) -> int:
    """How often a layer stores each entry, which is once unless ``HOLDS_MORE`` says why not."""
    if family == "falcon" and config.get("new_decoder_architecture"):
        heads: int = config["num_attention_heads"]
        return heads // config.get("num_kv_heads", heads)
    if isinstance(attention, ProjectedAttention):
        return 3 - len(attention.config.variant.cached)
    if isinstance(attention, CompressedAttention):
        return 2 if attention.compressor is None else 1
    return 1


def stored_bytes(family: str, config: Config, tokens: int) -> int:
    """What theory says of each layer, as often as the layer stores it."""
    model = read(family, config)
    layers = layerwise_cache_bytes(
        model, context=tokens, stored_as="fp32", encoder_tokens=ENCODER_TOKENS
    )
    return sum(
        size * copies(family, config, layer.attention)
        for size, layer in zip(layers, model.layers, strict=True)
    )


def test_every_family_is_held_against_transformers() -> None:
    assert set(CASES) == {name for name, family in FAMILIES.items() if not family.text_section}
    assert all(CASES.values())
    assert set(HOLDS_MORE) | set(UNCOUNTED_MACS) <= set(CASES)


@pytest.mark.parametrize(("family", "config"), ALL)
def test_parameters_are_those_that_are_built(family: str, config: Config) -> None:
    built = build(family, config)
    counted = model_parameters(read(family, config))
    assert counted.total == sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize(("family", "config"), ALL)
def test_a_cache_holds_what_theory_says_after_every_token(family: str, config: Config) -> None:
    decoder = Decoder(build(family, config))
    for tokens in range(PROMPT, PROMPT + STEPS + 1):
        decoder.feed(PROMPT if tokens == PROMPT else 1)
        assert held_bytes(decoder.cache) == stored_bytes(family, config, tokens), tokens
    if family not in HOLDS_MORE:
        assert stored_bytes(family, config, tokens) == theory_bytes(read(family, config), tokens)


@pytest.mark.parametrize(("family", "config"), MULTIPLIED)
def test_multiplications_are_those_that_are_made(family: str, config: Config) -> None:
    decoder = Decoder(build(family, config))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        decoder.feed(PROMPT)
    model = read(family, config)
    macs = forward_macs(model, tokens=PROMPT, pairs="square", encoder_tokens=ENCODER_TOKENS)
    assert counter.get_total_flops() == 2 * macs.total


@pytest.mark.parametrize(("family", "config"), ALL)
def test_a_configuration_costs_the_same_as_transformers_saves_it(
    family: str, config: Config
) -> None:
    """A saved file names every field, the defaults among them, and nests what rotates."""
    short, saved = read(family, config), read_model(make_config(family, config).to_dict(), family)
    assert model_parameters(saved) == model_parameters(short)
    assert theory_bytes(saved, PROMPT) == theory_bytes(short, PROMPT)
    assert (saved.layers, saved.notes) == (short.layers, short.notes)


def test_falcon_holds_what_it_repeats() -> None:
    """3 layers, K and V, 13 tokens, heads of 10 channels: 2 KV heads in theory, 6 in the cache."""
    config = {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
    decoder = Decoder(build("falcon", config))
    decoder.feed(13)
    assert theory_bytes(read("falcon", config), 13) == 3 * 2 * 13 * 2 * 10 * NUMBER
    assert held_bytes(decoder.cache) == allocated_bytes(decoder.cache)
    assert held_bytes(decoder.cache) == 3 * 2 * 13 * 6 * 10 * NUMBER
    assert "stores keys and values 3 times" in " ".join(read("falcon", config).notes)


def test_a_window_allocates_the_token_that_it_lets_go() -> None:
    """Of a window of 5, 4 tokens are held; they are a view of the 5 that were just attended to.

    After a prompt they are a view of all of it: 3 layers, K and V, 3 KV heads of 10 channels.
    """
    config = {**GROUPED, "sliding_window": 5}
    decoder = Decoder(build("mistral", config))
    token = 3 * 2 * 3 * 10 * NUMBER
    decoder.feed(PROMPT)
    assert (held_bytes(decoder.cache), allocated_bytes(decoder.cache)) == (4 * token, 9 * token)
    decoder.feed(1)
    assert (held_bytes(decoder.cache), allocated_bytes(decoder.cache)) == (4 * token, 5 * token)


def test_a_window_of_one_token_is_never_cut() -> None:
    """In theory it keeps nothing between steps; a slice from -0 keeps everything."""
    config = {**GROUPED, "sliding_window": 1}
    decoder = Decoder(build("mistral", config))
    decoder.feed(PROMPT)
    assert theory_bytes(read("mistral", config), PROMPT) == 0
    assert held_bytes(decoder.cache) == PROMPT * 3 * 2 * 3 * 10 * NUMBER


def test_without_windows_nothing_is_allocated_that_is_not_held() -> None:
    decoder = Decoder(build("llama", GROUPED))
    decoder.feed(PROMPT)
    decoder.feed(1)
    assert allocated_bytes(decoder.cache) == held_bytes(decoder.cache)
    layers = layerwise_cache_bytes(read("llama", GROUPED), context=PROMPT + 1, stored_as="fp32")
    assert list(layers) == [2 * (PROMPT + 1) * 3 * 10 * NUMBER] * 3


DEFAULTS = {
    name: published
    for name, published in PUBLISHED_CONFIGS.items()
    if published.source.startswith("defaults of ")
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_named_size_has_the_defaults_that_it_claims(name: str) -> None:
    published = DEFAULTS[name]
    kind = published.source.removeprefix("defaults of ").removesuffix(" in transformers 5.23.0")
    assert transformers.__version__ == "5.23.0"
    assert make_config(str(published.fields["model_type"]), {}).__class__.__name__ == kind
    defaults = getattr(transformers, kind)().to_dict()
    assert {field: defaults[field] for field in published.fields} == dict(published.fields)
