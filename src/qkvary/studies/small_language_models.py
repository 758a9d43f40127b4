"""Language models that train in a minute or two: what studies of them share. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from qkvary.arch.attention import AttentionConfig, Initialization, PositionConfig
from qkvary.arch.models import as_model
from qkvary.arch.networks import BlockConfig, LanguageModelConfig, Positions
from qkvary.costs.devices import find_device
from qkvary.costs.training import plan_training
from qkvary.data.checksums import ENGLISH_NOVELS_SHA256, TINY_STORIES_SHA256
from qkvary.tasks.config import LanguageTaskConfig, Protocol
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from qkvary.training.presets import find_preset

VOCABULARY = 4_096
"""GPT-2's first tokens: of its whole table the head alone would take most of a step."""
POSITIONS_PER_STEP = 1_024
DEVICE = "h100-80gb"
UTILIZATION = 0.4

_INIT = Initialization(scheme="normal", std=0.02)


def small_network(
    *,
    context: int,
    num_heads: int = 16,
    positions: Positions = "learned",
    position: PositionConfig | None = None,
) -> LanguageModelConfig:
    """Paper 1's network with 3 layers of 128 channels, without dropout: nothing is seen twice.

    Args:
        context: Tokens of a row.
        num_heads: Query heads.
        positions: Absolute positions, where the variant has none of its own.
        position: Sizes of the variant's position terms.
    """
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=128,
            num_heads=num_heads,
            causal=True,
            position=position or PositionConfig(),
            init=_INIT,
        ),
        block=BlockConfig(d_ff=512),
        num_layers=3,
        vocabulary=VOCABULARY,
        max_tokens=context,
        positions=positions,
        init=_INIT,
    )


def small_training(*, steps: int, context: int) -> TrainingConfig:
    """Paper 1's training (AdamW that decays everything, warm-up, a cosine to a tenth), faster.

    All variants decay alike, identity queries too: published is 2^-5 for them.

    Args:
        steps: Of 1,024 positions each.
        context: Tokens of a row.
    """
    return TrainingConfig(
        steps=steps,
        batch_size=POSITIONS_PER_STEP // context,
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=5e-3,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            decay="all",
            decay_by_variant=False,
            gradient_clip=1.0,
        ),
        schedule=ScheduleConfig(name="cosine", warmup_steps=steps // 20, floor=0.1),
        evaluate_every=max(1, steps // 4),
    )


def novels(*, context: int) -> LanguageTaskConfig:
    """English novels, split by author."""
    return LanguageTaskConfig(
        data=f"english-novels/gpt2-{VOCABULARY}",
        data_sha256=ENGLISH_NOVELS_SHA256,
        context=context,
        validation_tokens=16_384,
        test_tokens=131_072,
    )


def stories(*, context: int, protocol: Protocol) -> LanguageTaskConfig:
    """Short stories: 158 to 540 tokens in nine of ten, of which there are 2,188 to train on."""
    return LanguageTaskConfig(
        data=f"tinystories/gpt2-{VOCABULARY}",
        data_sha256=TINY_STORIES_SHA256,
        context=context,
        protocol=protocol,
        validation_tokens=16_384,
    )


def describe_scale(*, networks: int, seeds: int, presets: Sequence[str]) -> str:
    """Say what the same comparison would take at usual sizes.

    Args:
        networks: That are trained for each seed.
        seeds: How many.
        presets: Names of sizes.
    """
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
            f"{name} {hours:,.2g} hours a run ({preset.tokens / 1e9:.1f} billion tokens), "
            f"{hours * networks * seeds:,.0f} for all"
        )
    return (
        f"What the same {networks} networks with {seeds} seeds would take at usual sizes, on one "
        f"{device.title} at {100 * UTILIZATION:g} % of its rate, which the smallest will not "
        f"reach: "
        f"{'; '.join(parts)}."
    )
