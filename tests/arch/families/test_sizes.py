"""Named sizes: the papers' networks, and published models with their published counts."""

import re

import pytest

from qkvary.arch.families.sizes import load_size, name_sizes, published_configs, suggest_sizes
from qkvary.arch.families.table import FAMILIES
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.parameters import model_parameters
from tests.arch.families.config_files import WHOLE_FILES, read


def test_every_name_is_a_model_that_decodes() -> None:
    for name in name_sizes():
        model = load_size(name)
        assert (model.name, model.is_causal) == (name, True)
        assert model_cache_bytes(model, context=100) > 0, name


def test_every_published_model_says_where_its_fields_stand() -> None:
    for name, published in published_configs().items():
        source = r"https://|defaults of \w+ in transformers 5\.23\.0"
        assert re.match(source, published.source), name
        assert published.config["model_type"] in FAMILIES, name


@pytest.mark.parametrize("name", sorted(set(WHOLE_FILES) & set(published_configs())))
def test_a_name_and_a_file_of_one_model_agree(name: str) -> None:
    named, file = load_size(name), read(name)
    assert named.layers == file.layers
    assert model_parameters(named) == model_parameters(file)
    assert (named.vocabulary, named.max_tokens) == (file.vocabulary, file.max_tokens)


PUBLISHED_TOTALS = {
    # nanoGPT, model.py, next to the sizes.
    "gpt2-large": (774, 1e6),
    "gpt2-xl": (1558, 1e6),
    # The model card of meta-llama/Llama-3.2-1B.
    "llama-3.2-1b": (1.23, 1e9),
    # The model card of Qwen/Qwen2.5-0.5B.
    "qwen2.5-0.5b": (0.49, 1e9),
    # The model card of deepseek-ai/DeepSeek-V4-Pro.
    "deepseek-v4-pro": (1.6, 1e12),
    # The model card of deepseek-ai/DeepSeek-V3.
    "deepseek-v3": (671, 1e9),
    # The model card of openai/gpt-oss-120b and gpt-oss-20b: 116.83B and 20.91B.
    "gpt-oss-120b": (116.83, 1e9),
    "gpt-oss-20b": (20.91, 1e9),
    # The model cards of Kimi K2, Qwen3-Next, Qwen3-Coder, Qwen3-235B and Qwen2.5-32B and -72B.
    "kimi-k2": (1.03, 1e12),
    "qwen3-next-80b-a3b": (80, 1e9),
    "qwen3-coder-480b-a35b": (480, 1e9),
    "qwen3-235b-a22b": (235, 1e9),
    "qwen2.5-32b": (32.8, 1e9),
    "qwen2.5-72b": (72.7, 1e9),
    # The model card of Qwen/Qwen1.5-MoE-A2.7B.
    "qwen1.5-moe-a2.7b": (14.3, 1e9),
    # The model card of openai/whisper-large-v3-turbo.
    "whisper-large-v3-turbo": (809, 1e6),
}
"""Printed counts: a number and its unit."""


@pytest.mark.parametrize("name", PUBLISHED_TOTALS)
def test_published_counts_are_met_as_far_as_they_are_printed(name: str) -> None:
    printed, unit = PUBLISHED_TOTALS[name]
    digits = len(str(printed).partition(".")[2])
    total = model_parameters(load_size(name)).total / unit
    # Llama's card cuts 1.2358 to 1.23.
    assert abs(total - printed) < 10**-digits


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(ValueError, match=r"the name of a model, got 'llama-3.1-8'; did you mean"):
        load_size("llama-3.1-8")
    with pytest.raises(ValueError, match=r"got 'zzz'; choices: lm-300m, lm-300m-poster, lm-1.2b,"):
        load_size("zzz")
    assert suggest_sizes("lama-2-7b")[0] == "llama-2-7b"
    assert suggest_sizes("x" * 100_000) == []
