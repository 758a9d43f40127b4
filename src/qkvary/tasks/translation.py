"""Translation: translate sentences, such as English sentences to German."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from qkvary.arch.networks import EncoderDecoderConfig, Network
from qkvary.data.rows import epoch_batch
from qkvary.data.translations import Sentences, load_translations
from qkvary.data.word_tokenizer import BEGIN, END, PADDING, WordTokenizer
from qkvary.nn.encoder_decoder import EncoderDecoder, EncoderDecoderCache
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require
from qkvary.tasks.bleu import sacrebleu_score, word_bleu
from qkvary.tasks.config import TranslationTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    IGNORE_INDEX,
    SINGLE_PROCESS_CONTEXT,
    Batch,
    EvaluationContext,
    Generate,
    Split,
    build_network,
)
from qkvary.tasks.examples import AttentionExample, Sample

SAMPLES = 6


_Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Pairs of the tokens of a source and of its target, both with begin and end token."""


class TranslationTask:
    """Translate sentences with an encoder-decoder, using the words of the training split.

    Loss: the KL divergence of the network's output from label-smoothed targets, in nats per target
    token, the end token included. With ``as-published``, ``loss`` also averages over padding
    tokens, whose loss is 0, and ``token_loss`` is the loss per real token.

    Translations are decoded greedily. ``bleu`` is the corpus BLEU of sacreBLEU, from 0 to 100.
    ``published_bleu`` is the BLEU of paper 2's code, from 0 to 1. It compares words, treats all
    rare words as equal, and counts the begin and end tokens. This inflates the score.

    Source: Borji 2023 (Key-Value Transformer), section 3.6, and its code. The rule that splits text
    into words differs: the code uses spaCy.
    """

    tokenizer = None

    def __init__(self, config: TranslationTaskConfig) -> None:
        require("sacrebleu")
        self.config = config
        self.data = load_translations(config.data, config.languages)
        config.require(self.data.fingerprint)
        train = self.data.splits["train"]
        self.source_words, self.target_words = (
            WordTokenizer.learn(train[language], min_count=config.min_count)
            for language in (config.source, config.target)
        )
        self._splits = {split: self._encode(some) for split, some in self.data.splits.items()}

    def build(self, network: Network, seed: int) -> EncoderDecoder:
        """Build the encoder-decoder."""
        exact = {
            "source_vocabulary": self.source_words.vocabulary,
            "vocabulary": self.target_words.vocabulary,
            "padding": PADDING,
        }
        return build_network(
            network,
            seed,
            EncoderDecoderConfig,
            EncoderDecoder,
            task=self.config.name,
            exact=exact,
            least={"max_tokens": self.config.max_tokens},
        )

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the next pairs of the shuffled epoch; a last partial batch is dropped."""
        pairs = self._splits["train"]
        order = epoch_batch(len(pairs), batch_size, step=step, seed=seed)
        return self._make_batch(pairs, order.tolist(), rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the training loss that the protocol defines."""
        return batch.mean(self._loss_sum(model, batch))

    def evaluate(
        self, model: nn.Module, split: Split, context: EvaluationContext = SINGLE_PROCESS_CONTEXT, /
    ) -> dict[str, float]:
        """Score a split: the losses, ``bleu`` and ``published_bleu``."""
        pairs = self._splits[split]
        device = next(model.parameters()).device
        total, words, means = 0.0, 0, list[float]()
        with torch.inference_mode():
            for batch in self._batches(pairs):
                found = self._loss_sum(model, batch.to(device)).item()
                is_word = (batch.targets != PADDING) & (batch.targets != IGNORE_INDEX)
                total, words = total + found, words + int(is_word.sum())
                means.append(found / batch.counted)
            answers = self.translate(model, split, context.generate)
        written = [self.target_words.decode(answer) for answer in answers]
        scores = {
            "bleu": sacrebleu_score(written, self.data.splits[split][self.config.target]),
            "published_bleu": word_bleu(
                [self._mark(answer) for answer in answers],
                [target for _, target in pairs],
            ),
        }
        if self.config.protocol == "clean":
            return {"loss": total / words, **scores}
        # The published code averages the mean losses of its batches.
        return {"loss": statistics.fmean(means), "token_loss": total / words, **scores}

    def translate(
        self,
        model: nn.Module,
        split: Split,
        generate: Generate | None = None,
        most: int | None = None,
    ) -> list[tuple[int, ...]]:
        """Translate sentences of a split greedily, and return the tokens of the translations.

        ``most`` limits the number of sentences. Without ``generate``, or if the network has no
        step-by-step decoding, every step recomputes the whole translation so far.
        """
        # A training wrapper such as DDP only has ``forward``.
        network = cast("EncoderDecoder", getattr(model, "module", model))
        device = next(model.parameters()).device
        longest, answers = self.config.max_tokens, list[tuple[int, ...]]()
        stepwise = network.config.cross_kind.make is None
        with torch.inference_mode():
            for batch in self._batches(self._splits[split][:most]):
                source = cast("Tensor", batch.source).to(device)
                if generate is None or not stepwise:
                    answers += _translate_whole(network, source, longest)
                    continue
                encoded = network.encode(source)

                def new_cache(limit: int, encoded: Any = encoded) -> EncoderDecoderCache:
                    return EncoderDecoderCache(network.config, *encoded, max_tokens=limit)

                answers += generate(
                    network,
                    [(BEGIN,)] * len(source),
                    max_new_tokens=longest,
                    stop_tokens=(END,),
                    new_cache=new_cache,
                )
        return answers

    def samples(self, model: nn.Module, generate: Generate | None = None) -> tuple[Sample, ...]:
        """Return the first sentences of the validation split and their translations."""
        sentences, config = self.data.splits["validation"], self.config
        answers = self.translate(model, "validation", generate, most=SAMPLES)
        return tuple(
            Sample(text=text, truth=truth, answer=self.target_words.decode(answer))
            for text, truth, answer in zip(
                sentences[config.source][:SAMPLES],
                sentences[config.target][:SAMPLES],
                answers,
                strict=True,
            )
        )

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the first validation sentence and its reference.

        In cross attention, rows are words of the reference and columns words of the source; the
        other maps are the self-attention of encoder and decoder.
        """
        source, target = self._splits["validation"][0]
        device = next(model.parameters()).device
        with torch.inference_mode():
            maps = cast("EncoderDecoder", model).attention_maps(
                torch.tensor([target[:-1]], device=device), torch.tensor([source], device=device)
            )
        read = tuple(self.source_words.words[token].strip() for token in source)
        written = tuple(self.target_words.words[token].strip() for token in target[:-1])
        cross, encoder, decoder = (
            AttentionExample(
                kind=kind,
                maps=found[0].float().cpu().numpy(),
                tokens=tokens,
                targets=(None,) * found.shape[-2],
            )
            for kind, found, tokens in (
                ("cross attention", maps.cross, read),
                ("encoder", maps.encoder, read),
                ("decoder", maps.decoder, written),
            )
        )
        return replace(cross, others=(encoder, decoder))

    def _encode(self, sentences: Sentences) -> _Pairs:
        config = self.config
        sources, targets = (
            [[BEGIN, *words.encode(sentence), END] for sentence in side]
            for words, side in (
                (self.source_words, sentences[config.source]),
                (self.target_words, sentences[config.target]),
            )
        )
        # The last token of a target is not an input.
        longest = max(*map(len, sources), *(len(target) - 1 for target in targets))
        if longest > config.max_tokens:
            raise UsageError(
                f"expected sentences of at most {config.max_tokens} tokens in {config.data}, got "
                f"a sentence of {longest} tokens: raise max_tokens"
            )
        return list(zip(sources, targets, strict=True))

    def _batches(self, pairs: _Pairs) -> Iterator[Batch]:
        size = self.config.evaluation_batch_size
        for start in range(0, len(pairs), size):
            yield self._make_batch(pairs, range(start, min(start + size, len(pairs))))

    def _make_batch(self, pairs: _Pairs, order: Sequence[int], rows: slice = ALL_ROWS) -> Batch:
        """Return some sentence pairs of a batch as tensors, padded to its longest sentences."""
        source, target = (_pad([pairs[index][side] for index in order])[rows] for side in (0, 1))
        targets = target[:, 1:]
        if self.config.protocol == "clean":
            # With as-published, padding counts as targets, which dilutes the loss.
            targets = targets.masked_fill(targets == PADDING, IGNORE_INDEX)
        return Batch(inputs=target[:, :-1], targets=targets, source=source)

    def _loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(
            batch.inputs,
            source=batch.source,
            targets=batch.targets.masked_fill(batch.targets == PADDING, IGNORE_INDEX),
            smoothing=self.config.label_smoothing,
        )

    def _mark(self, answer: Sequence[int]) -> tuple[int, ...]:
        """Return a translation with begin and end tokens, as the published code scores it."""
        is_ended = len(answer) < self.config.max_tokens
        return (BEGIN, *answer, END) if is_ended else (BEGIN, *answer)


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    padded = torch.full((len(rows), max(map(len, rows))), PADDING)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row)
    return padded


def _translate_whole(
    model: EncoderDecoder, source: Tensor, max_new_tokens: int
) -> list[tuple[int, ...]]:
    """Translate a batch greedily without a cache, as the published code does."""
    tokens = torch.full((len(source), 1), BEGIN, device=source.device)
    ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    for _ in range(max_new_tokens):
        features = model.features(tokens, source=source)
        new = model.head(features[:, -1]).argmax(dim=-1)
        tokens = torch.cat((tokens, new[:, None]), dim=1)
        ended |= new == END
        if ended.all():
            break
    rows = cast("list[list[int]]", tokens[:, 1:].tolist())
    return [tuple(row[: row.index(END)] if END in row else row) for row in rows]


load = TranslationTask
