"""A classifier over patches, as a user would add a kind of network that reads no tokens."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.canonical import stored
from qkvary.arch.models import Model, block_layers, final_norms
from qkvary.arch.networks import Network
from qkvary.arch.parts import Linear, Table
from qkvary.nn.blocks import Stack, initialize
from qkvary.nn.initializer import Initializer
from qkvary.nn.layout import Layout
from qkvary.tasks.contract import (
    ALL_ROWS,
    SINGLE_PROCESS_CONTEXT,
    Batch,
    EvaluationContext,
    Split,
)
from qkvary.tasks.examples import AttentionExample


@stored("test patch classifier")
@dataclass(frozen=True, slots=True, kw_only=True)
class PatchClassifierConfig(Network):
    patches: int
    patch_width: int
    classes: int


def describe(config: PatchClassifierConfig) -> Model:
    width = config.d_model
    return Model(
        name="patch classifier",
        layers=block_layers(config),
        vocabulary=config.classes,
        tables=(),
        positions=(Table(rows=config.patches, width=width),),
        norms=final_norms(config),
        others=(Linear(inputs=config.patch_width, outputs=width, bias=True),),
        head=(Linear(inputs=width, outputs=config.classes, bias=True, is_pooled=True),),
        max_tokens=config.patches,
    )


class PatchClassifier(nn.Module):
    def __init__(self, config: PatchClassifierConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.patch = nn.Linear(config.patch_width, config.d_model)
        self.positions = nn.Parameter(torch.empty(config.patches, config.d_model))
        self.stack = Stack(config)
        self.head = nn.Linear(config.d_model, config.classes)
        initialize(self, config.init, seed)
        initializer = Initializer(seed, "")
        initializer.linear("patch", self.patch, config.init)
        initializer.table("positions", self.positions, config.init)
        initializer.linear("head", self.head, config.init)

    def forward(self, patches: Tensor) -> Tensor:
        layout = Layout(new_tokens=patches.shape[1], device=patches.device)
        x = self.stack(self.patch(patches) + self.positions, layout=layout)
        return self.head(x.mean(dim=1))


class BrightestPatch:
    """Which patch is brightest? A task in one class: data, network, loss, metric."""

    metric, higher_is_better, data_fingerprint, tokenizer = "accuracy", True, "bright", None

    def __init__(self, config: PatchClassifierConfig) -> None:
        self.config = config

    def build(self, network: Network, seed: int) -> PatchClassifier:
        assert isinstance(network, PatchClassifierConfig)
        return PatchClassifier(network, seed=seed)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        source = torch.Generator().manual_seed(1_000 * seed + step)
        shape = (batch_size, self.config.patches, self.config.patch_width)
        images = torch.randn(shape, generator=source)
        return Batch(images[rows], images.mean(dim=-1).argmax(dim=-1)[rows])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets)

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        _context: EvaluationContext = SINGLE_PROCESS_CONTEXT,
        /,
    ) -> dict[str, float]:
        batch = self.batch(10**6 + (split == "test"), 97, 0)
        logits = model(batch.inputs)
        right = (logits.argmax(dim=-1) == batch.targets).double().mean().item()
        return {"loss": F.cross_entropy(logits, batch.targets).item(), "accuracy": right}

    def attention_example(self, _model: nn.Module) -> AttentionExample | None:
        return None
