"""Every family that is loaded computes what transformers computes, at every token.

One tiny random model for each choice that a family has: saved by transformers, loaded here, in
float32. Scaled rotary positions are compared far beyond the original length.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkvary.arch.canonical import canonical_json, from_dict
from qkvary.arch.families.fields import Fields
from qkvary.arch.families.language_models import BLOCKS, read_language_model
from qkvary.arch.families.table import read_model
from qkvary.arch.models import as_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.huggingface.stock import export_stock, find_obstacle
from qkvary.checkpoints.models import LoadedModel
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.parameters import model_parameters
from qkvary.nn.cache import KVCache
from qkvary.storage.errors import UsageError
from tests.contracts.variant_cases import feed_network

ROUNDING = 1e-5
"""Of the largest logit."""
TOKENS, PROMPT, VOCABULARY, LAYERS, ORIGINAL = 31, 19, 97, 3, 7
Config = dict[str, Any]

SIZES: Config = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 58,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 67,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


def turned(**scaling: object) -> Config:
    return {"rope_parameters": {"rope_theta": 700.0, **scaling}}


def scaled(form: str, **settings: object) -> Config:
    return turned(rope_type=form, factor=5.0, original_max_position_embeddings=ORIGINAL, **settings)


def stretched(original: int, *, short: list[float], long: list[float], **more: float) -> Config:
    """Phi 3's rotation, whose channels are divided by other numbers beyond a length."""
    form = turned(rope_type="longrope", short_factor=short, long_factor=long, **more)
    return {"head_dim": 12, "original_max_position_embeddings": original, **form}


def by_kind(full: Config, local: Config) -> Config:
    """A rotation for layers without a window and one for those with it."""
    kinds = {"full_attention": full, "sliding_attention": local}
    return {"rope_parameters": {kind: one["rope_parameters"] for kind, one in kinds.items()}}


def gemma3_turned(base: float) -> Config:
    full = turned(rope_type="linear", factor=4.0, rope_theta=9000.0)
    return by_kind(full, turned(rope_type="default", rope_theta=base))


