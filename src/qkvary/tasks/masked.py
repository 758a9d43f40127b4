"""Masked: predict hidden characters of tiny Shakespeare from the characters on both sides."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.data.rows import LARGEST_COUNT, random_indices
from qkvary.data.shakespeare import load_shakespeare
from qkvary.nn.encoder import Encoder
from qkvary.tasks.characters import PRINTED
from qkvary.tasks.config import MaskedTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    IGNORE_INDEX,
    Batch,
    ClassificationTask,
    Split,
    build_encoder,
    plain_example,
)
from qkvary.tasks.examples import AttentionExample

TRAIN_FRACTION = 0.9
HIDDEN, REPLACED = 0.8, 0.1
"""Share of the predicted characters that are hidden, and share that are replaced by random
characters. All others stay visible."""
PRINTED_MASK = "▒"


class MaskedTask(ClassificationTask[MaskedTaskConfig]):
    """Predict randomly chosen characters of a window from the whole window.

    80 % of the chosen characters are replaced by a mask, 10 % by random characters, and 10 % are
    kept. Loss: mean cross entropy in nats per predicted character. The last tenth of the text is
    both validation and test split. The same characters are hidden in every evaluation.

    Source: Devlin et al. 2019 (BERT), section 3.1.
    """

    def __init__(self, config: MaskedTaskConfig) -> None:
        super().__init__(config)
        text = load_shakespeare()
        self.alphabet = text.alphabet
        # A copy, because torch shares memory with numpy and the text is read-only.
        self._train, held_out = (torch.tensor(part) for part in text.split(TRAIN_FRACTION))
        self._held_out = held_out[: config.scored_characters]
        if len(self._held_out) < config.context:
            raise ValueError(
                f"expected a context of at most {len(self._held_out)}, the number of held-out "
                f"characters, got {config.context}"
            )

    def build(self, network: Network, seed: int) -> Encoder:
        """Build the encoder; its vocabulary has one additional token for the mask."""
        size = len(self.alphabet)
        exact = {"pooling": "none", "vocabulary": size + 1, "classes": size}
        return build_encoder(network, seed, self.config.name, self.config.context, **exact)

    def scored(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits and targets of the predicted characters only."""
        # Indices instead of masks: the host waits for a GPU only once.
        chosen = (batch.targets != IGNORE_INDEX).nonzero(as_tuple=True)
        encoder = cast("Encoder", model)
        return encoder.head(encoder.features(batch.inputs)[chosen]), batch.targets[chosen]

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return random windows, drawn with replacement."""
        count = len(self._train) - self.config.context + 1
        starts = random_indices(batch_size, count, "masked windows", seed, step)
        hidden = self._hide(self._windows(self._train, torch.from_numpy(starts)), seed, step)
        return Batch(hidden.inputs[rows], hidden.targets[rows])

    def evaluation_batches(self, split: Split) -> Iterator[Batch]:
        """Yield consecutive windows of the held-out text."""
        del split
        starts = torch.arange(0, len(self._held_out) - self.config.context + 1, self.config.context)
        whole = self._hide(self._windows(self._held_out, starts))
        size = self.config.evaluation_batch_size
        parts = (part.split(size) for part in (whole.inputs, whole.targets))
        return (Batch(*some) for some in zip(*parts, strict=True))

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        """Return the attention maps of the first held-out window."""
        tokens = next(iter(self.evaluation_batches("validation"))).inputs[:1]
        printed = self.alphabet + PRINTED_MASK
        characters = [printed[token] for token in tokens[0].tolist()]
        return plain_example(model, tokens, [PRINTED.get(one, one) for one in characters])

    def _windows(self, text: Tensor, starts: Tensor) -> Tensor:
        return text[starts[:, None] + torch.arange(self.config.context)]

    def _hide(self, windows: Tensor, *purpose: int) -> Batch:
        """Choose the characters to predict, equally many per window, and hide most of them."""
        count, mask = max(1, round(self.config.share * self.config.context)), len(self.alphabet)

        def draw(what: str, below: int) -> Tensor:
            drawn = random_indices(windows.numel(), below, f"masked {what}", *purpose)
            return torch.from_numpy(drawn).view_as(windows)

        ranks = draw("places", LARGEST_COUNT).argsort(dim=-1).argsort(dim=-1)
        fate = draw("fates", LARGEST_COUNT) / LARGEST_COUNT
        changed = torch.where(fate < HIDDEN, mask, draw("replacements", mask))
        is_chosen = ranks < count
        is_changed = is_chosen & (fate < HIDDEN + REPLACED)
        return Batch(
            torch.where(is_changed, changed, windows),
            torch.where(is_chosen, windows, IGNORE_INDEX),
        )


load = MaskedTask
