"""A network that its configuration does not describe is refused before anything is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import qkvary as qk
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel, save_model
from qkvary.conversions.rewriting import RewriteOptions, run_rewrite
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError


class Adapter(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * self.base(x)


class Doubled(nn.Linear):
    """Has the names and shapes of what it replaces."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return 2.0 * super().forward(input)


def make() -> LanguageModel:
    return LanguageModel(
        d_model=12, num_heads=3, num_layers=2, vocabulary=7, max_tokens=13, variant="Q-K=V"
    ).eval()


def quantise(model: LanguageModel, _blocks: Any) -> None:
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8, inplace=True)


CHANGES: dict[str, Callable[[LanguageModel, Any], object]] = {
    r"Adapter at stack\.blocks\.1\.attention\.k_proj instead of Linear": (
        lambda _, blocks: blocks[1].attention.add_module("k_proj", Adapter(nn.Linear(12, 12)))
    ),
    r"Doubled at stack\.blocks\.1\.attention\.k_proj instead of Linear": (
        lambda _, blocks: blocks[1].attention.add_module("k_proj", Doubled(12, 12))
    ),
    r"up\.\w+ is \[41.*\] instead of": (
        lambda _, blocks: blocks[0].feed_forward.add_module("up", nn.Linear(12, 41))
    ),
    r"Linear at extra instead of nothing": (
        lambda model, _: model.add_module("extra", nn.Linear(3, 2))
    ),
    r"attention_norm\.weight is missing": (
        lambda _, blocks: blocks[0].attention_norm.register_parameter("weight", None)
    ),
    r"o_proj\.weight is missing": (
        lambda _, blocks: parametrizations.weight_norm(blocks[0].attention.o_proj)
    ),
    r"quantized\.\S+\.Linear at .* instead of Linear": quantise,
    r"nothing at stack\.blocks\.1\S* instead of": lambda _, blocks: blocks.pop(1),
}
"""Changes of a network or its blocks by what is said of them."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("said", CHANGES)
def test_a_changed_network_is_not_written(said: str, tmp_path: Path) -> None:
    model = make()
    save_model(tmp_path / "before", model)
    CHANGES[said](model, model.stack.blocks)
    loaded = LoadedModel(model, None)
    for write in (
        lambda: save_model(tmp_path / "after", model),
        lambda: export_folder(loaded, tmp_path / "after"),
        lambda: export_gguf(loaded, tmp_path / "after"),
        lambda: run_rewrite("gauge", model, RewriteOptions()),
    ):
        with pytest.raises(UsageError, match=said) as refused:
            write()
        assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "after").exists()
    assert qk.load(tmp_path / "before").network.config == model.config