CAPPED = {"sliding_window": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES: Mapping[str, list[Config]] = {
    "llama": [
        {},
        {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4},
        turned(rope_type="linear", factor=3.0),
        {**turned(rope_type="dynamic", factor=5.0), "max_position_embeddings": ORIGINAL},
        scaled("llama3", **LLAMA3),
        scaled("yarn"),
        scaled("yarn", truncate=False, beta_fast=8, beta_slow=2, attention_factor=0.7),
        scaled("yarn", mscale=0.7, mscale_all_dim=0.3),
    ],
    "mistral": [{"sliding_window": 5}, {"sliding_window": None}],
    "ministral": [{"sliding_window": 5, "layer_types": MIXED}],
    "ministral3": [
        scaled("yarn", mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3),
        {"sliding_window": 5, **scaled("yarn", llama_4_scaling_beta=0.1)},
    ],
    "qwen2": [
        {"head_dim": 12},
        {"head_dim": 12, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        {"head_dim": 12, **scaled("yarn")},
    ],
    "qwen3": [{}, {"attention_bias": True, "tie_word_embeddings": True}],
    "smollm3": [
        {"head_dim": 12, "no_rope_layers": [1, 0, 1]},
        {"no_rope_layer_interval": 2},
        {"head_dim": 12, "num_hidden_layers": 5},
    ],
    "phi3": [
        {},
        {"sliding_window": 5},
        stretched(ORIGINAL, short=[1.0, 1.5], long=[2.0, 3.5], partial_rotary_factor=0.4),
        stretched(61, short=[1.0, 1.1, 1.2, 1.5, 1.9, 2.0], long=[2.0, 3.0, 3.2, 3.3, 3.5, 4.0]),
    ],
    "olmo2": [{"head_dim": 12}, {"num_key_value_heads": 4}],
    "olmo3": [
        {"head_dim": 12, "sliding_window": 5, "layer_types": MIXED},
        {
            "head_dim": 12,
            "sliding_window": 5,
            "layer_types": MIXED,
            **by_kind(scaled("yarn"), turned(rope_type="default")),
        },
        {"head_dim": 12, "num_hidden_layers": 5, "sliding_window": 5},
    ],
    "seed_oss": [{}, {"attention_bias": False}],
    "starcoder2": [{"head_dim": 12}, {"sliding_window": 5}],
    "stablelm": [{"head_dim": 12, "use_qkv_bias": True, **turned(partial_rotary_factor=0.5)}],
    "gpt_neox": [
        {"hidden_size": 40, **turned(partial_rotary_factor=0.4)},
        {
            "hidden_size": 40,
            "use_parallel_residual": False,
            "attention_bias": False,
            **turned(partial_rotary_factor=1.0),
        },
    ],
    "gemma": [{}, {"attention_bias": True, "num_key_value_heads": 1}],
    "gemma2": [
        {**CAPPED, "query_pre_attn_scalar": 23},
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        {**CAPPED, "query_pre_attn_scalar": 10},
    ],
    "gemma3_text": [
        {
            "sliding_window": 5,
            "query_pre_attn_scalar": 23,
            "final_logit_softcapping": 5.0,
            "layer_types": MIXED,
            **gemma3_turned(90.0),
        },
        {"num_hidden_layers": 7, "sliding_window": 5},
        {
            "num_hidden_layers": 7,
            "sliding_window": 5,
            "query_pre_attn_scalar": 10,
            **gemma3_turned(90.0),
        },
    ],
}
ALL = [
    pytest.param(family, index, id=f"{family}-{index}")
    for family, configs in CASES.items()
    for index in range(len(configs))
]
EXPORTED = {*(("llama", index) for index in range(8)), ("mistral", 1), ("qwen2", 0), ("qwen2", 2)}
"""Those that are a Llama."""
NO_ARCHITECTURE = {
    # A length of their own, or settings that the file has no place for.
    *(("llama", index) for index in (3, 6)),
    # Windows that llama.cpp does not know there.
    *(("mistral", 0), ("qwen2", 1), ("phi3", 1), ("starcoder2", 1)),
    # No such architecture.
    *(("ministral", 0), ("ministral3", 0), ("ministral3", 1)),
    *(("olmo3", index) for index in range(3)),
    # Layers without positions and scales of scores other than llama.cpp's.
    *(("smollm3", 0), ("smollm3", 1), ("gemma2", 0), ("gemma2", 1)),
    *(("gemma3_text", 0), ("gemma3_text", 1)),
    # Biases where llama.cpp has none, or none where it has them; a norm of its own width.
    *(("qwen3", 1), ("gemma", 1), ("gpt_neox", 1), ("olmo2", 1)),
}
"""Those that llama.cpp computes in another way, or not at all."""
DYNAMIC = ("llama", 3)
"""The rotation of a text that grows is another at every length."""


def make_config(family: str, config: Config) -> Any:
    return transformers.AutoConfig.for_model(family, **{**SIZES, **config})


@functools.cache
def build(family: str, index: int) -> Any:
    return build_model(family, CASES[family][index])


def build_model(family: str, changes: Config) -> Any:
    """A model whose scores and gains are far from those of an untrained one."""
    torch.manual_seed(3)
    config = make_config(family, changes)
    kind = transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_gain = parameter.dim() == 1 and name.endswith("weight") and "gemma" not in family
            parameter.copy_(0.3 * torch.randn_like(parameter) + is_gain)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@functools.cache
def logits_of(family: str, index: int) -> Tensor:
    """The logits that transformers computes."""
    with torch.no_grad():
        return build(family, index)(draw_tokens()).logits


@functools.cache
def load(folder: Path, family: str, index: int) -> LoadedModel:
    path = folder / f"{family}-{index}"
    if not path.exists():
        build(family, index).save_pretrained(path)
    return load_checkpoint(path)


def draw_tokens() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(VOCABULARY, (2, TOKENS), generator=generator)


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def test_every_family_that_is_loaded_has_a_case() -> None:
    assert {*CASES, "gemma3"} == set(BLOCKS)


@torch.no_grad()
@pytest.mark.parametrize(("family", "index"), ALL)
def test_logits_are_those_of_transformers(folder: Path, family: str, index: int) -> None:
    network, tokens = load(folder, family, index).network, draw_tokens()
    expected = logits_of(family, index)
    assert distance(network(tokens), expected) < ROUNDING
    # Without a cache there is no mask, or it comes from the order alone.
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, :4] = False
    found = network(tokens, attention_mask=mask)[1, 4:]
    if (family, index) != DYNAMIC:
        assert distance(found, build(family, index)(tokens[1:, 4:]).logits[0]) < ROUNDING
    cache = KVCache(network.config.layers, max_tokens=TOKENS)
    sizes = [PROMPT] + [1] * (TOKENS - PROMPT)
    assert distance(feed_network(network, tokens, sizes, cache), expected) < ROUNDING
    model = as_model(network.config)
    assert cache.nbytes == 2 * model_cache_bytes(model, context=TOKENS, stored_as="fp32")


@pytest.mark.parametrize(("family", "index"), ALL)
def test_a_loaded_network_costs_what_its_configuration_costs(family: str, index: int) -> None:
    config = {"model_type": family, **SIZES, **CASES[family][index]}
    network = read_language_model(family, Fields(config, family))
    counted = model_parameters(read_model(config, family))
    assert model_parameters(as_model(network)).total == counted.total
    assert counted.total == sum(one.numel() for one in build(family, index).parameters())
    for tokens in (1, 4, TOKENS):
        held = functools.partial(model_cache_bytes, context=tokens, stored_as="fp32")
        assert held(as_model(network)) == held(read_model(config, family))
    # What a file leaves out has the value that transformers gives it.
    saved = make_config(family, CASES[family][index]).to_dict()
    assert read_language_model(family, Fields(saved, family)) == network
    assert from_dict(LanguageModelConfig, json.loads(canonical_json(network))) == network


@torch.no_grad()
@pytest.mark.parametrize(("family", "index"), ALL)
def test_a_loaded_network_is_exported(
    folder: Path, family: str, index: int, tmp_path: Path
) -> None:
    """As Llama, where it is one, or as its family; and for llama.cpp, where it has that."""
    loaded, tokens = load(folder, family, index), draw_tokens()
    expected = logits_of(family, index)
    is_llama = find_obstacle(loaded.network.config, "llama") is None
    assert is_llama or (family, index) not in EXPORTED
    if not is_llama:
        with pytest.raises(ValueError, match="Llama can express, got"):
            export_stock(loaded.network, "llama")
    stock = export_stock(loaded.network)
    assert distance(stock.build()(tokens).logits, expected) < ROUNDING
    if (family, index) in NO_ARCHITECTURE:
        own = "gemma3 " if family.startswith("gemma3") else ""
        with pytest.raises(UsageError, match=rf"llama\.cpp's {own}.*can express, got"):
            export_gguf(loaded, tmp_path / "a.gguf")
        return
    export_gguf(loaded, tmp_path / "a.gguf")
    again = load_checkpoint(tmp_path / "a.gguf").network
    assert distance(again(tokens), expected) < ROUNDING
    back = export_stock(again)
    assert distance(back.build()(tokens).logits, expected) < ROUNDING


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "index"),
    [("qwen3", 1), ("gemma3_text", 2), ("gpt_neox", 0), ("olmo3", 1), ("ministral3", 0)],
)
def test_an_exported_folder_is_that_of_the_family(
    folder: Path, family: str, index: int, tmp_path: Path
) -> None:
    """It is loaded by its own class there, and here too."""
    loaded, tokens = load(folder, family, index), draw_tokens()
    expected = logits_of(family, index)
    written = export_folder(loaded, tmp_path / "out", to="hf")
    model, missing = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert type(model).__name__ == written.architecture == type(build(family, index)).__name__
    assert not any(missing[name] for name in ("missing_keys", "unexpected_keys"))
    assert distance(model(tokens).logits, expected) < ROUNDING
    again = load_checkpoint(tmp_path / "out").network
    assert distance(again(tokens), expected) < ROUNDING


