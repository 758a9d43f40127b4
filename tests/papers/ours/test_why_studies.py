"""The studies of why sharing works change one thing at a time, in both sizes."""

import dataclasses

from qkvary.arch.networks import LanguageModelConfig
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
