"""Computes queries, keys and values (the roles) from the input of a layer.

A source is a learned projection, full or low-rank, or the input itself. The role terms change a
source before a role uses it: they normalise it, expand it from a latent, or rotate it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.sharing import IDENTITY, KEY_ROPE, Source
from qkvary.nn.initializer import Initializer
from qkvary.nn.layout import Rotation
from qkvary.nn.linear import apply, is_plain, linear
from qkvary.nn.shapes import Hidden, PerHead

FEW_ROWS = 16
"""Maximum number of tokens per batch for which projections are not joined, without gradients."""
Sources = Mapping[str, Float[Tensor, "batch _ tokens _"]]


class LowRank(nn.Module):
    """A low-rank projection ``x A^T B^T + b``. Its inner width is below the width of the layer."""

    def __init__(self, d_model: int, width: int, *, bias: bool, rank: int) -> None:
        """Create the weights; ``rank`` is the inner width."""
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, d_model))
        self.weight = nn.Parameter(torch.empty(width, rank))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch width"]:
        """Return the projection."""
        return self.project_up(self.project_down(x))

    def project_down(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch inner"]:
        """Return the inner channels ``x A^T``."""
        return linear(x, self.down)

    def project_up(self, inner: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch width"]:
        """Return the projection from its inner channels: ``inner B^T + b``."""
        return linear(inner, self.weight, self.bias)

    def initialize(
        self, initializer: Initializer, name: str, init: Initialization, std: float
    ) -> None:
        """Draw the weights so that ``B A`` has the standard deviation of a full matrix.

        The overview article's code uses two of torch's linear layers instead. They draw B with
        deviation 1/sqrt(3 rank), so that ``B A`` has 1/sqrt(3) of the full matrix's deviation.
        """
        rank, d_model = self.down.shape
        initializer.weight(f"{name}.down", self.down, init, std)
        initializer.weight(f"{name}.weight", self.weight, init, 1.0 / math.sqrt(rank))
        initializer.bias(f"{name}.bias", self.bias, init, d_model)


def make_projection(
    d_model: int, width: int, *, bias: bool, rank: int | None = None
) -> nn.Linear | LowRank:
    """Return a full-rank or low-rank projection with uninitialised weights.

    Unlike ``nn.Linear``, it draws no random numbers when it is built.
    """
    if rank is not None:
        return LowRank(d_model, width, bias=bias, rank=rank)
    layer = nn.Linear(d_model, width, bias=bias, device="meta")
    layer.weight = nn.Parameter(torch.empty(width, d_model))
    if bias:
        layer.bias = nn.Parameter(torch.empty(width))
    return layer


def read_matrix(projection: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias of a projection as one linear map, in float64 on the CPU."""
    if not (is_plain(projection) or isinstance(projection, LowRank)):
        raise ValueError(
            f"expected a projection with its own weights, got {type(projection).__name__}; "
            "merge an adapter before you read its weights"
        )
    weight, bias = projection.weight.detach().cpu().double(), projection.bias
    if isinstance(projection, LowRank):
        weight = weight @ projection.down.detach().cpu().double()
    return weight, None if bias is None else bias.detach().cpu().double()


def split_heads(flat: Float[Tensor, "batch tokens width"], heads: int) -> PerHead:
    """Cut the channels of a source into heads."""
    return flat.unflatten(-1, (heads, -1)).transpose(1, 2)


def project_together(
    x: Float[Tensor, "*batch d_model"], projections: Sequence[nn.Module]
) -> list[Float[Tensor, "*batch width"]]:
    """Apply several projections to one input.

    All ``nn.Linear`` projections without hooks are computed in a single matmul with their joined
    weights. For few rows they are computed separately, because joining the weights takes at least
    as long as the matmul.
    """
    few = not torch.is_grad_enabled() and x.numel() <= FEW_ROWS * x.shape[-1]
    plain = [] if few else [projection for projection in projections if is_plain(projection)]
    # torch declares that a bias always exists.
    all_biases: list[Tensor | None] = [projection.bias for projection in plain]
    biases = [bias for bias in all_biases if bias is not None]
    if len(plain) < 2 or len(biases) not in (0, len(plain)):
        return [apply(projection, x) for projection in projections]
    weight = torch.cat([projection.weight for projection in plain])
    joined = linear(x, weight, torch.cat(biases) if biases else None)
    widths = [part.out_features for part in plain]
    parts: dict[nn.Module, Tensor] = dict(zip(plain, joined.split(widths, dim=-1), strict=True))
    return [parts[part] if part in parts else part(x) for part in projections]


