"""Runs a whole conversion to a smaller cache, and measures the loss after each stage.

The sizes of the layers are chosen within a budget, the layers are converted, and the network may be
healed (retrained by distillation).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qkvary.arch.networks import LanguageModelConfig
from qkvary.conversions.caches.budget import Budget, network_bytes, spend_by_cost, spend_evenly
from qkvary.conversions.caches.calibration import Texts
from qkvary.conversions.caches.conversion import LayerOutcome, choose_network, convert_network
from qkvary.conversions.caches.divergence import Comparison
from qkvary.conversions.caches.forecast import Forecast, forecast
from qkvary.conversions.caches.forms import check_layers, count_numbers
from qkvary.conversions.caches.healing import Distillation, heal
from qkvary.conversions.catalog import load_method
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import NEVER, Stop
from qkvary.storage.errors import UsageError
from qkvary.text.progress_line import ShowProgress, no_progress
from qkvary.training.config import Precision

FORECAST_TOKENS = 4096
LAYER_STEP = 8
"""Number of channels that the option --layers auto adds to a layer in one step."""
PASSES = 2.4
"""The time of a conversion, divided by the time of one pass of the fitted text through the network.
The time to convert the layers is included."""
HEALING_PASSES = 4.0
"""The time of healing per token, divided by the time of one forward pass: one pass through the
original network, and three for the forward and backward pass of the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a conversion."""

    method: str
    budget: Budget
    by_layer: bool = False
    """Whether layers get different sizes: larger ones where a conversion raises the loss more."""
    heal_tokens: int = 0
    """Number of tokens for distillation. With 0, nothing is distilled."""
    learning_rate: float | None = None
    precision: Precision = "full"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A measured stage of a conversion."""

    name: str
    """The name: ``as it is``, ``one shot``, ``refitted`` or ``healed``."""
    loss: float
    """The loss on the held-out text, in nats per token."""
    divergence: float
    """KL(original || this stage) on the held-out text, in nats per token."""
    cpu_seconds: float
    """CPU seconds of the stage, without the measurement of its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerCache:
    """The result of a conversion to a smaller cache, or of the forecast of one."""

    plan: Plan
    original: LanguageModel
    network: LanguageModel
    """The network of the last stage; the original if nothing was converted."""
    config: LanguageModelConfig
    forecast: Forecast | None
    stages: tuple[Stage, ...]
    layers: tuple[LayerOutcome, ...]
    """The outcome of each layer; empty if nothing was converted."""
    fitted_tokens: int
    held_out_tokens: int
    seconds: float | None = None
    """The estimated CPU seconds of the conversion; None after the conversion."""

    @property
    def statement(self) -> str:
        """The new form of the layers, in a clause."""
        rotates = any(layer.variant.decoupled for layer in self.config.layers)
        rest = ", and all heads share one rotated key" if rotates else ""
        return f"{load_method(self.plan.method).STATEMENT}{rest}"

    @property
    def share(self) -> float:
        """The size of the new cache relative to the old one."""
        stored_as = self.plan.budget.stored_as
        return network_bytes(self.config, stored_as) / network_bytes(
            self.original.config, stored_as
        )


def check_plan(plan: Plan, config: LanguageModelConfig) -> LanguageModelConfig:
    """Check a plan; return the configuration in which the caches of all layers shrink equally."""
    check_layers(config)
    method = load_method(plan.method)
    return choose_network(config, method, spend_evenly(config, plan.budget, method.choose))


def forecast_stages(
    network: LanguageModel, plan: Plan, texts: Texts, *, show_progress: ShowProgress = no_progress
) -> SmallerCache:
    """Forecast the loss and the time of a conversion, without converting the network."""
    even = check_plan(plan, network.config)
    found, config = forecast_sizes(network, plan, even, texts, show_progress)
    tokens = PASSES * texts.fitted.numel() + HEALING_PASSES * plan.heal_tokens
    return SmallerCache(
        plan=plan,
        original=network,
        network=network,
        config=config,
        forecast=found,
        stages=(_measure("as it is", Comparison(network, texts.held_out), network, 0.0),),
        layers=(),
        fitted_tokens=texts.fitted.numel(),
        held_out_tokens=texts.held_out.numel(),
        seconds=found.seconds_per_token * tokens,
    )


def run_stages(
    network: LanguageModel,
    plan: Plan,
    texts: Texts,
    *,
    healing: Path | None = None,
    show_progress: ShowProgress = no_progress,
    on_stage: Callable[[Stage], None] = lambda _stage: None,
    stop: Stop = NEVER,
) -> SmallerCache:
    """Return a converted copy of a network, healed if the plan says so.

    Args:
        network: The network, in evaluation mode.
        plan: The method, the budget and the healing.
        texts: The texts for fitting and for measuring.
        healing: The folder for the checkpoints of the distillation, from which a stopped one
            resumes; needed if the plan has tokens to heal with.
        show_progress: Opens a progress display for a part of the work.
        on_stage: Called with each stage, before the next stage begins.
        stop: Set by a signal; a distillation then stops before its next step.

    Raises:
        UsageError: if the network cannot be converted to this size.
        StoppedError: if the distillation was stopped.
    """
    method, config = load_method(plan.method), check_plan(plan, network.config)
    stages: list[Stage] = []
    if plan.heal_tokens and healing is None:
        raise UsageError("expected a folder for the checkpoints of the distillation, got none")
    compared = Comparison(network, texts.held_out)

    def measure(name: str, made: LanguageModel, seconds: float) -> None:
        stages.append(_measure(name, compared, made, seconds))
        on_stage(stages[-1])

    measure("as it is", network, 0.0)
    found, begun = None, time.process_time()
    if plan.by_layer:
        found, config = forecast_sizes(network, plan, config, texts, show_progress)
    with show_progress("converting", "layers") as on_progress:
        made = convert_network(network, config, method, texts.fitted, on_progress=on_progress)
    # Both networks come from one pass, so its time is counted once.
    seconds = time.process_time() - begun
    measure("one shot", made.one_shot, 0.0)
    measure("refitted", made.refitted, seconds)
    last = made.refitted
    if plan.heal_tokens and healing is not None:
        begun = time.process_time()
        last = heal(
            Distillation(network, last, texts.trained, texts.held_out),
            healing,
            tokens=plan.heal_tokens,
            seed=plan.seed,
            precision=plan.precision,
            stop=stop,
            learning_rate=plan.learning_rate,
        )
        measure("healed", last, time.process_time() - begun)
    return SmallerCache(
        plan=plan,
        original=network,
        network=last,
        config=config,
        forecast=found,
        stages=tuple(stages),
        layers=made.layers,
        fitted_tokens=texts.fitted.numel(),
        held_out_tokens=texts.held_out.numel(),
    )


def forecast_sizes(
    network: LanguageModel,
    plan: Plan,
    even: LanguageModelConfig,
    texts: Texts,
    show_progress: ShowProgress,
) -> tuple[Forecast, LanguageModelConfig]:
    """Return a forecast, and the configuration of the new network.

    With ``plan.by_layer``, the sizes of the layers follow from the forecast. Otherwise the
    configuration is ``even``.
    """
    method = load_method(plan.method)
    rows = max(1, FORECAST_TOKENS // texts.fitted.shape[1])
    probed = {"probed": network.config.num_layers} if plan.by_layer else {}
    with show_progress("forecasting", "layers") as on_progress:
        found = forecast(
            network, even, method, texts.fitted[:rows], on_progress=on_progress, **probed
        )
    if not plan.by_layer:
        return found, even
    rotary = [layer.variant.decoupled or 0 for layer in even.layers]
    kept = [count_numbers(layer) for layer in network.config.layers]
    costs = [
        # An unchanged layer costs nothing.
        [*found.costs(index)[: all_of_it - own].tolist(), 0.0]
        for index, (all_of_it, own) in enumerate(zip(kept, rotary, strict=True))
    ]
    total = sum(map(count_numbers, even.layers)) - sum(rotary)
    latents = spend_by_cost(costs, total, least=LAYER_STEP, step=LAYER_STEP)
    sizes = [
        None if latent + own == all_of_it else latent + own
        for latent, own, all_of_it in zip(latents, rotary, kept, strict=True)
    ]
    return found, choose_network(network.config, method, sizes)


def _measure(name: str, compared: Comparison, network: LanguageModel, seconds: float) -> Stage:
    loss, divergence = compared.measure(network)
    return Stage(name=name, loss=loss, divergence=divergence, cpu_seconds=seconds)
