"""Language: predict the next token of a prepared set of documents."""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.prepared import PreparedData, TokenSplit, open_prepared
from qkvary.data.prepared_sets import find_prepared
from qkvary.data.rows import PackedRows, PaddedRows, Rows, rows_of_step
from qkvary.data.token_bytes import TokenBytes, count_token_bytes, find_boundary_tokens
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    IGNORE_INDEX,
    SINGLE_PROCESS_CONTEXT,
    Batch,
    EvaluationContext,
    ProcessGroup,
    Split,
    build_language_model,
    plain_example,
)
from qkvary.tasks.examples import AttentionExample
from qkvary.text.numbers import perplexity

SHOWN_TOKENS = 24


class LanguageTask:
    """Predict every token of a window from the tokens before it.

    Loss: cross entropy in nats per token. With ``padded-paper``, the separators that pad a short
    document count as well, as in paper 1.

    With ``packed``, every token of a split except the first is scored once, up to the limits of the
    configuration. The test split is then scored again, with one document per row. With
    ``padded-paper``, every split has one document per row. The metrics are:

    - ``loss``, ``perplexity`` and ``bits_per_byte`` follow the protocol of the task, without
      padding (one separator per document is not padding);
    - ``document_loss`` is the loss without padding, with one document per row;
    - ``paper_loss`` and ``paper_perplexity`` are measured with one document per row and with
      padding, as printed in paper 1;
    - ``real_share`` is the share of tokens that are not padding.

    Source: Kayyam et al. 2026, section 4, and its public code.
    """

    def __init__(self, config: LanguageTaskConfig, data: PreparedData | None = None) -> None:
        self.config = config
        self.data = open_prepared(find_prepared(config.data)) if data is None else data
        config.require(self.data.fingerprint)
        (_, train), context = self.data.find_split("train"), config.context
        self._train = (
            PackedRows(train, context)
            if config.protocol == "packed"
            else PaddedRows(train, context, self.data.separator)
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the data set."""
        return self.data.tokenizer

    def build(self, network: Network, seed: int) -> LanguageModel:
        """Build the language model."""
        size = self.data.vocabulary
        return build_language_model(network, seed, self.config, size, more=True)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the next rows of the shuffled epoch. A batch may span two epochs."""
        numbers = rows_of_step(step, batch_size, rows=self._train.rows, seed=seed, chosen=rows)
        documents = None
        if self.config.document_mask and isinstance(self._train, PackedRows):
            documents = self._train.documents(numbers)
        return _make_batch(self._train.read(numbers), documents)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross entropy of the counted tokens, in nats."""
        return batch.mean(_loss_sum(model, batch))

    def evaluate(
        self, model: nn.Module, split: Split, context: EvaluationContext = SINGLE_PROCESS_CONTEXT, /
    ) -> dict[str, float]:
        """Score a split, or only its first tokens if the task sets a limit."""
        processes = context.processes
        (_, part), config = self.data.find_split(split), self.config
        limit = config.test_tokens if split == "test" else config.validation_tokens
        padded = self.config.protocol == "padded-paper"
        documents = None
        if padded or split == "test":
            documents = self._score_documents(model, part, limit, processes)
        own = documents if padded else self._score_windows(model, part, limit, processes)
        sums = cast("_Sums", own)
        loss = sums.real_nats / sums.real
        scores = {
            "loss": loss,
            "perplexity": perplexity(loss),
            "bits_per_byte": sums.real_nats / math.log(2) / max(1.0, sums.text_bytes),
        }
        if documents is None:
            return scores
        return scores | {
            "document_loss": documents.real_nats / documents.real,
            "paper_loss": documents.nats / documents.counted,
            "paper_perplexity": perplexity(documents.nats / documents.counted),
            "real_share": documents.real / documents.counted,
        }

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the first tokens of the validation split."""
        _, part = self.data.find_split("validation")
        tokens = part.read(0, min(SHOWN_TOKENS, self.config.context, part.tokens))
        shown = map(self._print_token, tokens.tolist(), [None, *tokens.tolist()])
        return plain_example(model, torch.from_numpy(tokens)[None], shown)

    # ---- rows

    def _cut(self, split: TokenSplit, starts: Rows, length: int) -> Batch:
        """Return one row of ``length`` tokens per element of ``starts``, its first position."""
        is_masked = self.config.document_mask
        documents = split.documents_of(starts[:, None] + np.arange(length)) if is_masked else None
        return _make_batch(split.gather(starts, length + 1), documents)

    # ---- scores

    def _score_windows(
        self, model: nn.Module, split: TokenSplit, limit: int | None, processes: ProcessGroup
    ) -> "_Sums":
        """Score consecutive windows. The last window may be shorter."""
        context, device = self.config.context, next(model.parameters()).device
        targets = min(split.tokens - 1, limit or split.tokens)
        whole, rest = divmod(targets, context)
        size = self.config.evaluation_batch_size
        starts = np.arange(whole) * context
        parts = [(starts[first : first + size], context) for first in range(0, whole, size)]
        parts += [(np.array([whole * context]), rest)] if rest else []
        sums = np.zeros(len(_Sums._fields))
        for number, weight in _batches_of_rank(len(parts), processes):
            batch = self._cut(split, *parts[number])
            nats = _loss_sum(model, batch.to(device)).item()
            count, length = batch.targets.numel(), self._bytes_of(batch)
            sums += weight * np.array([nats, count, nats, count, length])
        return _Sums(*processes.all_reduce(sums.tolist()))

    def _score_documents(
        self, model: nn.Module, split: TokenSplit, limit: int | None, processes: ProcessGroup
    ) -> "_Sums":
        """Score rows of one document each, with padding and without padding."""
        context, device = self.config.context, next(model.parameters()).device
        source = PaddedRows(split, context, self.data.separator)
        rows = source.rows if limit is None else min(source.rows, -(-limit // context))
        size, sums = self.config.evaluation_batch_size, np.zeros(len(_Sums._fields))
        for number, weight in _batches_of_rank(-(-rows // size), processes):
            numbers = np.arange(number * size, min((number + 1) * size, rows))
            batch = _make_batch(source.read(numbers))
            lengths = torch.from_numpy(source.lengths(numbers))
            is_real = torch.arange(1, context + 1) < lengths[:, None]
            real = batch._replace(targets=batch.targets.where(is_real, IGNORE_INDEX))
            nats, real_nats = (_loss_sum(model, one.to(device)).item() for one in (batch, real))
            counted, length = batch.targets.numel(), self._bytes_of(real)
            sums += weight * np.array([nats, counted, real_nats, real.counted, length])
        return _Sums(*processes.all_reduce(sums.tolist()))

    @cached_property
    def _token_bytes(self) -> TokenBytes:
        marks = find_boundary_tokens(self.tokenizer, self.data.separator)
        return count_token_bytes(self.tokenizer, marks)

    def _bytes_of(self, batch: Batch) -> int:
        """Return the number of UTF-8 bytes of the counted targets."""
        counted = batch.targets != IGNORE_INDEX
        tokens, before = (part[counted].numpy() for part in (batch.targets, batch.inputs))
        return int(self._token_bytes.of(tokens, before).sum())

    def _print_token(self, token: int, after: int | None = None) -> str:
        text = self.tokenizer.piece(token, after=after).decode("utf-8", errors="replace")
        return text.replace("\n", "↵").replace(" ", "␣") or "¶"


def _make_batch(rows: Rows, documents: Rows | None = None) -> Batch:
    tokens = torch.from_numpy(rows)
    numbers = None if documents is None else torch.from_numpy(documents)
    return Batch(tokens[:, :-1], tokens[:, 1:], numbers)


class _Sums(NamedTuple):
    nats: float
    counted: float
    real_nats: float
    real: float
    text_bytes: float


def _loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch.inputs, targets=batch.targets, document_ids=batch.documents)


def _batches_of_rank(batches: int, processes: ProcessGroup) -> Iterator[tuple[int, float]]:
    """Yield the numbers of the batches that a rank scores, with their weights.

    All ranks get equally many batches, because a forward pass may be a collective operation. A rank
    with one batch fewer repeats the last batch with weight 0.
    """
    for first in range(0, batches, processes.size):
        number = first + processes.rank
        yield min(number, batches - 1), float(number < batches)


load = LanguageTask
