"""Networks, tasks and settings that studies of image classification share. Torch-free."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from qkvary.arch.attention import AttentionConfig, PositionConfig, ScaleBy, ScaleConfig
from qkvary.arch.networks import BlockConfig, VisionTransformerConfig
from qkvary.data.image_sets import IMAGE_SETS, ImageSetName
from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Setting, Study
from qkvary.tasks.image_config import ImageSplits, ImageTaskConfig
from qkvary.training.config import OptimizerConfig, OptimizerName, ScheduleConfig, TrainingConfig

EPOCHS: Mapping[ImageSetName, int] = {
    "mnist": 20,
    "fashion-mnist": 20,
    "cifar10": 40,
    "cifar100": 50,
}
"""The number of epochs on each complete data set, as in both papers."""

PUBLISHED_TABLES = ("three-projections-table-3", "key-value-table-3")

_QUICK_LIMIT = (
    "Each variant is one small network, which is trained for half a minute to two minutes on one "
    "core. All variants have the same learning rate. The results show what sharing costs in this "
    "case, not at a usual size. Three seeds detect only large differences."
)


def vision_network(
    name: ImageSetName | ImageTaskConfig,
    *,
    patch_size: int,
    d_model: int,
    num_layers: int,
    num_heads: int,
    scale: ScaleBy = "width",
) -> VisionTransformerConfig:
    """Return the vision transformer of the published code, for a data set or a user's own images.

    The code divides scores by the square root of the network's width. ``scale`` changes this.

    Source: code of paper 2: pre-norm without a norm after the last block, input projections
    without bias, d_ff = d with GELU, no dropout, m = 50, learned class token and positions drawn
    from N(0, 1), torch's default initialization elsewhere, a head of two layers.
    """
    task = name if isinstance(name, ImageTaskConfig) else ImageTaskConfig(name=name)
    images = task.images
    return VisionTransformerConfig(
        attention=AttentionConfig(
            d_model=d_model,
            num_heads=num_heads,
            bias=False,
            scale=ScaleConfig(by=scale),
            position=PositionConfig(plus_features=50),
        ),
        block=BlockConfig(d_ff=d_model, norm_placement="pre-only"),
        num_layers=num_layers,
        image_size=task.image_size,
        patch_size=patch_size,
        channels=images.pixels.channels,
        classes=images.classes,
        d_head=d_model,
    )


def vision_task(name: ImageSetName, splits: ImageSplits) -> ImageTaskConfig:
    """Return the published task. For training, it flips and crops colour images."""
    images = IMAGE_SETS[name]
    return ImageTaskConfig(name=name, splits=splits, augment=images.pixels.channels == 3)


def vision_floor(task: ImageTaskConfig) -> str:
    """Return a sentence on the accuracy of guessing."""
    return f"Guessing one of the {task.images.classes} classes scores {1 / task.images.classes:g}."


def vit_base(name: ImageSetName, *, image_size: int) -> VisionTransformerConfig:
    """Return ViT-B/16, with dropout of 0.1 and torch's default initialization.

    Source: paper 1, section 3.2: width 768, 12 layers, 12 heads, d_ff 3,072. The norm after
    the last block, a head of one matrix, and biases everywhere follow Dosovitskiy et al. 2021.
    """
    images = IMAGE_SETS[name]
    return VisionTransformerConfig(
        attention=AttentionConfig(d_model=768, num_heads=12),
        block=BlockConfig(d_ff=3_072, dropout=0.1),
        num_layers=12,
        image_size=image_size,
        patch_size=16,
        channels=images.pixels.channels,
        classes=images.classes,
        input_dropout=0.1,
    )


def trained_images(task: ImageTaskConfig) -> int:
    """Return the number of images that a task trains on, without those held out."""
    images = task.images
    on_test = task.splits == "as-published" and images.validates_on_test
    return images.train_images - (0 if on_test else task.validation_images)


def vision_grid(
    splits: ImageSplits,
    *,
    patches: Mapping[ImageSetName, tuple[int, ...]],
    optimizer: OptimizerName,
    weight_decay: float,
    scale: ScaleBy,
) -> tuple[Setting, ...]:
    """Return the published settings: data x patches x widths x layers x heads x learning rates.

    The learning rate is constant: the code's MultiStepLR lowers it only after 100 epochs, and these
    runs are shorter (for longer runs, use the schedule ``multistep``). Each run is validated twice
    per epoch, and its best network is tested.

    Source: code of paper 2: batches of 200 for MNIST and FashionMNIST, of 128 for CIFAR.
    """
    settings: list[Setting] = []
    for name, epochs in EPOCHS.items():
        task = vision_task(name, splits)
        batch_size = 128 if task.augment else 200
        per_epoch = trained_images(task) // batch_size
        for patch, width, layers, heads, rate in product(
            patches[name], (64, 256, 512), (2, 4), (2, 4), (1e-3, 1e-4)
        ):
            settings.append(
                Setting(
                    name=f"{name}-p{patch}-d{width}-L{layers}-H{heads}-lr{rate:g}",
                    task=task,
                    network=vision_network(
                        name,
                        patch_size=patch,
                        d_model=width,
                        num_layers=layers,
                        num_heads=heads,
                        scale=scale,
                    ),
                    training=TrainingConfig(
                        steps=epochs * per_epoch,
                        batch_size=batch_size,
                        optimizer=OptimizerConfig(
                            name=optimizer, learning_rate=rate, weight_decay=weight_decay
                        ),
                        evaluate_every=per_epoch // 2,
                        test_at="best",
                    ),
                    note=vision_floor(task),
                )
            )
    return tuple(settings)


def quick_protocols(study: str, name: ImageSetName, **sizes: Any) -> Mapping[str, Study]:
    """Return two studies of a data set: one with clean splits, and one with the published splits.

    Each study trains a small version of the published network in minutes, with a cosine schedule
    and a warm-up. By default, 5,000 images are held out for validation.
    """
    return {
        "clean": _quick_study(study, name, "clean", **sizes),
        "as-published": _quick_study(f"{study}-as-published", name, "as-published", **sizes),
    }


def _quick_study(
    study: str,
    name: ImageSetName,
    splits: ImageSplits,
    *,
    patch_size: int,
    batch_size: int,
    steps: int,
    learning_rate: float,
    validation_images: int = 5_000,
) -> Study:
    images = IMAGE_SETS[name]
    task = replace(vision_task(name, splits), validation_images=validation_images)
    network = vision_network(name, patch_size=patch_size, d_model=64, num_layers=2, num_heads=4)
    is_complete = images.part_of is None
    epochs = steps * batch_size / trained_images(task)
    larger = (
        " The published numbers next to ours are averages over 48 configurations. These were "
        "trained longer and tested at their best epoch on the test images, and most of them are "
        "larger. The study vision-published-part trains one of these configurations on MNIST as "
        "published."
    )
    another = (
        f" {images.title} are only a part of a data set, so no published number is compared with "
        "the results."
    )
    held_out = {
        "clean": f"{validation_images:,} training images are held out for validation.",
        "as-published": "Validation uses the test images, because paper 1 prints a validation "
        "accuracy. In this study, the validation accuracy does not decide which network is tested."
        if images.format == "folders"
        else "Validation is done as in the published code: on the test images, or on images that "
        "are mostly also training images. In this study, the validation accuracy does not decide "
        "which network is tested.",
    }
    return Study(
        name=study,
        question=f"What does sharing cost a small vision transformer on {images.title}?",
        description=(
            f"The study uses {images.title}, with {images.train_images:,} training and "
            f"{images.test_images:,} test images. The network is that in the code of paper 2 "
            f"(Key-Value Transformer), with patches of {patch_size} pixels, {network.tokens} "
            f"tokens, width 64, two layers and four heads. It trains for {steps:,} steps of "
            f"{batch_size} images ({epochs:.1f} epochs) with AdamW at {learning_rate:g}, a warm-up "
            "and a cosine schedule. The last network is tested. "
            f"{held_out[splits]}{'' if is_complete else another}"
        ),
        settings=(
            Setting(
                name=name,
                task=task,
                network=network,
                training=TrainingConfig(
                    steps=steps,
                    batch_size=batch_size,
                    optimizer=OptimizerConfig(
                        name="adamw",
                        learning_rate=learning_rate,
                        weight_decay=0.01,
                        gradient_clip=1.0,
                    ),
                    schedule=ScheduleConfig(name="cosine", warmup_steps=100),
                    evaluate_every=steps // 10,
                ),
                limits=(_QUICK_LIMIT,),
                note=f"{vision_floor(task)}{larger if is_complete else ''}",
            ),
        ),
        variants=SYNTHETIC_VARIANTS,
        seeds=(0, 1, 2),
        published=published_tables(*PUBLISHED_TABLES) if is_complete else (),
        contrasts=(("(Q=K-V)+", "Q=K-V"), ("(Q=K=V)+", "Q=K=V"), ("Q-K=V", "Q=K-V")),
    )