def make_query(
    x: Hidden,
    source: Float[Tensor, "batch source_heads tokens head_dim"],
    maps: Float[Tensor, "heads head_dim head_dim"] | None,
    config: AttentionConfig,
) -> PerHead:
    """Return the query of every head, made from a source. Residual forms also add ``x``."""
    form = config.variant.query_form
    if form == "plain":
        return source
    if maps is not None:
        per_group = maps.unflatten(0, (source.shape[1], -1))
        return (source[:, :, None] @ per_group).flatten(1, 2)
    change = F.gelu(source) if form == "residual-gelu" else source
    return split_heads(x, config.num_heads) + change


class RMSNormPlusOne(nn.RMSNorm):
    """RMSNorm whose gain is its weight plus one: ``x / rms(x) * (1 + w)``.

    Source: Gemma Team 2024, as implemented in transformers 5.23.
    """

    def reset_parameters(self) -> None:
        """Start with a gain of one."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Return ``x`` normalised."""
        return _norm(x, self.weight, self.eps or 0.0, adds_one=True)


class HeadNorm(nn.Module):
    """RMSNorm of a query or a key before any rotation: ``c / rms(c) * g``.

    If ``is_wide``, the channels of all heads are normalised together. Otherwise each head is
    normalised separately, and all heads share one gain. If key and value share a tensor, it is
    stored normalised; a query from the same projection is taken before the norm.

    Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters"; Qwen Team
    2025, "Qwen3" (each head); OLMo Team 2024, "2 OLMo 2 Furious" (all heads); DeepSeek-AI 2024,
    "DeepSeek-V2", section 2.1 (the norm of the latent).
    """

    def __init__(
        self, width: int, *, eps: float, is_wide: bool = True, adds_one: bool = False
    ) -> None:
        """Create the gain. With ``adds_one``, the gain is the learned numbers plus one."""
        super().__init__()
        self.eps, self.is_wide, self.adds_one = eps, is_wide, adds_one
        self.weight = nn.Parameter(torch.empty(width))

    def initialize(self, _: Initializer, __: Initialization, /) -> None:
        """Start with a gain of one."""
        nn.init.constant_(self.weight, 0.0 if self.adds_one else 1.0)

    @property
    def gain(self) -> Float[Tensor, " width"]:
        """Return the factor of each channel."""
        return self.weight + 1 if self.adds_one else self.weight

    def normalise(
        self, heads: Float[Tensor, "batch heads tokens channels"]
    ) -> Float[Tensor, "batch heads tokens channels"]:
        """Divide by the root mean square, and multiply by the gain."""
        joined = heads.transpose(1, 2).flatten(2) if self.is_wide else heads
        normed = _norm(joined, self.weight, self.eps, adds_one=self.adds_one)
        return split_heads(normed, heads.shape[1]) if self.is_wide else normed


def _norm(x: Tensor, weight: Tensor, eps: float, *, adds_one: bool) -> Tensor:
    if not adds_one:
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)
    # Adding one needs at least single precision, or small learned gains would be lost.
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), weight.shape, 1.0 + weight.to(wide), eps).to(x.dtype)


def make_head_norm(config: AttentionConfig, width: int) -> HeadNorm | None:
    """Return the norm for a query or key, or None if the variant has no such norms."""
    if config.variant.head_norm == "none":
        return None
    is_wide, scale = config.variant.head_norm == "qk-norm-wide", config.scale
    width = width if is_wide else config.size_per_head
    return HeadNorm(width, eps=scale.norm_eps, is_wide=is_wide, adds_one=scale.norm_adds_one)


class Roles(NamedTuple):
    """Key, value and rotary key of the stored tokens, as attention uses them."""

    key: Float[Tensor, "batch kv_heads tokens head_dim"]
    value: Float[Tensor, "batch kv_heads tokens head_dim"]
    """The value; the same tensor as ``key`` if it serves both roles."""
    rope: Float[Tensor, "batch 1 tokens rope_dim"] | None = None


class Heads(NamedTuple):
    """Query, key and value of a call. The fields with ``rope`` are for decoupled positions."""

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    value: Float[Tensor, "batch kv_heads keys head_dim"]
    query_rope: Float[Tensor, "batch heads queries rope_dim"] | None
    key_rope: Float[Tensor, "batch 1 keys rope_dim"] | None
    rotation: Rotation | None
    is_latent: bool
    """Whether attention uses the latent as key and value, with the query projected onto it."""


