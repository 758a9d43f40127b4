"""A two-layer encoder-decoder that reverses digits, as a user would add one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.canonical import stored
from qkvary.arch.models import Encoder, Model, block_layers, block_norm, final_norms
from qkvary.arch.networks import Network, TokenNetwork
from qkvary.arch.parts import Linear, Table
from qkvary.nn.attention import Attention
from qkvary.nn.blocks import Block, make_norm
from qkvary.nn.cache import KVCache
from qkvary.nn.initialization import initialize
from qkvary.nn.layout import Layout
from qkvary.nn.positions import sinusoid
from qkvary.tasks.contract import (
    ALL_ROWS,
    SINGLE_PROCESS_CONTEXT,
    AttentionExample,
    Batch,
    EvaluationContext,
    Split,
)

BEGIN, END = 0, 1


@stored("test encoder-decoder")
@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderConfig(TokenNetwork):
    """``attention`` is that of the decoder; the others follow from it."""

    @property
    def cross(self) -> tuple[AttentionConfig, ...]:
        return tuple(replace(layer, causal=False) for layer in self.layers)


def describe(config: EncoderDecoderConfig) -> Model:
    norm, width = block_norm(config), config.d_model
    encoder = replace(config, attention=config.cross)
    layers = tuple(
        replace(layer, cross=ProjectedAttention(config=cross), norms=(*layer.norms, norm))
        for layer, cross in zip(block_layers(config), config.cross, strict=True)
    )
    return Model(
        name="encoder-decoder",
        layers=layers,
        vocabulary=config.vocabulary,
        tables=(Table(rows=config.vocabulary, width=width),),
        norms=final_norms(config),
        head=(Linear(inputs=width, outputs=config.vocabulary, tied=True),),
        encoder=Encoder(layers=block_layers(encoder)),
        max_tokens=config.max_tokens,
    )


class DecoderBlock(Block):
    def __init__(self, attention: AttentionConfig, cross: AttentionConfig, config: Network) -> None:
        super().__init__(attention, config.block)
        self.cross = Attention(cross, seed=None)
        self.cross_norm = make_norm(attention.d_model, config.block)


class MemoryCache(KVCache):
    """The decoder's cache, and beside it the memory with what cross attention stored of it."""

    def __init__(self, config: EncoderDecoderConfig, memory: Tensor, mask: Tensor) -> None:
        super().__init__(config.layers)
        self.memory, self.mask = memory, mask
        self.crossing = KVCache(config.cross)

    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        self.crossing.reorder(rows)
        self.memory, self.mask = self.memory[rows], self.mask[rows]


class EncoderDecoder(nn.Module):
    """Pre-norm blocks; a decoder (``nn.decoder.Decoder``) over the memory of its cache."""

    def __init__(self, config: EncoderDecoderConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocabulary, config.d_model))
        self.encoder = nn.ModuleList(Block(layer, config.block) for layer in config.cross)
        pairs = zip(config.layers, config.cross, strict=True)
        self.decoder = nn.ModuleList(DecoderBlock(own, cross, config) for own, cross in pairs)
        self.final_norm = make_norm(config.d_model, config.block)
        initialize(self, config.init, seed)
        nn.init.normal_(self.embedding, generator=torch.Generator().manual_seed(seed))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The memory of a source, and which of it is real."""
        mask = source != END
        layout = Layout(new_tokens=source.shape[1], attention_mask=mask)
        x = self._embed(source, layout)
        for block in self.encoder:
            x = block(x, layout=layout)
        return x, mask

    def forward(
        self,
        tokens: Tensor,
        *,
        source: Tensor | None = None,
        cache: KVCache | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits; the memory is that of the source, or of the cache."""
        if source is not None:
            memory, mask = self.encode(source)
            return self.head(self._decode(tokens, memory, mask, attention_mask))
        return self.head(self.features(tokens, cache=cache, attention_mask=attention_mask))

    def features(
        self, tokens: Tensor, *, cache: KVCache | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        assert isinstance(cache, MemoryCache)
        return self._decode(tokens, cache.memory, cache.mask, attention_mask, cache)

    def head(self, features: Tensor) -> Tensor:
        return features @ self.embedding.mT

    def token_losses(self, features: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(features), targets, reduction="none")

    def _decode(
        self,
        tokens: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        attention_mask: Tensor | None,
        cache: MemoryCache | None = None,
    ) -> Tensor:
        layout = Layout(
            new_tokens=tokens.shape[1],
            cached_tokens=0 if cache is None else cache.length,
            attention_mask=attention_mask,
        )
        across = layout.over(memory, memory_mask)
        x = self._embed(tokens, layout)
        for index, block in enumerate(self.decoder):
            own = None if cache is None else cache.layers[index]
            other = None if cache is None else cache.crossing.layers[index]
            x = x + block.attention(block.attention_norm(x), layout=layout, cache=own)
            query = block.cross_norm(x)
            x = x + block.cross(query, memory=memory, layout=across, cache=other)
            x = x + block.feed_forward(block.feed_forward_norm(x))
        return self.final_norm(x)

    def _embed(self, tokens: Tensor, layout: Layout) -> Tensor:
        x = F.embedding(tokens, self.embedding)
        return x + sinusoid(layout.query_positions, x.shape[-1], x.dtype, "sinusoidal")


class ReverseTranslation:
    """Write the source backwards: scored by what is generated, which the run hands down."""

    metric, higher_is_better, data_fingerprint, tokenizer = "exact", True, "backwards", None

    def __init__(self, length: int) -> None:
        self.length = length

    def build(self, network: Network, seed: int) -> EncoderDecoder:
        assert isinstance(network, EncoderDecoderConfig)
        return EncoderDecoder(network, seed=seed)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        random = torch.Generator().manual_seed(1_000 * seed + step)
        source = torch.randint(2, 7, (batch_size, self.length), generator=random)
        lengths = torch.randint(1, self.length + 1, (batch_size, 1), generator=random)
        source = source.masked_fill(torch.arange(self.length) >= lengths, END)
        answers = torch.stack([_answer(row) for row in source])
        inputs = F.pad(answers[:, :-1], (1, 0), value=BEGIN)
        return Batch(inputs[rows], answers[rows], None, source[rows])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch.inputs, source=batch.source)
        return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

    def evaluate(
        self, model: nn.Module, split: Split, context: EvaluationContext = SINGLE_PROCESS_CONTEXT, /
    ) -> dict[str, float]:
        batch = self.batch(10**6 + (split == "test"), 31, 0)
        assert isinstance(model, EncoderDecoder)
        assert batch.source is not None
        assert context.generate is not None
        memory, mask = model.encode(batch.source)
        said = context.generate(
            model,
            [[BEGIN]] * len(memory),
            max_new_tokens=self.length,
            stop_tokens=(END,),
            new_cache=lambda _tokens: MemoryCache(model.config, memory, mask),
        )
        wanted = [_until_end(row) for row in batch.targets.tolist()]
        right = [one == other for one, other in zip(said, wanted, strict=True)]
        return {"loss": self.loss(model, batch).item(), "exact": sum(right) / len(right)}

    def attention_example(self, _model: nn.Module) -> AttentionExample | None:
        return None


def _answer(row: Tensor) -> Tensor:
    backwards = row[row != END].flip(0)
    return F.pad(backwards, (0, len(row) + 1 - len(backwards)), value=END)


def _until_end(row: Sequence[int]) -> tuple[int, ...]:
    return tuple(row[: row.index(END)])
