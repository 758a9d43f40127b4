import numpy as np
import pytest

from qkvary.data import image_features
from qkvary.data.feature_sets import FEATURE_SETS
from qkvary.data.image_features import (
    ImageFeatures,
    encode_features,
    group_by_class,
    load_features,
)
from qkvary.storage.errors import DamagedError, UsageError


def test_images_are_sorted_by_class() -> None:
    features = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    grouped = group_by_class(features, np.array([1, 0, 1, 0]))
    assert grouped.tolist() == [[[2.0], [4.0]], [[1.0], [3.0]]]
    with pytest.raises(ValueError, match="expected classes of one size, got 1 to 3 images"):
        group_by_class(features, np.array([0, 0, 1, 0]))


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
    with pytest.raises(UsageError, match=r"got 'nois'; did you mean noise\?"):
        load_features("nois")


@pytest.mark.parametrize("damage", ["cut", "shape", "values"])
def test_damaged_files_are_refused(
    damage: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = FEATURE_SETS["cifar100-resnet34"]
    root = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("QKVARY_DATA", str(root))
    shape = (about.classes, 3, about.width)
    made = np.zeros(shape, np.float32)
    if damage == "values":
        monkeypatch.setitem(
            image_features.FEATURE_SETS,
            about.name,
            image_features.FeatureSet(
                name=about.name,
                title="",
                classes=100,
                train_images=3,
                test_images=3,
                width=512,
                images=None,
                labels=slice(None),
                origin="",
            ),
        )
        made[0, 0, 0] = np.nan
    data = encode_features(ImageFeatures(made, made))
    path = root / "features" / f"{about.name}.safetensors"
    path.parent.mkdir()
    path.write_bytes(data[:-5] if damage == "cut" else data)
    says = "is not a file of features" if damage == "cut" else "expected finite features of"
    with pytest.raises(DamagedError, match=says):
        load_features("cifar100-resnet34")
