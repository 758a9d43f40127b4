"""The layout of the tokens of one call: positions, padding, documents and visibility.

A layout is computed once per call and shared by all layers. There are two kinds of position
tables: sinusoids and rotations. Both are computed in float64 and then cast.
"""

import functools
import math
import operator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import Positions
from qkvary.nn.shapes import PerHead


class Layout:
    """The positions of queries and keys of one forward call, and the resulting masks.

    The keys belong to all tokens so far, old and new. The queries belong to the new tokens, which
    come last. Which tokens see each other depends on the order of all tokens, padding included, and
    not on their positions. A window therefore counts padding too. Score terms depend on the
    positions.
    """

    def __init__(
        self,
        *,
        new_tokens: int,
        cached_tokens: int = 0,
        device: torch.device | None = None,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        document_ids: Tensor | None = None,
        query_positions: Tensor | None = None,
    ) -> None:
        """Check the arguments and compute the positions.

        Args:
            new_tokens: Number of tokens of this call.
            cached_tokens: Number of earlier tokens, whether or not a layer still stores them.
            device: The device of the masks.
            attention_mask: True or 1 for real tokens, False or 0 for padding, [batch, keys].
            positions: Positions of all tokens, [batch or 1, keys]; by default counted from the
                first real token of each document.
            document_ids: The document of each token, [batch, keys]. A token sees only its own
                document.
            query_positions: Positions of the queries, [batch or 1, queries], if their tokens are
                not among the keys, as in cross attention.
        """
        if attention_mask is not None:
            if attention_mask.is_floating_point():
                raise ValueError(
                    "expected attention_mask of booleans or of zeros and ones, got "
                    f"{attention_mask.dtype}"
                )
            attention_mask = attention_mask.bool()
        self.num_queries = new_tokens if query_positions is None else query_positions.shape[-1]
        self.num_keys = cached_tokens + new_tokens
        self.device = device
        self.attention_mask = attention_mask
        self.document_ids = document_ids
        self.document_before: Tensor | None = None
        """The document of the token before the first key, if the keys continue a sequence."""
        for name, tensor in (
            ("attention_mask", attention_mask),
            ("positions", positions),
            ("document_ids", document_ids),
        ):
            if tensor is not None and (tensor.ndim != 2 or tensor.shape[-1] != self.num_keys):
                raise ValueError(
                    f"expected {name} of shape [rows, {self.num_keys}] ({cached_tokens} cached and "
                    f"{new_tokens} new tokens), got {list(tensor.shape)}"
                )
        self._key_positions = positions
        if positions is None and not cached_tokens:
            # Positions of a continued text are counted only when they are read, because counting
            # takes time that grows with the text. A compiled block needs them in advance.
            self._key_positions = self._count_positions()
        self._query_positions = query_positions
        self._penalties: dict[tuple[bool, int | None, int | None, torch.dtype], Tensor | None] = {}
        self._rotations: dict[object, Rotation] = {}
        self._hidden: dict[int, Tensor | None] = {}
        self._ends: dict[int, Layout] = {}
        self._is_in_a_row = False

    @property
    def key_positions(self) -> Int[Tensor, "rows keys"]:
        """Positions of all tokens so far."""
        if self._key_positions is None:
            self._key_positions = self._count_positions()
        return self._key_positions

    @property
    def query_positions(self) -> Int[Tensor, "rows queries"]:
        """Positions of the queries. Unless given, they are the positions of the new tokens."""
        if self._query_positions is not None:
            return self._query_positions
        return self._positions_from(self.num_keys - self.num_queries)

    def _positions_from(self, first: int) -> Int[Tensor, "rows some"]:
        """Return the positions of the keys from ``first`` on; skip earlier keys if possible."""
        is_plain = self.attention_mask is None and self.document_ids is None
        if self._key_positions is None and is_plain:
            return torch.arange(first, self.num_keys, device=self.device)[None]
        return self.key_positions[:, first:]

    def distances(self) -> Int[Tensor, "rows queries keys"]:
        """Return the distance i - j from every key j to every query i, in tokens."""
        return self.query_positions[:, :, None] - self.key_positions[:, None, :]

    def with_queries(self, positions: Int[Tensor, "rows queries"]) -> "Layout":
        """Return a layout with the same keys and other queries, as in cross attention."""
        return Layout(
            new_tokens=self.num_keys,
            device=self.device,
            attention_mask=self.attention_mask,
            positions=self.key_positions,
            query_positions=positions,
        )

    def end(self, num_keys: int) -> "Layout":
        """Return the layout of the last ``num_keys`` keys; it is computed once and then reused."""
        first = self.num_keys - num_keys
        if first == 0:
            return self
        if num_keys not in self._ends:
            mask, documents = self.attention_mask, self.document_ids
            cut = Layout(
                new_tokens=self.num_queries,
                cached_tokens=num_keys - self.num_queries,
                device=self.device,
                attention_mask=None if mask is None else mask[:, first:],
                positions=self._positions_from(first),
                document_ids=None if documents is None else documents[:, first:],
            )
            cut.document_before = None if documents is None else documents[:, first - 1]
            self._ends[num_keys] = cut
        return self._ends[num_keys]

    def check_documents_in_a_row(self) -> None:
        """Check that no document interrupts another; a state holds one document at a time."""
        ids = self.document_ids
        if ids is None or self._is_in_a_row:
            return
        message = (
            "expected the tokens of each document in a row for a core that keeps a state, got "
            "document_ids that come back to an earlier document"
        )
        changed, fewest = (
            (one[:, 1:] != one[:, :-1]).sum(dim=-1) for one in (ids, ids.sort(dim=-1).values)
        )
        if torch.compiler.is_compiling():
            # A graph cannot branch on its tensors, and torch has no public name for this operation.
            torch.ops.aten._assert_async.msg((changed == fewest).all(), message)  # noqa: SLF001
        elif not torch.equal(changed, fewest):
            raise ValueError(message)
        else:
            # Checked once for all layers, because the host has to wait for a GPU's answer.
            self._is_in_a_row = True

    def blank(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        """Return ``x``, the layer input of the newest tokens, with zeros in place of padding."""
        if self.attention_mask is None:
            return x
        mask, count = self.attention_mask[:, self.num_keys - x.shape[1] :, None], x.shape[1]
        if torch.compiler.is_compiling() or mask.device.type != "cpu":
            # A graph cannot branch on its tensors, and the host would have to wait for the device.
            return x.masked_fill(~mask, 0.0)
        if count not in self._hidden:
            self._hidden[count] = None if bool(mask.all()) else ~mask
        hidden = self._hidden[count]
        return x if hidden is None else x.masked_fill(hidden, 0.0)

    def is_plain_causal(self, config: AttentionConfig) -> bool:
        """Return whether the mask is the full lower triangle. Kernels support it natively."""
        window = config.variant.window
        return (
            config.causal
            and config.variant.stride is None
            and (window is None or window >= self.num_keys)
            and self.num_queries == self.num_keys
            and self.attention_mask is None
            and self.document_ids is None
        )

    def penalty(
        self, config: AttentionConfig, dtype: torch.dtype
    ) -> Float[Tensor, "rows 1 queries keys"] | None:
        """Return the number to add to scores: 0 for visible pairs, and very low for hidden ones.

        The result is ``None`` if every query sees every key. Hidden pairs get half the dtype's
        lowest number, so that adding a score cannot overflow, and a row without visible keys gives
        no NaN.
        """
        key = (config.causal, config.variant.window, config.variant.stride, dtype)
        if torch.compiler.is_compiling():
            # The compiler finds equal parts itself, and a recomputed block must not store anything.
            return self._find_penalty(*key)
        if key not in self._penalties:
            self._penalties[key] = self._find_penalty(*key)
        return self._penalties[key]

    def rotation(
        self,
        config: AttentionConfig,
        dtype: torch.dtype,
        *,
        of_keys: bool = False,
        tokens: int | None = None,
    ) -> "Rotation | None":
        """Return the rotation of queries or keys, or None if the layer has no rotation.

        Layers share rotations. ``tokens`` is the length of the text, for a rotation that depends on
        it.
        """
        channels = config.rotated_channels
        if not channels:
            return None
        if torch.compiler.is_compiling():
            # As for penalties.
            positions = self.key_positions if of_keys else self.query_positions
            return Rotation(positions, config, dtype, tokens)
        key = (of_keys, channels, config.position, config.value_rope, dtype, tokens)
        if key not in self._rotations:
            positions = self.key_positions if of_keys else self.query_positions
            self._rotations[key] = Rotation(positions, config, dtype, tokens)
        return self._rotations[key]

    def _find_penalty(
        self, causal: bool, window: int | None, stride: int | None, dtype: torch.dtype
    ) -> Tensor | None:
        first = self.num_keys - self.num_queries
        blocked: list[Tensor] = []
        if causal and self.num_queries > 1:
            keys = torch.arange(self.num_keys, device=self.device)
            blocked.append((keys > keys[first:, None])[None, None])
        far = find_far(self.num_queries, self.num_keys, window, stride, self.device)
        if far is not None:
            blocked.append(far[None, None])
        if self.attention_mask is not None:
            blocked.append(~self.attention_mask[:, None, None, :])
        if self.document_ids is not None:
            own = self.document_ids[:, first:, None]
            blocked.append((own != self.document_ids[:, None, :])[:, None])
        if not blocked:
            return None
        return functools.reduce(operator.or_, blocked).to(dtype) * (torch.finfo(dtype).min / 2)

    def _count_positions(self) -> Tensor:
        index = torch.arange(self.num_keys, device=self.device)[None]
        if self.attention_mask is None and self.document_ids is None:
            return index
        start = torch.zeros_like(index)
        if self.document_ids is not None:
            first = torch.ones_like(self.document_ids, dtype=torch.bool)
            first[:, 1:] = self.document_ids[:, 1:] != self.document_ids[:, :-1]
            start = torch.where(first, index, 0).cummax(dim=-1).values
        if self.attention_mask is not None:
            real = self.attention_mask.long()
            seen = real.cumsum(dim=-1)
            before = (seen - real).gather(-1, start.expand_as(seen))
            # Padding at the beginning of a document moves the document's start to the next token.
            start = torch.where(seen == before, index + 1, start).cummax(dim=-1).values
        return (index - start).clamp(min=0)


def find_far(
    num_queries: int,
    num_keys: int,
    window: int | None,
    stride: int | None,
    device: torch.device | None,
) -> Bool[Tensor, "queries keys"] | None:
    """Return a mask of the pairs that a window and a stride hide, ``None`` if they hide none.

    A pair is hidden if it is at least a window apart and its distance is not a multiple of the
    stride.

    Source: the window and the stride of Child et al. 2019, "Generating Long Sequences with Sparse
    Transformers"; here both form one pattern, the same for every head.
    """
    if stride is None and (window is None or window >= num_keys):
        return None
    keys = torch.arange(num_keys, device=device)
    distances = (keys[num_keys - num_queries :, None] - keys).abs()
    if stride is None:
        return distances >= (window or 0)
    return (distances % stride != 0) & (distances >= (window or 0))


def sinusoid(
    positions: Int[Tensor, "batch tokens"], width: int, dtype: torch.dtype, kind: Positions
) -> Float[Tensor, "batch tokens width"]:
    """Return the Transformer's sinusoidal positions, base 10,000.

    In ``sinusoidal``, sine and cosine alternate. In ``sinusoidal-halves``, all sines come first.
    """
    table = interleave_sinusoids(positions, 2 * math.ceil(width / 2))
    if kind == "sinusoidal-halves":
        table = table.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return table[..., :width].to(dtype)


class Rotation:
    """Rotary positions on the trailing channels of a head: ``R(p)`` for given positions.

    The first half of the rotated slice pairs with the second half. Decoupled positions rotate all
    channels of separate heads.

    Source: Su et al. 2021, RoFormer.
    """

    def __init__(
        self,
        positions: Int[Tensor, "batch tokens"],
        config: AttentionConfig,
        dtype: torch.dtype,
        tokens: int | None = None,
    ) -> None:
        """Compute cosines and sines.

        ``tokens`` is the length of the text, by default one more than the highest position.
        """
        self.dim, scaling = config.rotated_channels, config.position.scaling
        self.factor = 1.0 if scaling is None else scaling.attention_factor
        if tokens is None and scaling is not None and scaling.depends_on_length:
            tokens = int(positions.max()) + 1 if positions.numel() else None
        angles = rotary_angles(positions[:, None], config, tokens)
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        self.cos, self.sin = cos.to(dtype), sin.to(dtype)
        self.value_rope = config.value_rope
        self.growth: Tensor | None = None
        """The factor that multiplies each query; it grows beyond the original text length."""
        if scaling is not None and scaling.query_growth:
            turns = torch.div(positions, scaling.original_tokens, rounding_mode="floor").double()
            growth = 1 + scaling.query_growth * torch.log1p(turns)
            self.growth = growth[:, None, :, None].to(dtype)

    def rotate(self, heads: PerHead, *, inverse: bool = False) -> PerHead:
        """Rotate by the positions or, with ``inverse``, rotate back by the transpose."""
        still, rotated = heads[..., : -self.dim], heads[..., -self.dim :]
        first, second = rotated.chunk(2, dim=-1)
        sin = -self.sin if inverse else self.sin
        parts = (still, first * self.cos - second * sin, second * self.cos + first * sin)
        return torch.cat(parts, dim=-1)

    def turn_back(self, rotated: PerHead) -> PerHead:
        """Undo the rotation of a tensor, including the rotation's factor."""
        back = self.rotate(rotated, inverse=True)
        if self.factor == 1.0:
            return back
        still, rotated = back[..., : -self.dim], back[..., -self.dim :]
        return torch.cat((still, rotated / self.factor**2), dim=-1)


def rotary_angles(
    positions: Int[Tensor, "*rows"], config: AttentionConfig, tokens: int | None
) -> Float[Tensor, "*rows pairs"]:
    """Return the angle of every rotated pair at some positions of a text, in float64."""
    dim, base = config.rotated_channels, config.position.rotary_base
    index = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device)
    frequencies = base ** (-index / dim)
    if (scaling := config.position.scaling) is not None:
        frequencies = frequencies / index.new_tensor(scaling.divisors(dim, base, tokens or 0))
    return positions.double()[..., None] * frequencies


def interleave_sinusoids(
    positions: Int[Tensor, "*rows"], width: int
) -> Float[Tensor, "*rows width"]:
    """Return (sin p f_0, cos p f_0, sin p f_1, ...), f_k = 10000^(-2k/width), in float64."""
    angles = positions.unsqueeze(-1) * _frequencies(width, positions.device)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


@functools.lru_cache(maxsize=8)
def _frequencies(width: int, device: torch.device) -> Tensor:
    frequencies = [10_000.0 ** (-channel / width) for channel in range(0, width, 2)]
    # An ordinary tensor, even if it is made in inference mode, so that graphs can use it.
    with torch.inference_mode(mode=False):
        return torch.tensor(frequencies, dtype=torch.float64, device=device)