@pytest.mark.parametrize("family", CASES)
def test_defaults_are_those_of_transformers(family: str) -> None:
    """A configuration with its sizes alone; transformers writes every other field."""
    sizes = {name: SIZES[name] for name in list(SIZES)[:6]} | {"hidden_size": 64}
    config = transformers.AutoConfig.for_model(family, **sizes)
    read = [read_language_model(family, Fields(one, family)) for one in (sizes, config.to_dict())]
    assert read[0] == read[1]


@torch.no_grad()
def test_the_text_model_of_several_modalities_is_read(folder: Path, tmp_path: Path) -> None:
    """As Gemma 3 is published: a section of the configuration, and weights under a prefix."""
    load(folder, "gemma3_text", 0)
    source, tokens = folder / "gemma3_text-0", draw_tokens()
    text = json.loads((source / "config.json").read_text())
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    own = load_file(source / "model.safetensors").items()
    weights = {f"language_model.{name}": one for name, one in own if name != "lm_head.weight"}
    weights["vision_tower.encoder.weight"] = torch.ones(2, 3)
    (tmp_path / "config.json").write_text(json.dumps(whole))
    save_file(weights, tmp_path / "model.safetensors")
    network = load_checkpoint(tmp_path).network
    assert distance(network(tokens), build("gemma3_text", 0)(tokens).logits) < ROUNDING


