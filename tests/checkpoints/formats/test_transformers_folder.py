"""Networks saved by transformers load bit-exactly without it."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkvary.arch.canonical import to_dict
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.formats.transformers_folder import load
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, NewerFormatError, QkvaryError
from tests.checkpoints.test_models import make_model
from tests.reference import char_gpt


def write(folder: Path, model: LanguageModel, **changes: Any) -> Path:
    weights = {f"network.{name}": t.detach().numpy() for name, t in model.state_dict().items()}
    (folder / "model.safetensors").write_bytes(char_gpt.pack(weights))
    fields = {"model_type": "qkvary", "network": to_dict(model.config), "network_format": 1}
    (folder / "config.json").write_text(json.dumps({**fields, **changes}), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"network_format": 2},
            NewerFormatError,
            "has network_format 2, but this qkvary reads only 1",
        ),
        ({"network": None}, DamagedError, "is not a configuration of a language model"),
        ({"network": []}, DamagedError, "is not a configuration of a language model"),
        ({"network": {"num_layers": 10**12}}, DamagedError, "more layers than there are"),
    ],
)
def test_invalid_networks_are_rejected(
    changes: dict[str, Any], error: type[QkvaryError], message: str, tmp_path: Path
) -> None:
    assert load(write(tmp_path, make_model())).network.config == make_model().config
    write(tmp_path, make_model(), **changes)
    with pytest.raises(error) as caught:
        load_checkpoint(tmp_path)
    assert message in str(caught.value)
