"""Heads, windows and rotation of configurations, and the attention layer made of them.

The parts that most families share; a part of one family is in the file of that family.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.families.fields import Fields
from qkvary.arch.sharing import share
from qkvary.arch.terms import ScorePosition
from qkvary.arch.variants import Variant

MOST_KINDS = 100
"""Maximum number of kinds of layers; more is a mistake in the configuration, and each kind is
counted separately."""
LAYER_TYPES = ("full_attention", "sliding_attention")

Kind = TypeVar("Kind", bound=Hashable)
Made = TypeVar("Made")

_SEPARATE = Variant(sharing=share("q", "k", "v"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The sizes of an attention layer."""

    d_model: int
    """Width of the residual stream."""
    count: int
    """Query heads."""
    kv_count: int
    """KV heads."""
    dim: int | None = None
    """Channels of a head; ``None`` means ``d_model / count``."""

    def attend(
        self,
        *,
        window: int | None = None,
        positions: ScorePosition = "none",
        rotation: PositionConfig | None = None,
        bias: bool = False,
        out_bias: bool = False,
    ) -> AttentionConfig:
        """Return a causal layer of these sizes with separate queries, keys and values.

        Args:
            window: Tokens that a query sees, itself included; ``None`` for all.
            positions: The joint position term of the scores.
            rotation: Base and fraction of rotary positions.
            bias: Biases on the input projections.
            out_bias: Bias on the output projection.

        Raises:
            ValueError: where the sizes do not fit each other.
        """
        variant = dataclasses.replace(
            _SEPARATE,
            num_kv_heads=None if self.kv_count == self.count else self.kv_count,
            window=window,
            positions=positions,
        )
        # The usual size has one spelling, whether or not a file names it.
        usual = self.dim is None or self.dim * self.count == self.d_model
        return AttentionConfig(
            d_model=self.d_model,
            num_heads=self.count,
            head_dim=None if usual else self.dim,
            variant=variant,
            causal=True,
            bias=bias,
            out_bias=out_bias,
            position=PositionConfig() if rotation is None else rotation,
        )


def rotary_section(fields: Fields) -> Fields:
    """Return the settings of rotary positions, where transformers reads them.

    ``rope_scaling`` replaces ``rope_parameters``, unless it is empty.

    Raises:
        ValueError: if one of the two is no section.
    """
    found = Fields({}, fields.family)
    for name in ("rope_parameters", "rope_scaling"):
        section = fields.section(name)
        found = section if section is not None and section.content else found
    return found


def read_rotation(
    fields: Fields, *, fraction: float = 1.0, base: float = 10_000.0
) -> PositionConfig:
    """Return base and fraction of rotary positions, from their section or from the top level.

    Args:
        fields: The configuration.
        fraction: The default share of rotated channels.
        base: The default base of the frequencies.

    Raises:
        ValueError: if a value makes no sense.
    """
    nested = rotary_section(fields)
    names = ("partial_rotary_factor", "rotary_pct")
    bases = ("rope_theta", "rotary_emb_base")
    return PositionConfig(
        rotary_fraction=nested.number(names[0], default=fields.number(*names, default=fraction)),
        rotary_base=nested.number(bases[0], default=fields.number(*bases, default=base)),
    )


def build_each(kinds: Sequence[Kind], build: Callable[[Kind], Made]) -> tuple[Made, ...]:
    """Return one value per entry of ``kinds``, each distinct kind built once.

    Raises:
        ValueError: for more kinds than can be meant.
    """
    different = len(set(kinds))
    if different > MOST_KINDS:
        raise ValueError(f"expected layers of at most {MOST_KINDS} kinds, got {different:,}")
    built = {kind: build(kind) for kind in dict.fromkeys(kinds)}
    return tuple(built[kind] for kind in kinds)
