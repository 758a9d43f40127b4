"""A network of this project decoded by transformers, in its architecture with its ``generate``.

The network is exported to GPT-2 or Llama with equal weights; shared weights are copied. Needs the
extra ``hf``.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from qkvary.arch.families.table import read_model
from qkvary.checkpoints.huggingface.stock import export_stock
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.engines import allocate_static
from qkvary.costs.formats import Dtype
from qkvary.nn.language_model import LanguageModel
from timing.answers import Clocks, Rows, TimedAnswer, begin

StockCache = Literal["dynamic", "static"]
"""The caches of transformers that are measured."""
ATTENTION = "sdpa"
"""The attention implementation of transformers that is measured."""


class _Clock:
    """A streamer that records when tokens arrive: first the prompts, then one token per row."""

    def __init__(self) -> None:
        self.moments: list[Clocks] = []

    def put(self, _: Tensor, /) -> None:
        """Record the time; the values are already on the CPU."""
        self.moments.append(Clocks.now())

    def end(self) -> None:
        """Do nothing."""


class StockModel:
    """One exported network."""

    def __init__(self, network: LanguageModel) -> None:
        """Export and build the network.

        Args:
            network: The network, which is not changed.

        Raises:
            ValueError: if neither GPT-2 nor Llama can express it.
        """
        exported = export_stock(network)
        self.notes = exported.notes
        self.model: Any = exported.build().to(network.embedding.device)
        self.model.set_attn_implementation(ATTENTION)
        self.architecture = str(self.model.config.model_type)

    def cache_formula_bytes(self, cache: StockCache, *, tokens: int, dtype: Dtype) -> int:
        """Return the bytes of a cache for one sequence by the cost model."""
        model = read_model(self.model.config.to_dict(), self.architecture)
        count = model_cache_bytes if cache == "dynamic" else allocate_static
        return count(model, context=tokens, stored_as=dtype)

    def answer(
        self,
        prompts: Rows,
        new_tokens: int,
        *,
        cache: StockCache = "dynamic",
        chunk: int | None = None,
    ) -> TimedAnswer:
        """Answer greedily with ``generate``.

        Args:
            prompts: Prompts of equal length.
            new_tokens: New tokens per row.
            cache: The cache to use.
            chunk: Prompt tokens per forward pass; all by default.
        """
        tokens = torch.tensor(prompts, device=self.model.device)
        clock = _Clock()
        start = begin(tokens.device)
        with torch.inference_mode():
            found = self.model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                cache_implementation=None if cache == "dynamic" else cache,
                prefill_chunk_size=chunk,
                eos_token_id=None,
                pad_token_id=0,
                streamer=clock,
                return_dict_in_generate=True,
            )
        end = begin(tokens.device)
        answers: list[list[int]] = found.sequences[:, tokens.shape[1] :].tolist()
        return TimedAnswer(
            tokens=tuple(map(tuple, answers)),
            first=clock.moments[1].since(start),
            whole=end.since(start),
            cache_bytes=sum(
                one.keys.nbytes + one.values.nbytes for one in found.past_key_values.layers
            ),
        )
