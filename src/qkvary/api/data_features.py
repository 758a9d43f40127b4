"""Describe the images of CIFAR-100 by ResNet-34, once, for the study anomaly-paper."""

import hashlib
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from qkvary.cli._options import Json
from qkvary.cli._output import console, show_lines
from qkvary.data.feature_files import features_path
from qkvary.data.feature_sets import FEATURE_SETS
from qkvary.data.image_features import decode_features, encode_features
from qkvary.storage.durable import atomic_write_file, remove_dir
from qkvary.storage.packages import require

Weights = Annotated[
    Path,
    Parameter(
        help="A folder of ResNet-34 with config.json and model.safetensors, such as a copy of "
        "microsoft/resnet-34."
    ),
]


def command(*, weights: Weights, json_output: Json = False) -> None:
    """Describe the images of CIFAR-100 by ResNet-34, once, for the study anomaly-paper.

    The same command resumes where it stopped.
    """
    require("transformers")
    from qkvary.checkpoints.huggingface.image_features import describe_cifar100

    screen, about = console(sys.stderr), FEATURE_SETS["cifar100-resnet34"]
    path = features_path(about.name)
    parts = path.with_suffix(".parts")
    features = describe_cifar100(
        weights,
        parts,
        on_progress=lambda done, total: screen.print(Text(f"{done:,} of {total:,} images")),
    )
    data = encode_features(features)
    found = decode_features(about, data, path)
    atomic_write_file(path, data)
    remove_dir(parts)
    count = sum(part[..., 0].size for part in found)
    sha256 = hashlib.sha256(data).hexdigest()
    document = {"images": count, "path": str(path), "sha256": sha256}
    show_lines(document, [f"{count:,} images in {path}, sha256 {sha256}"], json_output=json_output)
