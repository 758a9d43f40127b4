"""The encoder-decoder: a training step against torch's own network, and what a cache saves.

The network of ``torch.nn.Transformer`` has the same sizes, norms and vocabulary. One of the two is
written as people write it, with logits and torch's smoothed cross entropy; the other has our
embedding, head and loss, so that the stacks alone are compared. Batches are random sentences of the
lengths of Multi30k. Dropout is 0 in the steps; the optimizer is the fused Adam of our training.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheOptions
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, EncoderDecoderConfig
from qkvary.inference.decoding import generate
from qkvary.nn.blocks import make_layout
from qkvary.nn.encoder_decoder import EncoderDecoder, EncoderDecoderCache
from timing.interleaved import Effort, print_case, read_effort, take_turns

FULL = Effort(rounds=15, turn_seconds=0.0)
QUICK = Effort(rounds=1, turn_seconds=0.0)
D_MODEL, HEADS, LAYERS = 128, 4, 2
SOURCE_WORDS, WORDS = 4_778, 5_629
BATCH, SHORTEST, LONGEST = 50, 7, 27
PADDING, BEGIN = 1, 2
SMOOTHING = 0.1
NEW_TOKENS = 100
NOT_SLOWER, WITH_CACHE = 1.0, 5.0
FAST = CacheOptions(layout="rotated", storage="preallocated", kernel="auto")
"""As ``make_cache`` has it for language models. What a cache has otherwise goes layer by layer."""


def make_network(label: str) -> EncoderDecoder:
    """Our network."""
    layer = AttentionConfig(
        d_model=D_MODEL, num_heads=HEADS, variant=parse_variant(label), causal=True
    )
    return EncoderDecoder(
        EncoderDecoderConfig(
            attention=layer,
            block=BlockConfig(d_ff=4 * D_MODEL, activation="relu"),
            num_layers=LAYERS,
            vocabulary=WORDS,
            source_vocabulary=SOURCE_WORDS,
            padding=PADDING,
            max_tokens=NEW_TOKENS,
        )
    )


def make_stacks() -> nn.Transformer:
    """Torch's encoder and decoder."""
    return nn.Transformer(
        D_MODEL,
        HEADS,
        LAYERS,
        LAYERS,
        4 * D_MODEL,
        dropout=0.0,
        batch_first=True,
        norm_first=True,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(
                D_MODEL, HEADS, 4 * D_MODEL, dropout=0.0, batch_first=True, norm_first=True
            ),
            LAYERS,
            nn.LayerNorm(D_MODEL),
            enable_nested_tensor=False,
        ),
    )


class TorchNetwork(nn.Module):
    """The same network of torch's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(SOURCE_WORDS, D_MODEL)
        self.embedding = nn.Embedding(WORDS, D_MODEL)
        self.stacks = make_stacks()
        self.head = nn.Linear(D_MODEL, WORDS)
        index = torch.arange(NEW_TOKENS)[:, None] / 10_000 ** (
            torch.arange(0, D_MODEL, 2) / D_MODEL
        )
        self.positions = torch.stack((index.sin(), index.cos()), dim=-1).flatten(1)

    def features(self, source: Tensor, inputs: Tensor) -> Tensor:
        """The last hidden states."""
        padding = source == PADDING
        x = self.source_embedding(source) * math.sqrt(D_MODEL) + self.positions[: source.shape[1]]
        y = self.embedding(inputs) * math.sqrt(D_MODEL) + self.positions[: inputs.shape[1]]
        return self.stacks(
            x,
            y,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1]),
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )

    def loss(self, source: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss as torch has it."""
        logits = self.head(self.features(source, inputs)).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), label_smoothing=SMOOTHING)


