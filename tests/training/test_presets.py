"""The presets are the published networks, with the published training."""

from pathlib import Path

import pytest
import torch

from qkvary.costs.parameters import network_parameters
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from qkvary.training.optimizers import learning_rate, weight_decays
from qkvary.training.presets import PRESETS, Preset, find_preset

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/presets.md"

PAPER_1 = ("lm-300m", "lm-300m-poster", "lm-1.2b")
LARGE, SMALL = (124.37, 84.95), (117.30, 77.88)
PAPER_3 = {
    **dict.fromkeys(("gpt2-124m", "gpt2-124m-identity", "gpt2-124m-identity-derived"), LARGE),
    **dict.fromkeys(("gpt2-124m-residual", "gpt2-124m-residual-gelu"), LARGE),
    **dict.fromkeys(("gpt2-124m-decay", "gpt2-124m-scale", "gpt2-124m-decay-scale"), LARGE),
    **dict.fromkeys(("gpt2-117m-mlp", "gpt2-117m-identity", "gpt2-117m-identity-derived"), SMALL),
    "gpt2-118m-narrow": (117.92, 79.73),
    # An own head has 50,304 x 768 parameters more.
    "gpt2-163m-untied": (163.01, 84.95),
    "gpt2-156m-identity-untied": (155.93, 77.88),
}
MODERN = {
    "lm-100k": 0.1,
    "lm-1m": 1,
    "lm-10m": 10,
    "lm-30m": 30,
    "lm-60m": 61,
    "lm-124m": 124,
    "lm-350m": 355,
    "lm-1b": 1010,
}
PORTABLE = [f"{name}-portable" for name in MODERN if name not in ("lm-100k", "lm-1b")]
PORTABLE += ["lm-60m-mla"]


@pytest.mark.parametrize("name", PAPER_3)
def test_networks_of_paper_3_have_the_published_sizes(name: str) -> None:
    counts = network_parameters(find_preset(name).network)
    others = counts.embedding + counts.positions + counts.head
    sizes = counts.total, counts.total - others
    assert tuple(round(count / 1e6, 2) for count in sizes) == PAPER_3[name]


@pytest.mark.parametrize(("name", "size"), MODERN.items())
def test_networks_for_new_work_have_the_sizes_in_their_names(name: str, size: float) -> None:
    preset = find_preset(name)
    total = network_parameters(preset.network).total
    assert round(total / 1e6, int(size < 1)) == size
    per_parameter = 5 if name == "lm-1m" else 20
    assert preset.tokens / total == pytest.approx(per_parameter, abs=0.1)
    assert (preset.network.block.norm, preset.network.block.activation) == ("rmsnorm", "swiglu")
    assert preset.variant == "QKV@rotary"
    assert preset.network.positions == "none"


def test_every_preset_is_listed_once_and_is_one_of_these() -> None:
    assert set(PRESETS) == {*PAPER_1, *PAPER_3, *MODERN, *PORTABLE}
    assert [preset.name for preset in PRESETS.values()] == list(PRESETS)
    for preset in PRESETS.values():
        assert preset.base in ("", "gpt2-124m")
        for label in preset.variants:
            assert preset.with_variant(label).variant == label


# ---- training as published


def rate(preset: Preset, step: int) -> float:
    training = preset.training
    peak = training.optimizer.learning_rate
    return learning_rate(training.schedule, peak=peak, step=step, steps=training.steps)


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("lm-300m", 0, "4.000e-07"),
        ("lm-300m", 500, "2.000e-04"),
        ("lm-300m", 4_237, "2.000e-05"),
        ("lm-300m-poster", 999, "6.000e-05"),
        ("lm-1.2b", 999, "6.000e-05"),
        ("lm-1.2b", 8_476, "6.000e-06"),
        ("gpt2-124m", 1_999, "6.000e-04"),
        ("gpt2-124m", 100_000, "5.650e-04"),
    ],
)
def test_learning_rates_at_published_steps(name: str, step: int, expected: str) -> None:
    assert f"{rate(find_preset(name), step):.3e}" == expected


# ---- variants


def decays(preset: Preset) -> set[float]:
    with torch.device("meta"):
        network = LanguageModel(preset.network)
    return set(weight_decays(network, preset.network, preset.training.optimizer).values())


def test_an_identity_query_brings_its_decay_and_its_scale() -> None:
    baseline = find_preset("gpt2-124m")
    identity = baseline.with_variant("I-K-V")
    assert identity.network == find_preset("gpt2-117m-identity").network
    assert (baseline.weight_decay, identity.weight_decay) == (0.1, 2**-5)
    assert decays(baseline) == {0.0, 0.1}
    assert decays(identity) == {0.0, 2**-5}
    assert (baseline.network.layers[0].score_scale, identity.network.layers[0].score_scale) == (
        1 / 8,
        1 / 16,
    )
    derived = find_preset("gpt2-124m-identity-derived").network.layers[0]
    assert derived.identity_correction == pytest.approx(0.02 * 768**0.5)


def test_a_preset_about_one_variant_refuses_others() -> None:
    identity = find_preset("gpt2-124m-identity")
    assert identity.with_variant("x,k,v") is identity
    message = "expected I-K-V, the only variant of the preset gpt2-124m-identity, .* gpt2-124m"
    with pytest.raises(UsageError, match=message):
        identity.with_variant("MQA")


def test_a_variant_takes_the_positions_of_the_preset() -> None:
    preset = find_preset("lm-124m")
    assert preset.with_variant("Q-GQA-4").variant == "Q-GQA-4@rotary"
    assert preset.with_variant("Q-GQA-4@alibi").variant == "Q-GQA-4@alibi"
    with pytest.raises(ValueError, match="choices: 1, 2, 3, 4, 6, 12"):
        preset.with_variant("GQA-8")


def test_a_vocabulary_is_padded_as_published() -> None:
    preset = find_preset("lm-30m")
    assert preset.with_vocabulary(50_257).network == preset.network
    assert find_preset("lm-10m").with_vocabulary(257).network == find_preset("lm-10m").network
    assert preset.with_vocabulary(64).network.vocabulary == 64


def test_a_name_that_there_is_not() -> None:
    message = r"expected a preset, got 'lm-300'; did you mean lm-300m\? choices: lm-300m, "
    with pytest.raises(UsageError, match=message):
        find_preset("lm-300")


def test_the_guide_tells_what_there_is() -> None:
    guide = GUIDE.read_text("utf-8")
    for preset in PRESETS.values():
        total = network_parameters(preset.network).total / 1e6
        steps = preset.reported_step or preset.training.steps
        row = (
            f"| `{preset.name}` | {preset.variant} | {total:,.2f} M | {preset.context:,} | "
            f"{preset.tokens_per_step:,} | {steps:,} | {preset.tokens / 1e9:.2f} | "
            f"{preset.training.optimizer.learning_rate:g} | {preset.weight_decay:g} |"
        )
        assert row in guide
