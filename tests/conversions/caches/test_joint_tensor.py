"""One tensor for keys and values: exact at full rank, and no worse than any other of its rank."""

import torch
from torch import Tensor

from qkvary.conversions.caches.joint_tensor import VALUE_WEIGHT, JointTensor, join
from qkvary.conversions.caches.layer_maps import take_root

GENERATOR = torch.Generator().manual_seed(2)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


def moment(size: int, *batch: int) -> Tensor:
    root = draw(*batch, size, size + 3)
    return root @ root.mT


KEY, VALUE = draw(11, 2, 5), draw(11, 2, 5)
WEIGHTS = {"moment": moment(11), "queries": moment(5, 2), "outputs": moment(5, 2)}


def errors(joint: JointTensor) -> tuple[float, float]:
    """The weighted squared errors of keys and values, each over that of the whole."""
    found: list[float] = []
    for role, up, name in ((KEY, joint.key, "queries"), (VALUE, joint.value, "outputs")):
        wrong = role - torch.einsum("dr,gri->dgi", joint.read, up)
        sums = [
            sum(
                float(torch.trace(part[:, g].T @ WEIGHTS["moment"] @ part[:, g] @ WEIGHTS[name][g]))
                for g in range(2)
            )
            for part in (wrong, role)
        ]
        found.append(sums[0] / sums[1])
    return found[0], found[1]


def weigh(joint: JointTensor) -> float:
    """The share that is lost, an error of values counting as it is weighted."""
    key, value = errors(joint)
    return (key + VALUE_WEIGHT**2 * value) / (1 + VALUE_WEIGHT**2)


def test_a_full_rank_is_exact() -> None:
    assert max(errors(join(KEY, VALUE, rank=11, **WEIGHTS))) < 1e-12
    wide = join(KEY, VALUE, rank=14, **WEIGHTS)
    assert wide.read.shape == (11, 14)
    assert max(errors(wide)) < 1e-12
    assert wide.lost == 0


def test_another_tensor_of_its_rank_is_worse() -> None:
    best = weigh(join(KEY, VALUE, rank=4, **WEIGHTS))
    plain = {**WEIGHTS, "moment": torch.eye(11).double()}
    assert best < weigh(join(KEY, VALUE, rank=4, **plain))
    unread = {**WEIGHTS, "queries": torch.eye(5).double().expand(2, 5, 5)}
    assert best < weigh(join(KEY, VALUE, rank=4, **unread))


def test_roots_are_inverses_of_one_another_without_full_rank() -> None:
    thin = draw(6, 2)
    root, inverse = take_root(thin @ thin.T)
    assert torch.allclose(root @ inverse, torch.eye(6).double(), atol=1e-6)
    assert torch.allclose(root @ root, thin @ thin.T, atol=1e-6)
