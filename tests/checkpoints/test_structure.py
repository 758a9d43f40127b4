"""A network that its configuration does not describe is refused before anything is written."""

from collections.abc import Callable
from pathlib import Path

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


def _replace_projection(model: LanguageModel) -> None:
    attention = model.stack.blocks[1].attention
    attention.k_proj = Adapter(attention.projections["k"])


def _replace_by_equal_names(model: LanguageModel) -> None:
    model.stack.blocks[1].attention.k_proj = Doubled(12, 12)


def _widen(model: LanguageModel) -> None:
    model.stack.blocks[0].feed_forward.up = nn.Linear(12, 41)


def _add(model: LanguageModel) -> None:
    model.extra = nn.Linear(3, 2)


def _drop_gain(model: LanguageModel) -> None:
    model.stack.blocks[0].attention_norm.register_parameter("weight", None)


def _normalise_weights(model: LanguageModel) -> None:
    parametrizations.weight_norm(model.stack.blocks[0].attention.o_proj)


def _quantise(model: LanguageModel) -> None:
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8, inplace=True)


def _take_block(model: LanguageModel) -> None:
    del model.stack.blocks[1]


CHANGES = {
    _replace_projection: r"Adapter at stack\.blocks\.1\.attention\.k_proj instead of Linear",
    _replace_by_equal_names: r"Doubled at stack\.blocks\.1\.attention\.k_proj instead of Linear",
    _widen: r"up\.\w+ is \[41.*\] instead of",
    _add: r"Linear at extra instead of nothing",
    _drop_gain: r"attention_norm\.weight is missing",
    _normalise_weights: r"o_proj\.weight is missing",
    _quantise: r"quantized\.\S+\.Linear at .* instead of Linear",
    _take_block: r"nothing at stack\.blocks\.1\S* instead of",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_network_is_not_written(
    change: Callable[[LanguageModel], None], tmp_path: Path
) -> None:
    model = make()
    save_model(tmp_path / "before", model)
    change(model)
    loaded = LoadedModel(model, None)
    for write in (
        lambda: save_model(tmp_path / "after", model),
        lambda: export_folder(loaded, tmp_path / "after"),
        lambda: export_gguf(loaded, tmp_path / "after"),
        lambda: run_rewrite("gauge", model, RewriteOptions()),
    ):
        with pytest.raises(UsageError, match=CHANGES[change]) as refused:
            write()
        assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "after").exists()
    assert qk.load(tmp_path / "before").network.config == model.config