class TorchStacks(EncoderDecoder):
    """Our embedding, head and loss around torch's stacks."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config)
        self.encoder = self.decoder = nn.Identity()
        self.stacks = make_stacks()

    def features(self, tokens: Tensor, *, source: Tensor | None = None, **_: object) -> Tensor:
        """The last hidden states."""
        assert source is not None  # noqa: S101 - this network only trains
        padding = source == PADDING
        x = self._embed(source, make_layout(self.config, source), self.source_embedding, None)
        y = self._embed(tokens, make_layout(self.config, tokens), self.embedding, None)
        return self.stacks(
            x,
            y,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]),
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )


def random_sentences(words: int) -> Tensor:
    """Sentences of different lengths, padded."""
    lengths = torch.randint(SHORTEST, LONGEST + 1, (BATCH, 1))
    lengths[0] = LONGEST
    tokens = torch.randint(4, words, (BATCH, LONGEST))
    return tokens.masked_fill(torch.arange(LONGEST) >= lengths, PADDING)


def training_step(network: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """A call that makes one step on one fixed batch."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

    def call() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def compare_steps(effort: Effort) -> None:
    """Print our step over torch's."""
    source, target = random_sentences(SOURCE_WORDS), random_sentences(WORDS)
    inputs = F.pad(target[:, :-1], (1, 0), value=BEGIN)
    targets = target.masked_fill(target == PADDING, -100)
    counted = int((targets != -100).sum())
    ours, torch_network = make_network("QKV"), TorchNetwork()
    others = {
        "ours": ours,
        "torch.nn stacks": TorchStacks(ours.config),
        "ours, Q-K=V": make_network("Q-K=V"),
    }

    def fused_loss(network: EncoderDecoder) -> Callable[[], Tensor]:
        return lambda: (
            network(inputs, source=source, targets=targets, smoothing=SMOOTHING) / counted
        )

    steps = {name: training_step(one, fused_loss(one)) for name, one in others.items()}
    steps["torch.nn"] = training_step(
        torch_network, lambda: torch_network.loss(source, inputs, targets)
    )
    timing = take_turns(steps, effort)
    for name, other in (("ours", "torch.nn"), ("ours", "torch.nn stacks"), ("ours, Q-K=V", "ours")):
        print_case(
            "translation",
            f"training step, {name} over {other}: d_model {D_MODEL}, layers {LAYERS}, "
            f"{BATCH} sentences, {WORDS:,} words",
            timing.ratio(name, other),
            goal=NOT_SLOWER,
            better="lower",
            timing=timing,
        )


def compare_decoding(effort: Effort, rows: int) -> None:
    """Print how much faster the cache translates, without an end before 100 tokens."""
    network = make_network("Q-K=V").eval()
    source = random_sentences(SOURCE_WORDS)[:rows]
    most = 20 if effort == QUICK else NEW_TOKENS

    def with_cache(options: CacheOptions) -> list[tuple[int, ...]]:
        with torch.inference_mode():
            memory, mask = network.encode(source)
        return generate(
            network,
            [(BEGIN,)] * rows,
            max_new_tokens=most,
            new_cache=lambda limit: EncoderDecoderCache(
                network.config, memory, mask, max_tokens=limit, options=options
            ),
        )

    def without() -> list[tuple[int, ...]]:
        tokens = torch.full((rows, 1), BEGIN)
        with torch.inference_mode():
            for _ in range(most):
                new = network.head(network.features(tokens, source=source)[:, -1:]).argmax(-1)
                tokens = torch.cat((tokens, new), dim=1)
        return [tuple(row) for row in tokens[:, 1:].tolist()]

    caches = {"cache": FAST, "cache, layer by layer": CacheOptions()}
    timing = take_turns(
        {**{name: partial(with_cache, one) for name, one in caches.items()}, "no cache": without},
        effort,
    )
    expected = without()
    for name, options in caches.items():
        # In float32 two nearly equal words may change places.
        pairs = zip(with_cache(options), expected, strict=True)
        print_case(
            "translation",
            f"{most} new tokens of {rows} sentences, no cache over {name}",
            timing.ratio("no cache", name),
            goal=WITH_CACHE if options is FAST else NOT_SLOWER,
            better="higher",
            timing=timing,
            equal_translations=sum(ours == theirs for ours, theirs in pairs),
        )


def main() -> None:
    """Measure steps, and decoding of one sentence and of a batch."""
    effort = read_effort(full=FULL, quick=QUICK)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    compare_steps(effort)
    for rows in (1,) if effort == QUICK else (1, BATCH):
        compare_decoding(effort, rows)


if __name__ == "__main__":
    main()
