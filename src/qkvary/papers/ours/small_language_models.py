"""Networks, tasks and settings that studies of small language models share. Torch-free."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qkvary.arch.attention import AttentionConfig, Initialization, PositionConfig, ValueRope
from qkvary.arch.models import as_model
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.costs.devices import find_device
from qkvary.costs.training import plan_training
from qkvary.data.checksums import ENGLISH_NOVELS_SHA256, TINY_STORIES_SHA256
from qkvary.studies.study import Setting
from qkvary.tasks.config import LanguageTaskConfig, Protocol
from qkvary.training.config import ScheduleConfig, TrainingConfig
from qkvary.training.presets import adamw, find_preset

BYTES = 257
"""Number of tokens: all bytes, and the separator."""
PIECES = 4_096
"""Vocabulary size of the stories: the first tokens of GPT-2's vocabulary. With all tokens, the
output head would take most of the time of a step."""
CONTEXT = 128
HEADS = 16
STEPS = 800
"""Number of training steps of the studies lm-small and portable-quality."""
POSITIONS_PER_STEP = 1_024
ROTARY_STEPS = 350
DEVICE = "h100-80gb"
UTILIZATION = 0.4

_INIT = Initialization(scheme="normal", std=0.06)


def small_rotary(*, fraction: float = 1.0, value: ValueRope = "counter") -> PositionConfig:
    """Return rotary positions with the base 100. This base suits short rows."""
    return PositionConfig(rotary_base=100.0, rotary_fraction=fraction, value_rope=value)


def small_network(
    *,
    context: int,
    num_heads: int,
    d_model: int = 256,
    vocabulary: int = BYTES,
    position: PositionConfig | None = None,
) -> LanguageModelConfig:
    """Return paper 1's network with 2 layers and no dropout, because no example is repeated.

    Positions are not added to embeddings, but are part of variants such as ``QKV@rotary``. The
    initial weights are three times as large as in paper 1. With smaller weights, chance decides
    when such a small network begins to use its context (docs/decisions/0017).
    """
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=d_model,
            num_heads=num_heads,
            causal=True,
            position=position or small_rotary(),
            init=_INIT,
        ),
        block=BlockConfig(d_ff=4 * d_model),
        num_layers=2,
        vocabulary=vocabulary,
        max_tokens=context,
        positions="none",
        init=_INIT,
    )


def small_training(*, steps: int, context: int, learning_rate: float) -> TrainingConfig:
    """Return paper 1's training: AdamW, a warm-up and a cosine schedule.

    The learning rate falls along the cosine to a tenth of its peak. A step has 1,024 positions. All
    parameters have weight decay. All variants have the same weight decay, although the papers use a
    weight decay of 2^-5 for identity queries.
    """
    return TrainingConfig(
        steps=steps,
        batch_size=POSITIONS_PER_STEP // context,
        optimizer=replace(adamw(learning_rate, decay="all"), decay_by_variant=False),
        schedule=ScheduleConfig(name="cosine", warmup_steps=steps // 20, floor=0.1),
        evaluate_every=max(1, steps // 4),
    )


def novels(*, context: int) -> LanguageTaskConfig:
    """Return the task on the bytes of English novels, split by author."""
    return LanguageTaskConfig(
        data="english-novels/bytes",
        data_sha256=ENGLISH_NOVELS_SHA256,
        context=context,
        validation_tokens=16_384,
        test_tokens=65_536,
    )


def novels_setting(name: str, network: LanguageModelConfig, *, steps: int, **more: Any) -> Setting:
    """Return a setting that trains on rows of novels; ``more`` has other fields of the setting."""
    context = network.max_tokens
    return Setting(
        name=name,
        task=novels(context=context),
        network=network,
        training=small_training(steps=steps, context=context, learning_rate=2e-3),
        **more,
    )


def rotary_setting(
    name: str, network: LanguageModelConfig, variants: tuple[str, ...], limits: tuple[str, ...]
) -> Setting:
    """Return a setting of 350 steps (``ROTARY_STEPS``) on rows of novels, with a separate table."""
    return novels_setting(
        name, network, steps=ROTARY_STEPS, table=name, variants=variants, limits=limits
    )


def stories(*, context: int, protocol: Protocol) -> LanguageTaskConfig:
    """Return the task on 2,188 short stories; 90 % have 158 to 540 tokens."""
    return LanguageTaskConfig(
        data=f"tinystories/gpt2-{PIECES}",
        data_sha256=TINY_STORIES_SHA256,
        context=context,
        protocol=protocol,
        validation_tokens=16_384,
    )


def describe_scale(*, networks: int, seeds: int, presets: Sequence[str]) -> str:
    """Return a text on the time that the same comparison would take at usual sizes."""
    device = find_device(DEVICE)
    parts: list[str] = []
    for name in presets:
        preset = find_preset(name)
        plan = plan_training(
            as_model(preset.network),
            device=device,
            tokens=preset.context,
            utilization=UTILIZATION,
        )
        hours = preset.tokens / (plan.tokens_per_second or 1.0) / 3_600
        parts.append(
            f"{name} takes {hours:,.2g} hours per run ({preset.tokens / 1e9:.1f} billion tokens) "
            f"and {hours * networks * seeds:,.0f} hours for all runs"
        )
    return (
        f"At usual sizes, the same {networks} networks with {seeds} seeds would take longer. "
        f"On one {device.title} at {100 * UTILIZATION:g} % of its peak FLOP/s, a rate that the "
        f"smallest networks do not reach, the estimates are: {'; '.join(parts)}."
    )
