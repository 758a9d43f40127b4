"""The studies of why sharing works change one thing at a time, in both sizes."""

import dataclasses

from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.network import network_costs
from qkvary.studies.catalog import load_study
from qkvary.studies.study import Setting, Study

NAMES = (
    "why-skips",
    "why-weight-decay",
    "why-initialization",
    "why-query-map",
    "why-capacity",
    "why-stability",
)


def network_of(setting: Setting) -> LanguageModelConfig:
    assert isinstance(setting.network, LanguageModelConfig)
    return setting.network


def differences(study: Study) -> list[set[str]]:
    """Return for every setting what differs from the first: fields of network and training."""
    first = study.settings[0]
    found: list[set[str]] = []
    for setting in study.settings:
        pairs = (
            (network_of(setting).block, network_of(first).block),
            (network_of(setting).init, network_of(first).init),
            (network_of(setting).layers[0].init, network_of(first).layers[0].init),
            (setting.training.optimizer, first.training.optimizer),
        )
        found.append(
            {
                f"{type(ours).__name__}.{field.name}"
                for ours, theirs in pairs
                for field in dataclasses.fields(ours)
                if getattr(ours, field.name) != getattr(theirs, field.name)
            }
        )
    return found


def test_settings_differ_from_the_first_in_what_they_name() -> None:
    skips, norm = "BlockConfig.skips", "BlockConfig.norm"
    assert differences(load_study("why-skips")) == [set(), {skips}, {skips}, {skips}, {skips, norm}]
    decay = "OptimizerConfig.weight_decay"
    assert differences(load_study("why-weight-decay")) == [set(), {decay}, {decay}, {decay}]
    std, rate = "Initialization.std", "OptimizerConfig.learning_rate"
    assert differences(load_study("why-initialization")) == [set(), {std}, {std}, {rate}, {rate}]
    width = "BlockConfig.d_ff"
    assert differences(load_study("why-capacity")) == [set(), {width}, {width}]
    assert differences(load_study("why-stability")) == [set(), {decay}, {rate}, {rate, decay}]


def test_portable_networks_and_rivals_have_the_caches_that_the_page_says() -> None:
    study = load_study("portable-quality")
    first = [cell for cell in study.cells() if cell.seed == 0]
    layers, bytes_of_a_number = 2, 4
    found = {}
    for cell in first:
        cache = network_costs(cell.run.network, length=128).cache_bytes_per_token
        assert cache is not None
        found[cell.variant] = cache // (layers * bytes_of_a_number)
    assert found == {
        "Q-K=V@rotary": 256,
        **{f"Q-K=V@decoupled-{size}": 256 + size for size in (8, 16, 32)},
        **{f"Q-K=V@decoupled-{size}@kv-norm": 256 + size for size in (8, 16, 32)},
        "Q-K=V@decoupled-16@latent-240@kv-norm": 256,
        "GQA-8@rotary": 256,
    }