@torch.no_grad()
@pytest.mark.parametrize(("family", "index"), [("gpt_neox", 0), ("llama", 4)])
def test_buffers_of_older_files_are_not_weights(
    folder: Path, family: str, index: int, tmp_path: Path
) -> None:
    """As Pythia and the first Llamas are published: masks and frequencies next to the weights."""
    model, tokens = build(family, index), draw_tokens()
    load(folder, family, index)
    source = folder / f"{family}-{index}"
    weights = load_file(source / "model.safetensors")
    frequencies = next(one for name, one in model.named_buffers() if name.endswith("inv_freq"))
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    at = "gpt_neox.layers.{}.attention" if family == "gpt_neox" else "model.layers.{}.self_attn"
    for layer in range(LAYERS):
        weights[f"{at.format(layer)}.rotary_emb.inv_freq"] = frequencies.clone()
        if family == "gpt_neox":
            mask = torch.ones(67, 67, dtype=torch.uint8).tril()[None, None]
            weights[f"{at.format(layer)}.bias"] = mask.clone()
            weights[f"{at.format(layer)}.masked_bias"] = torch.tensor(-1e9)
    save_file(weights, tmp_path / "model.safetensors")
    network = load_checkpoint(tmp_path).network
    assert distance(network(tokens), model(tokens).logits) < ROUNDING


LONG = {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"mlp_bias": True}, "expected false for mlp_bias"),
        ("llama", {"hidden_act": "gelu"}, "expected one of silu, swish"),
        ("llama", turned(rope_type="ntk"), "expected one of the rotary types default, linear"),
        ("llama", {"rope_scaling": {"type": "su"}}, "got 'su'"),
        ("llama", turned(rope_type="linear"), "expected the field factor"),
        ("llama", turned(rope_type="linear", factor=-1.0), "positive numbers of rotary"),
        ("llama", turned(rope_type="linear", factor=2.0, beta_fast=3), "for beta_fast"),
        ("llama", turned(rope_type="default", mrope_section=[1, 2, 2]), "for mrope_section"),
        ("llama", scaled("yarn", llama_4_scaling_beta=0.1), "for llama_4_scaling_beta"),
        ("llama", scaled("llama3"), "expected the field low_freq_factor"),
        ("llama", turned(**LONG), "expected 5 divisors for 10 rotated channels, got 1"),
        ("llama", turned(partial_rotary_factor=0.3), "rotates an even number of the 10 channels"),
        ("starcoder2", {"use_bias": False}, "expected true for use_bias"),
        ("stablelm", {"use_parallel_residual": True}, "false for use_parallel_residual"),
        ("stablelm", {"qk_layernorm": True}, "expected false for qk_layernorm"),
        ("mistral", {"layer_types": MIXED}, "expected null for layer_types"),
        ("smollm3", {"no_rope_layers": [1, 2, 0]}, "expected 3 zeros and ones"),
        ("smollm3", {"use_sliding_window": True}, "expected false for use_sliding_window"),
        ("gemma2", {"use_bidirectional_attention": True}, "expected false for use_bidirect"),
        ("gemma2", {"attn_logit_softcapping": 0}, "expected a positive soft cap, got 0"),
        ("gemma2", {"final_logit_softcapping": -3.0}, "positive and finite logit cap"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "positive and finite number for the score"),
        ("gemma3_text", {"attn_logit_softcapping": 9.0}, "expected null for attn_logit_soft"),
        ("qwen2_moe", {}, "expected a supported family (gpt2, llama, mistral,"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_field(
    family: str, changes: Config, message: str, tmp_path: Path
) -> None:
    config = {"model_type": family, **SIZES, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(UsageError) as caught:
        load_checkpoint(tmp_path)
    assert message in str(caught.value)
