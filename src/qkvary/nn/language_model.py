"""The decoder-only language model."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkvary.arch.named_networks import choose_network
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.variants import AnyVariant
from qkvary.nn.blocks import Stack, add_positions, initialize, make_layout, make_position_embedding
from qkvary.nn.cache import KVCache
from qkvary.nn.fused_loss import choose_chunk, linear_cross_entropy, linear_token_losses
from qkvary.nn.layout import Layout
from qkvary.nn.linear import linear
from qkvary.nn.shapes import AttentionMask, Hidden, LayerMaps, Logits, TokenIds


class LanguageModel(nn.Module):
    """A decoder of embedded tokens plus positions: causal blocks, an optional norm, and a head.

    ``model(tokens)`` is ``model.head(model.features(tokens))``; ``model(tokens, targets=targets)``
    is the summed loss. Unless the logits are capped, the loss never needs all logits at once. Both
    are calls of the module, so that the hooks of wrappers (DDP, FSDP, ``torch.compile``) cover
    every use of weights.

    Source: covers the models of papers 1 to 3 (GPT-2 style) and Llama-style networks.
    """

    def __init__(
        self,
        config: LanguageModelConfig | str | None = None,
        *,
        d_model: int | None = None,
        num_heads: int | None = None,
        num_layers: int | None = None,
        vocabulary: int | None = None,
        max_tokens: int | None = None,
        variant: AnyVariant | str | None = None,
        seed: int = 0,
    ) -> None:
        """Build and initialise the network.

        Args:
            config: The configuration or a name such as ``lm-10m``; without it, the sizes below make
                a modern network (rotary positions, RMSNorm, SwiGLU).
            d_model: Width of the residual stream.
            num_heads: Query heads.
            num_layers: Blocks.
            vocabulary: Distinct tokens.
            max_tokens: Longest sequence.
            variant: The attention variant or its label. Positions, a norm of the heads and a soft
                cap that it does not name are those of the configuration.
            seed: The seed of the initial values.

        Raises:
            ValueError: for an unknown name or label, sizes that do not fit together or do not fit
                the variant, a missing size, or both a configuration and sizes.
        """
        super().__init__()
        sizes = {
            "d_model": d_model,
            "num_heads": num_heads,
            "num_layers": num_layers,
            "vocabulary": vocabulary,
            "max_tokens": max_tokens,
        }
        config = choose_network(config, sizes, variant)
        self.config = config
        d_model = config.d_model
        self.embedding = nn.Parameter(torch.empty(config.vocabulary, d_model))
        self.position_embedding = make_position_embedding(config, config.positions)
        self.stack = Stack(config)
        head_shape = (config.vocabulary, d_model)
        self.head_weight = None if config.tied_head else nn.Parameter(torch.empty(head_shape))
        self.head_bias = nn.Parameter(torch.empty(config.vocabulary)) if config.head_bias else None
        self._initialize(seed)

    def forward(
        self,
        tokens: TokenIds,
        *,
        targets: TokenIds | None = None,
        cache: KVCache | None = None,
        attention_mask: AttentionMask | None = None,
        positions: Int[Tensor, "rows keys"] | None = None,
        document_ids: Int[Tensor, "batch keys"] | None = None,
    ) -> Logits | Float[Tensor, ""]:
        """Return the logits of the next token at every position; with targets, the loss.

        ``targets`` are the next tokens; -100 marks positions without a target. The loss is a sum in
        nats. See ``features`` for all other arguments.
        """
        features = self.features(
            tokens,
            cache=cache,
            attention_mask=attention_mask,
            positions=positions,
            document_ids=document_ids,
        )
        return self.head(features) if targets is None else self.loss_sum(features, targets)

    def features(
        self,
        tokens: TokenIds,
        *,
        cache: KVCache | None = None,
        attention_mask: AttentionMask | None = None,
        positions: Int[Tensor, "rows keys"] | None = None,
        document_ids: Int[Tensor, "batch keys"] | None = None,
    ) -> Hidden:
        """Return the hidden states after the last layer.

        Args:
            tokens: Ids of the tokens after those in the cache.
            cache: The cache, to which the new tokens are appended.
            attention_mask: True for real tokens, False for padding. This and the following
                arguments cover the tokens in the cache and the new tokens.
            positions: Positions, by default counted from the first real token of each document.
            document_ids: The document of each token. A token sees only tokens of its own document.

        Raises:
            ValueError: if the sequence is longer than ``max_tokens``, or an argument does not
                cover it.
        """
        _check_call(tokens, cache)
        layout = make_layout(
            self.config,
            tokens,
            0 if cache is None else cache.length,
            attention_mask=attention_mask,
            positions=positions,
            document_ids=document_ids,
        )
        x = self.embed(tokens, layout)
        return self.stack(x, layout=layout, cache=cache)

    def head(self, features: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocabulary"]:
        """Compute logits from hidden states."""
        logits, cap = linear(features, self.output_weight, self.head_bias), self.config.logit_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def loss_sum(self, features: Hidden, targets: TokenIds) -> Float[Tensor, ""]:
        """Return the summed cross entropy of ``head`` in nats; targets of -100 do not count."""
        if self.config.logit_cap is not None:
            return self._bent_losses(features.flatten(0, 1), targets.flatten()).sum()
        return linear_cross_entropy(
            features.flatten(0, 1), self.output_weight, self.head_bias, targets.flatten()
        )

    def token_losses(
        self, features: Float[Tensor, "tokens d_model"], targets: Int[Tensor, " tokens"]
    ) -> Float[Tensor, " tokens"]:
        """Return the cross entropy of each target given its hidden state, in nats."""
        if self.config.logit_cap is not None:
            with torch.no_grad():
                return self._bent_losses(features, targets)
        return linear_token_losses(features, self.output_weight, self.head_bias, targets)

    def _bent_losses(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each token from capped logits; the fused loss supports no cap."""
        chunk = choose_chunk(len(targets), self.config.vocabulary, features.device.type)
        losses: list[Tensor] = []
        for part, wanted in zip(features.split(chunk), targets.split(chunk), strict=True):
            logits = self.head(part)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            losses.append(F.cross_entropy(logits, wanted, reduction="none"))
        return torch.cat(losses)

    @property
    def output_name(self) -> str:
        """The name of the parameter that is the weight of the output head."""
        return "embedding" if self.config.tied_head else "head_weight"

    @property
    def output_weight(self) -> Float[Tensor, "vocabulary d_model"]:
        """The weight of the output head; the embedding if the head is tied."""
        return self.embedding if self.head_weight is None else self.head_weight

    def attention_maps(self, tokens: TokenIds) -> LayerMaps:
        """Return the attention probabilities of every layer, without dropout."""
        layout = make_layout(self.config, tokens)
        return self.stack.attention_maps(self.embed(tokens, layout), layout=layout)

    def embed(self, tokens: TokenIds, layout: Layout) -> Hidden:
        """Return the input of the first block."""
        x = F.embedding(tokens, self.embedding)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.d_model)
        kind, table = self.config.positions, self.position_embedding
        x = add_positions(x, layout.query_positions, kind=kind, table=table)
        return F.dropout(x, self.config.embedding_dropout, self.training)

    def _initialize(self, seed: int) -> None:
        init = self.config.init
        initializer = initialize(self, init, seed)
        vocabulary, d_model = self.embedding.shape
        head_std = init.weight_std(d_model, vocabulary)
        if init.embedding_std is not None:
            initializer.draw("embedding", self.embedding, std=init.embedding_std)
        elif self.head_weight is None:
            # A table that is also the head is initialised as a head: N(0, 1) would give initial
            # logits with a standard deviation of sqrt(d_model).
            initializer.weight("embedding", self.embedding, init, head_std)
        else:
            initializer.table("embedding", self.embedding, init)
        if self.head_weight is not None:
            initializer.weight("head_weight", self.head_weight, init, head_std)
        initializer.bias("head_bias", self.head_bias, init, d_model)
        initializer.table("position_embedding", self.position_embedding, init)


def _check_call(tokens: object, cache: object) -> None:
    """Check the tokens, and that the cache belongs to a whole network."""
    if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
        given = f"{tokens.dtype} {list(tokens.shape)}" if isinstance(tokens, Tensor) else None
        raise ValueError(f"expected integers [batch, tokens], got {given or type(tokens).__name__}")
    if cache is not None and not isinstance(cache, KVCache):
        raise ValueError(
            f"expected a cache such as KVCache(model.config.layers), got {type(cache).__name__}"
        )
