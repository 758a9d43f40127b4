import numpy as np
import pytest

from qkvary.data.feature_sets import FEATURE_SETS
from qkvary.data.image_features import load_features
from qkvary.storage.errors import UsageError


def test_packaged_features_describe_images() -> None:
    found = load_features("cifar100-50")
    about = FEATURE_SETS["cifar100-50"]
    assert found.train.shape == (about.classes, about.train_images, about.width)
    assert found.test.shape == (about.classes, about.test_images, about.width)
    # The nearest class mean of training images names a test image far more often than chance, 0.02.
    means = found.train.mean(axis=1)
    distances = np.square(found.test[:, :, None] - means).sum(axis=-1)
    right = distances.argmin(axis=-1) == np.arange(about.classes)[:, None]
    assert right.mean() > 0.1


def test_other_features_say_how_to_make_them() -> None:
    with pytest.raises(UsageError, match="run `qkvary data features --weights FOLDER`"):
        load_features("cifar100-resnet34")
