"""Runs decoding steps: as one native call, as a CUDA graph on a GPU, or layer by layer.

The device, the network and the number of rows decide which of the three is used, so that generated
text never depends on timing.
"""

import math
import warnings

from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.inference import graph_step
from qkvary.nn.cache import KVCache
from qkvary.nn.decoder import Decoder, device_of
from qkvary.nn.decoding import step as native_step
from qkvary.nn.decoding.native import library

MOST_ROWS = 50
"""Maximum number of rows for which ``auto`` uses the native step. Compared with running the layers,
the native step takes 0.2 to 0.7 times as long for up to 8 rows, 0.7 to 1.1 times for 50 rows, and
0.7 to 1.9 times for 64 rows, where matmuls over all rows pay off (width 128 to 512, one thread)."""


class Stepper:
    """Runs one token per row through a network and its cache.

    The cache's kernel decides how. ``native`` runs the step as one native call, if the network and
    the cache support that. ``auto`` makes the native call for small batches, replays a CUDA graph
    on a GPU, and otherwise runs the layers one by one. Any other name runs the layers with the
    kernel of that name; ``layer`` uses the same attention code as a forward pass without a cache.
    """

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        kernel = cache.layers[0].kernel
        self._native: native_step.NativeStep | None = None
        self._graph: graph_step.GraphStep | None = None
        self._most_native_rows = math.inf if kernel == "native" else MOST_ROWS
        self._has_started = False
        if kernel in ("auto", "native") and native_step.supports(model, cache):
            self._native = native_step.NativeStep(model, cache)
        if kernel == "auto" and graph_step.supports(model, cache):
            self._graph = graph_step.GraphStep(model, cache)
        elif kernel == "auto" and device_of(model).type != "cuda" and library() is None:
            # Without the native library, no decoding kernel is faster than the layers.
            for layer in cache.layers:
                layer.kernel = None

    def __call__(
        self,
        tokens: Int[Tensor, " rows"],
        attention_mask: Bool[Tensor, "rows tokens"] | None = None,
    ) -> Float[Tensor, "rows vocabulary"]:
        """Return the logits after one new token per row, and add the tokens to the cache."""
        if self._native is not None and tokens.shape[0] <= self._most_native_rows:
            return self._native(tokens, attention_mask)
        if self._graph is not None and not self._has_started:
            self._try_graph(self._graph, tokens, attention_mask)
        if self._graph is not None:
            return self._graph(tokens, attention_mask)
        return self.model(tokens[:, None], cache=self.cache, attention_mask=attention_mask)[:, -1]

    def _try_graph(self, graph: graph_step.GraphStep, tokens: Tensor, mask: Tensor | None) -> None:
        """Take a trial step with the graph and undo the step. If it fails, no graph is used."""
        self._has_started = True
        length = self.cache.length
        try:
            graph(tokens, mask)
        except RuntimeError as error:
            warnings.warn(f"decoding runs without 'graph': {error}", stacklevel=2)
            self._graph = None
        finally:
            self.cache.crop(length)
