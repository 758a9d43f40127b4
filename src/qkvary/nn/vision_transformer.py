"""Vision transformer for image classification."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkvary.arch.networks import VisionTransformerConfig
from qkvary.nn.blocks import Stack, initialize
from qkvary.nn.layout import Layout
from qkvary.nn.linear import apply
from qkvary.nn.shapes import LayerMaps


class VisionTransformer(nn.Module):
    """Vision transformer: ``head(blocks([class; W patches + b] + positions)[0])``.

    The head is one matrix or, if the configuration says so, ``Linear - GELU - Linear``.

    Source: Dosovitskiy et al. 2021. Patches are flattened in the order rows, columns, channels, as
    in the public code of paper 2 (Key-Value Transformer).
    """

    def __init__(self, config: VisionTransformerConfig, *, seed: int = 0) -> None:
        """Build the network and draw its initial values from a seed."""
        super().__init__()
        self.config = config
        d_model, inner = config.d_model, config.d_head
        self.patch = nn.Linear(config.patch_width, d_model)
        self.class_token = nn.Parameter(torch.empty(1, d_model))
        self.position_embedding = nn.Parameter(torch.empty(config.tokens, d_model))
        self.stack = Stack(config)
        self.head_in = None if inner is None else nn.Linear(d_model, inner)
        self.head_out = nn.Linear(d_model if inner is None else inner, config.classes)
        self._initialize(seed)

    def forward(
        self, images: Float[Tensor, "batch channels rows columns"]
    ) -> Float[Tensor, "batch classes"]:
        """Return the logits of each image.

        Raises:
            ValueError: if the images have the wrong size or number of channels.
        """
        return self.head(self.features(images))

    def features(
        self, images: Float[Tensor, "batch channels rows columns"]
    ) -> Float[Tensor, "batch d_model"]:
        """Return the hidden state of the class token after the last layer."""
        x = self._embed(images)
        layout = Layout(new_tokens=x.shape[1], device=x.device)
        return self.stack(x, layout=layout)[:, 0]

    def head(self, features: Float[Tensor, "batch d_model"]) -> Float[Tensor, "batch classes"]:
        """Return the logits for the hidden state of the class token."""
        return self.head_out(features if self.head_in is None else F.gelu(self.head_in(features)))

    def attention_maps(self, images: Float[Tensor, "batch channels rows columns"]) -> LayerMaps:
        """Return the attention probabilities of every layer, without dropout."""
        x = self._embed(images)
        layout = Layout(new_tokens=x.shape[1], device=x.device)
        return self.stack.attention_maps(x, layout=layout)

    def _embed(self, images: Tensor) -> Tensor:
        config = self.config
        expected = (config.channels, config.image_size, config.image_size)
        if tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"expected images of {expected} (channels, rows, columns), got "
                f"{tuple(images.shape[1:])}"
            )
        side, grid = config.patch_size, config.image_size // config.patch_size
        cut = images.reshape(-1, config.channels, grid, side, grid, side)
        patches = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        patches = patches.to(self.class_token.dtype)
        first = self.class_token.expand(len(images), 1, -1)
        x = torch.cat((first, apply(self.patch, patches)), dim=1) + self.position_embedding
        return F.dropout(x, config.input_dropout, self.training)

    def _initialize(self, seed: int) -> None:
        init = self.config.init
        initializer = initialize(self, init, seed)
        initializer.linear("patch", self.patch, init)
        initializer.table("class_token", self.class_token, init)
        initializer.table("position_embedding", self.position_embedding, init)
        initializer.linear("head_in", self.head_in, init)
        initializer.linear("head_out", self.head_out, init)
