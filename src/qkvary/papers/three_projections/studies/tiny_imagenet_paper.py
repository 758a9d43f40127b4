"""Trains on Tiny ImageNet as paper 1 describes, with usual choices where the text has gaps."""

from dataclasses import replace

from qkvary.papers.key_value.vision import trained_images, vision_floor, vit_base
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Setting, Study
from qkvary.tasks.image_config import ImageSplits, ImageTaskConfig
from qkvary.training.config import OptimizerConfig, TrainingConfig

_BATCH_SIZE, _EPOCHS = 128, 50

_WHAT = (
    "The study follows the text of paper 1 (Do Transformers Need Three Projections?), for which "
    "there is no code: ViT-B/16 on Tiny ImageNet, with images of 224 x 224 pixels (197 tokens, "
    "width 768, 12 layers, 12 heads, d_ff 3,072, dropout 0.1), 100,000 training images of 200 "
    "classes, two runs, and the four variants of the paper's table. The stored images have 64 x 64 "
    'pixels and are resized when a batch is built. Where the text says only "as above" or nothing, '
    "the study has Adam at 1e-4 without weight decay, batches of 128, 50 epochs, the flips and "
    "crops that the code uses for CIFAR-100, ImageNet's mean and standard deviation, a norm after "
    "the last block, and a single matrix as the head. A run takes about 10^19 floating-point "
    "operations, so use --device cuda. Section 3.2 prints 40, 35 and 32 minutes per epoch, "
    "which we take to be those of three projections, two projections and one projection; the "
    "records contain the steps per second of each run. "
)


def _setting(splits: ImageSplits) -> Setting:
    task = ImageTaskConfig(name="tiny-imagenet", splits=splits, augment=True, resize_to=224)
    per_epoch = trained_images(task) // _BATCH_SIZE
    return Setting(
        name="tiny-imagenet",
        task=task,
        network=vit_base("tiny-imagenet", image_size=224),
        training=TrainingConfig(
            steps=_EPOCHS * per_epoch,
            batch_size=_BATCH_SIZE,
            optimizer=OptimizerConfig(name="adam", learning_rate=1e-4),
            evaluate_every=per_epoch,
            test_at="best",
        ),
        note=vision_floor(task),
    )


STUDY = Study(
    name="tiny-imagenet-paper",
    question=(
        "Do networks with fewer projections classify Tiny ImageNet as well as networks with three?"
    ),
    description=_WHAT
    + "The test labels are not public. As in the paper, the result is therefore the validation "
    "accuracy; this study takes the accuracy of the best epoch.",
    settings=(_setting("as-published"),),
    variants=("QKV", "Q=K-V", "Q-K=V", "Q=K=V"),
    seeds=(0, 1),
    published=published_tables("three-projections-table-3"),
)
PROTOCOLS = {
    "as-published": STUDY,
    "clean": replace(
        STUDY,
        name="tiny-imagenet-paper-clean",
        description=_WHAT
        + "In this clean version, 5,000 training images are held out to choose the epoch, and the "
        "official validation images are tested once.",
        settings=(_setting("clean"),),
    ),
}
