"""Compute the ResNet-34 features of CIFAR-100 for the study anomaly-paper."""

import hashlib
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.options import SILENT, Terminal
from qkvary.api.results import Result, say_in_lines
from qkvary.data.feature_sets import FEATURE_SETS, features_path
from qkvary.storage.durable import atomic_write_file, remove_dir
from qkvary.storage.packages import require


@verb
def prepare_features(
    weights: Annotated[Path, Parameter(name="--weights")],
    *,
    terminal: Terminal = SILENT,
) -> Result[Path]:
    """Compute the ResNet-34 features of CIFAR-100 for the study anomaly-paper.

    The features are computed once. The same command resumes after a stop.

    Args:
        weights: The folder of a ResNet-34 (config.json and model.safetensors), such as a copy of
            microsoft/resnet-34.
        terminal: Shows the progress.

    Returns:
        A result whose ``value`` is the path of the file with the features.

    Raises:
        ValueError: if there are no such weights, or transformers is not installed.
    """
    require("transformers")
    from qkvary.checkpoints.huggingface.image_features import describe_cifar100
    from qkvary.data.image_features import decode_features, encode_features

    about = FEATURE_SETS["cifar100-resnet34"]
    path = features_path(about.name)
    parts = path.with_suffix(".parts")
    with terminal.show_progress("describing", "images") as on_progress:
        features = describe_cifar100(weights, parts, on_progress=on_progress)
    data = encode_features(features)
    found = decode_features(about, data, path)
    atomic_write_file(path, data)
    remove_dir(parts)
    count = sum(part[..., 0].size for part in found)
    sha256 = hashlib.sha256(data).hexdigest()
    document = {"images": count, "path": str(path), "sha256": sha256}
    line = f"{count:,} images in {path}, sha256 {sha256}"
    return Result(path, say_in_lines("features", document, line))