class Latent(nn.Module):
    """Makes key and value from a latent c with one matrix each: ``k = c B_k, v = c B_v``.

    With ``kv-norm`` and decoupled positions this is multi-head latent attention.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        rank, width = config.width(config.variant.sharing.key), config.kv_width
        self.key = make_projection(rank, width, bias=False)
        self.value = make_projection(rank, width, bias=False)

    def initialize(self, initializer: Initializer, init: Initialization, /) -> None:
        """Draw both matrices so that key and value have the latent's standard deviation."""
        for name, part in (("key", self.key), ("value", self.value)):
            rank = part.weight.shape[1]
            initializer.weight(f"latent.{name}.weight", part.weight, init, 1.0 / math.sqrt(rank))

    def expand(
        self, latent: Float[Tensor, "batch 1 tokens rank"]
    ) -> list[Float[Tensor, "batch kv_heads tokens head_dim"]]:
        """Return the key and value of a latent."""
        parts = project_together(latent.squeeze(1), [self.key, self.value])
        return [split_heads(part, self.config.num_kv_heads) for part in parts]

    def absorb(
        self, query: Float[Tensor, "batch heads queries head_dim"]
    ) -> Float[Tensor, "batch heads queries rank"]:
        """Return ``q B_k^T``. Its products with the latent equal the products of q and the keys."""
        return _multiply_groups(query, self._split(self.key))

    def restore(
        self, mixed: Float[Tensor, "batch heads queries rank"]
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Return the mixed values from the mixed latents: ``m B_v``."""
        return _multiply_groups(mixed, self._split(self.value).mT)

    def _split(self, part: nn.Module) -> Float[Tensor, "kv_heads head_dim rank"]:
        return part.get_parameter("weight").unflatten(0, (self.config.num_kv_heads, -1))


@dataclass(frozen=True, slots=True)
class RoleMaker:
    """Projects a layer's input to sources, and makes key and value from these projections.

    If the layer has a latent, the latent is used as both key and value until it is expanded.
    """

    config: AttentionConfig
    projections: Mapping[Source, nn.Module]
    norm: HeadNorm | None
    """The norm of the key's source; the value is normalised too if it has the same source."""
    latent: Latent | None

    def project(self, x: Hidden, names: Collection[Source]) -> dict[str, PerHead]:
        """Return the named projections of ``x``, cut into heads; the identity is ``x`` itself."""
        learned: list[Source] = [source for source in self.projections if source in names]
        outputs = project_together(x, [self.projections[source] for source in learned])
        flat: dict[Source, Tensor] = dict(zip(learned, outputs, strict=True))
        if IDENTITY in names:
            flat[IDENTITY] = x
        heads = self.config.heads
        return {source: split_heads(part, heads(source)) for source, part in flat.items()}

    def normalise(self, sources: Sources) -> Sources:
        """Return all sources; the key's source is normalised if the layer has a norm."""
        shared = self.config.variant.sharing.key
        if self.norm is None or shared not in sources:
            return sources
        return {**sources, shared: self.norm.normalise(sources[shared])}

    def rotate(self, stored: Sources, rotation: Rotation | None) -> Roles:
        """Return key and value, as attention uses them, from normalised sources."""
        sharing = self.config.variant.sharing
        key, value = stored[sharing.key], stored[sharing.value]
        if rotation is None:
            return Roles(key, value)
        if KEY_ROPE in stored:
            return Roles(key, value, rotation.rotate(stored[KEY_ROPE]))
        rotated = rotation.rotate(key)
        if rotation.value_rope == "none":
            return Roles(rotated, value)
        return Roles(rotated, rotated if value is key else rotation.rotate(value))

    def expand(self, roles: Roles) -> Roles:
        """Return key and value, expanded from the latent if the layer has one."""
        if self.latent is None:
            return roles
        key, value = self.latent.expand(roles.key)
        return Roles(key, value, roles.rope)


def _multiply_groups(
    heads: Float[Tensor, "batch heads queries inner"],
    matrices: Float[Tensor, "kv_heads inner outer"],
) -> Float[Tensor, "batch heads queries outer"]:
    """Multiply the heads of each group by the matrix of the group."""
    return (heads.unflatten(1, (matrices.shape[0], -1)) @ matrices[:, None]).flatten(1, 2)
