"""Decoding steps of fixed shapes, which a GPU replays as one graph.

Launching the kernels of a step from Python takes longer than running them. A graph is launched as a
whole, but always with the same shapes and addresses. So a step of fixed shapes reads the first
``size`` slots of the cache, and a mask hides empty slots. The newest token is written to
two slots: to the last slot, where the step attends to it, and to its regular slot. The regular slot
is hidden until the next step.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.nn.cache import KVCache
from qkvary.nn.decoder import Decoder, device_of

LEAST_SIZE = 256
PARTS = 8
"""Let 2^n be the largest power of two up to the number of tokens. A size is a multiple of
``LEAST_SIZE``, or of 2^n / ``PARTS`` if that is more."""


class FixedStep:
    """A decoding step whose shapes stay the same for many tokens.

    Up to rounding, it computes what the network computes layer by layer. The cache belongs to the
    caller, who may crop, clear and reorder it between steps.
    """

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        self._size = self._next = -1
        self._is_masked = False
        self._addresses: tuple[object, ...] = ()

    def __call__(
        self,
        tokens: Int[Tensor, " rows"],
        attention_mask: Bool[Tensor, "rows tokens"] | None = None,
    ) -> Float[Tensor, "rows vocabulary"]:
        """Return the logits after one new token per row, and add the tokens to the cache."""
        rows, length = tokens.shape[0], self.cache.length
        buffers = self.cache.layers[0].claim(1, rows)
        addresses = (rows, *(one.data_ptr() for one in buffers.values() if isinstance(one, Tensor)))
        if length >= self._size or addresses != self._addresses:
            # At most what the network supports; the network itself refuses a longer text.
            most = min(self.cache.layers[0].max_tokens or length + 1, self.model.config.max_tokens)
            self._size = choose_size(length + 1, max(most, length + 1))
            self._addresses = addresses
            self._start(tokens, length, attention_mask)
            self._prepare()
        elif length != self._next or self._is_masked or attention_mask is not None:
            # Rows of the cache may have been reordered, and padding with them.
            self._move(length, attention_mask)
        self._tokens.copy_(tokens)
        logits = self._run()
        for layer in self.cache.layers:
            layer.commit(1)
        self._next = length + 1
        return logits

    def _start(self, tokens: Tensor, length: int, mask: Tensor | None) -> None:
        """Allocate the buffers that a step reads."""
        rows, device = len(tokens), tokens.device
        self._tokens = tokens.clone()
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        self._mask = torch.zeros(rows, self._size, dtype=torch.bool, device=device)
        self._positions = torch.zeros(rows, self._size, dtype=torch.long, device=device)
        for layer in self.cache.layers:
            for buffer in layer.claim(1, rows).values():
                if isinstance(buffer, Tensor):
                    # Uninitialised memory may hold infinities, and 0 times infinity is NaN.
                    buffer[:, :, length : self._size] = 0
        self._view = self.cache.view(self._size, self._place)
        self._move(length, mask)

    def _move(self, length: int, mask: Tensor | None) -> None:
        """Set the slot and position of the next token, and the slots that it attends to."""
        self._place.fill_(length)
        self._mask.fill_(False)
        self._mask[:, :length] = True if mask is None else mask[:, :length].bool()
        # The last position holds the newest token; its regular position stays hidden until the next
        # step.
        self._mask[:, -1] = True
        before = 0 if mask is None else mask.long().argmax(dim=-1, keepdim=True)
        places = torch.arange(self._size, device=self._place.device)
        self._positions.copy_((places - before).clamp_(min=0).expand_as(self._positions))
        self._positions[:, -1:] = length - before
        self._next, self._is_masked = length, mask is not None

    def _forward(self) -> Tensor:
        """Run the network on the new tokens, cache them, and advance by one slot."""
        for layer in self._view.layers:
            layer.crop(self._size - 1)
        logits = self.model(
            self._tokens[:, None],
            cache=self._view,
            attention_mask=self._mask,
            positions=self._positions,  # pyright: ignore[reportCallIssue]
        )[:, -1]
        self._mask.index_fill_(1, self._place, True)
        self._positions[:, -1] += 1
        self._place += 1
        return logits

    def _prepare(self) -> None:
        """Prepare to run steps of the current size."""

    def _run(self) -> Tensor:
        return self._forward()


class GraphStep(FixedStep):
    """A ``FixedStep`` as a CUDA graph, captured again when the cache outgrows it."""

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        super().__init__(model, cache)
        self._pool = torch.cuda.graph_pool_handle()

    def _prepare(self) -> None:
        notes = (self._place, self._mask, self._positions)
        before = [one.clone() for one in notes]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Choose and build kernels and initialise libraries before the capture.
            self._forward()
        torch.cuda.current_stream().wait_stream(stream)
        for one, other in zip(notes, before, strict=True):
            one.copy_(other)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._logits = self._forward()
        # The previous graph keeps the memory pool alive until here.
        self._graph = graph

    def _run(self) -> Tensor:
        self._graph.replay()
        # The next replay overwrites this tensor.
        return self._logits.clone()


def supports(model: Decoder, cache: KVCache) -> bool:
    """Return whether a network with this cache can decode with graphs."""
    return device_of(model).type == "cuda" and has_fixed_shapes(cache)


def has_fixed_shapes(cache: KVCache) -> bool:
    """Return whether, in every layer, tokens never move and attention is not strided."""
    return type(cache) is KVCache and all(
        layer.has_fixed_memory and layer.config.variant.stride is None for layer in cache.layers
    )


def choose_size(tokens: int, capacity: int) -> int:
    """Return the number of slots that a step reads: ``tokens`` rounded up to one of a few sizes."""
    step = max(LEAST_SIZE, (1 << (tokens.bit_length() - 1)) // PARTS)
    return min(capacity, -(-tokens // step) * step)
