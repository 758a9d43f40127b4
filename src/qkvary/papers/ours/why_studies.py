"""Networks, in two sizes, for the studies that ask why sharing works.

Torch-free.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from qkvary.arch.attention import Initialization
from qkvary.arch.networks import BlockConfig, Norm, Skips
from qkvary.papers.ours.small_language_models import (
    POSITIONS_PER_STEP,
    novels,
    small_network,
    small_training,
)
from qkvary.studies.study import CrossSettingContrast, Setting, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a network, of the rows that it trains on, and of its training."""

    d_model: int
    """Width of the residual stream."""
    num_layers: int
    """Number of blocks."""
    num_heads: int
    """Number of query heads."""
    context: int
    """Tokens per row."""
    steps: int
    """Number of steps, each of 1,024 positions."""
    learning_rate: float
    """Peak learning rate."""


SIZES: Mapping[str, Size] = {
    "small": Size(d_model=64, num_layers=3, num_heads=4, context=64, steps=240, learning_rate=4e-3),
    "large": Size(
        d_model=256, num_layers=4, num_heads=16, context=128, steps=800, learning_rate=2e-3
    ),
}
"""The sizes of these studies; a run takes between ten seconds and a few minutes on one thread."""

STD = 0.06
"""Initial standard deviation of weights, as in ``small_network``."""


def why_setting(
    name: str,
    size: Size,
    *,
    variants: tuple[str, ...] | None = None,
    skips: Skips = "both",
    norm: Norm = "layernorm",
    std: float = STD,
    learning_rate: float | None = None,
    weight_decay: float = 0.1,
    d_ff: int | None = None,
) -> Setting:
    """Return a setting that trains on the bytes of novels and has a separate table.

    Without ``variants``, the setting has all variants of the study.
    """
    plain = small_network(context=size.context, num_heads=size.num_heads, d_model=size.d_model)
    attention = plain.layers[0]
    init = Initialization(scheme="normal", std=std)
    training = small_training(
        steps=size.steps,
        context=size.context,
        learning_rate=size.learning_rate if learning_rate is None else learning_rate,
    )
    task = novels(context=size.context)
    return Setting(
        name=name,
        task=replace(task, validation_tokens=8_192),
        network=replace(
            plain,
            attention=replace(attention, init=init),
            block=BlockConfig(
                d_ff=4 * size.d_model if d_ff is None else d_ff, norm=norm, skips=skips
            ),
            num_layers=size.num_layers,
            init=init,
        ),
        training=replace(
            training, optimizer=replace(training.optimizer, weight_decay=weight_decay)
        ),
        table=name,
        variants=variants,
    )


def why_study(
    name: str,
    size: Size,
    *,
    question: str,
    description: str,
    settings: Sequence[Setting],
    variants: tuple[str, ...],
    contrasts: Sequence[tuple[str, str] | CrossSettingContrast] = (),
    limits: tuple[str, ...] = (),
    positions: str = "rotary positions on all channels",
) -> Study:
    """Return a study of one size with five seeds; the baseline is the first variant."""
    own = (
        f"These are networks of {size.num_layers} layers of {size.d_model} channels, trained on "
        f"only {size.steps * POSITIONS_PER_STEP:,} bytes in rows of {size.context}. All networks "
        "have the same learning rate unless a setting names another."
    )
    return Study(
        name=name,
        question=question,
        description=(
            f"{description} The networks have {size.num_layers} layers of {size.d_model} channels "
            f"and {size.num_heads} heads with {positions}. They are trained on the bytes of "
            f"English novels in rows of {size.context}, for {size.steps:,} steps of "
            f"{POSITIONS_PER_STEP:,} bytes at the learning rate {size.learning_rate:g}, with AdamW "
            "and the same weight decay for all parameters and variants."
        ),
        settings=tuple(replace(one, limits=(own, *limits)) for one in settings),
        variants=variants,
        baseline=variants[0],
        contrasts=tuple(contrasts),
        seeds=(0, 1, 2, 3, 4),
    )


def in_sizes(build: Callable[[Size], Study]) -> Mapping[str, Study]:
    """Return the protocols of a study, one for each size."""
    small, large = map(build, SIZES.values())
    return {"small": small, "large": replace(large, name=f"{large.name}-large")}


def across(variants: tuple[str, ...], setting: str, reference: str) -> list[CrossSettingContrast]:
    """Return contrasts that compare each variant in ``setting`` with itself in ``reference``."""
    return [CrossSettingContrast(label, setting, label, reference) for label in variants]
