"""GGUF files of networks that differ from ours in one value, which are refused in one sentence."""

from typing import Any

import pytest

from qkvary.checkpoints.gguf.files import Tensor, pack_file
from qkvary.checkpoints.gguf.headers import parse_file
from qkvary.checkpoints.gguf.networks import convert_network
from qkvary.checkpoints.gguf.reading import read_network
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, QkvaryError, UsageError
from tests.checkpoints.gguf.test_networks import PORTABLE, build_portable

NETWORKS = {
    "llama": convert_network(
        LanguageModel(d_model=8, num_heads=2, num_layers=1, vocabulary=13, max_tokens=11).eval(),
        "f32",
    ),
    "deepseek2": convert_network(build_portable(PORTABLE[0]), "f32"),
}


def read(architecture: str, changes: dict[str, Any], more: dict[str, Tensor] | None = None) -> None:
    """Read a file with other values and more tensors."""
    written = NETWORKS[architecture]
    changed = {f"{architecture}.{key}": one for key, one in changes.items()}
    tensors = {**written.tensors, **(more or {})}
    data = pack_file({**written.metadata, **changed}, tensors)
    read_network(parse_file(data, "a.gguf"), "a.gguf")


def refusal(
    architecture: str,
    kind: type[QkvaryError],
    changes: dict[str, Any],
    more: dict[str, Tensor] | None = None,
) -> str:
    with pytest.raises(kind) as caught:
        read(architecture, changes, more)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("deepseek2", "rope.scaling.type", "yarn"),
        ("deepseek2", "rope.scaling.factor", 4.0),
        ("deepseek2", "rope.scaling.attn_factor", 0.5),
        ("llama", "rope.scaling.yarn_ext_factor", 0.5),
        *(
            (architecture, key, value)
            for architecture in NETWORKS
            for key, value in (
                ("rope.scale_linear", 2.0),
                ("attention.causal", False),
                ("attention.sliding_window", 4),
                ("expert_count", 8),
            )
        ),
    ],
)
def test_what_changes_the_computation_is_refused(architecture: str, key: str, value: Any) -> None:
    message = refusal(architecture, UsageError, {key: value})
    assert message == f"a.gguf has {key}, which this program does not compute"


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"rope.scaling.factor": 4.0}, UsageError, "has rope_freqs and rope.scaling, expected"),
        ({"rope.scaling.factor": [4.0]}, DamagedError, "expected a number for rope.scaling.factor"),
        ({"rope.scaling.attn_factor": 0.5}, UsageError, "has rope.scaling.attn_factor 0.5"),
    ],
)
def test_a_partial_rotation_is_not_scaled(
    changes: dict[str, Any], kind: type[QkvaryError], message: str
) -> None:
    assert message in refusal("llama", kind, changes)
