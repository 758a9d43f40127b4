"""The encoder. It predicts one class per token or, with pooling, one class per sequence."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qkvary.arch.networks import EncoderConfig
from qkvary.nn.blocks import Stack, add_positions, initialize, make_layout, make_position_embedding
from qkvary.nn.layout import Layout
from qkvary.nn.shapes import Hidden, LayerMaps, TokenIds


class Encoder(nn.Module):
    """An encoder of tokens with a two-layer head, applied to every token or to their mean.

    The head is ``Linear - LayerNorm - ReLU - Dropout - Linear``. Its input is ``blocks(embed(t) +
    position)`` or, if the configuration says so, the mean of this over the real tokens.

    Source: the public code of paper 2 (Key-Value Transformer). It passes one-hot tokens through a
    linear layer. Here the layer's columns are looked up, with the same result.
    """

    def __init__(self, config: EncoderConfig, *, seed: int = 0) -> None:
        """Build the network and draw its initial values from a seed."""
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.embedding = nn.Parameter(torch.empty(config.vocabulary, d_model))
        self.embedding_bias = nn.Parameter(torch.empty(d_model))
        self.position_embedding = make_position_embedding(config, config.positions)
        self.stack = Stack(config)
        self.head_in = nn.Linear(d_model, d_model)
        self.head_norm = nn.LayerNorm(d_model)
        self.head_out = nn.Linear(d_model, config.classes)
        self._initialize(seed)

    def forward(
        self,
        tokens: TokenIds | Float[Tensor, "batch tokens vocabulary"],
        *,
        attention_mask: Bool[Tensor, "batch tokens"] | TokenIds | None = None,
    ) -> Float[Tensor, "batch tokens classes"] | Float[Tensor, "batch classes"]:
        """Return the logits of every token or, with pooling, of every sequence.

        Args:
            tokens: Token ids. A network that takes vectors gets one vector per token.
            attention_mask: True for real tokens.

        Raises:
            ValueError: if the sequence is longer than ``max_tokens``.
        """
        hidden = self.features(tokens, attention_mask=attention_mask)
        if self.config.pooling == "none":
            return self.head(hidden)
        if attention_mask is None:
            return self.head(hidden.mean(dim=1))
        weights = attention_mask.to(hidden.dtype)[..., None]
        # Zero weights alone would not remove padding that is not finite.
        return self.head(hidden.masked_fill(weights == 0, 0.0).sum(dim=1) / weights.sum(dim=1))

    def features(
        self,
        tokens: TokenIds | Float[Tensor, "batch tokens vocabulary"],
        *,
        attention_mask: Bool[Tensor, "batch tokens"] | TokenIds | None = None,
    ) -> Hidden:
        """Return the hidden states after the last layer."""
        layout = make_layout(self.config, tokens, attention_mask=attention_mask)
        return self.stack(self._embed(tokens, layout), layout=layout)

    def head(self, features: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch classes"]:
        """Compute logits from hidden states."""
        hidden = F.relu(self.head_norm(self.head_in(features)))
        return self.head_out(F.dropout(hidden, self.config.block.dropout, self.training))

    def attention_maps(
        self, tokens: TokenIds | Float[Tensor, "batch tokens vocabulary"]
    ) -> LayerMaps:
        """Return the attention probabilities of every layer, without dropout."""
        layout = make_layout(self.config, tokens)
        return self.stack.attention_maps(self._embed(tokens, layout), layout=layout)

    def _embed(self, tokens: Tensor, layout: Layout) -> Tensor:
        dropout = self.config.input_dropout
        if self.config.reads_vectors:
            vectors = tokens.to(self.embedding.dtype)
            columns = F.dropout(vectors, dropout, self.training) @ self.embedding
        else:
            columns = F.embedding(tokens, self.embedding)
            if dropout > 0:
                # Dropout on a one-hot input drops or scales the token's whole embedding.
                kept = torch.ones_like(columns[..., :1])
                columns = columns * F.dropout(kept, dropout, self.training)
        x = columns + self.embedding_bias
        kind, table = self.config.positions, self.position_embedding
        return add_positions(x, layout.query_positions, kind=kind, table=table)

    def _initialize(self, seed: int) -> None:
        init = self.config.init
        initializer = initialize(self, init, seed)
        vocabulary, d_model = self.embedding.shape
        if init.embedding_std is not None:
            initializer.draw("embedding", self.embedding, std=init.embedding_std)
        else:
            # The embedding is a linear layer on one-hot tokens, and initialised like one.
            std = init.weight_std(vocabulary, d_model)
            initializer.weight("embedding", self.embedding, init, std)
        initializer.bias("embedding_bias", self.embedding_bias, init, vocabulary)
        initializer.table("position_embedding", self.position_embedding, init)
        initializer.linear("head_in", self.head_in, init)
        initializer.linear("head_out", self.head_out, init)
