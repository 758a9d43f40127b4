"""Functions that read heads, rotation and attention from configurations, or build a model."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.blocks import Indexer, LatentAttention, Layer
from qkvary.arch.families.fields import Fields
from qkvary.arch.models import Model
from qkvary.arch.parts import Linear, Norm, Table
from qkvary.arch.terms import ScorePosition
from qkvary.arch.variants import QKV

MOST_KINDS = 100
"""Maximum number of different layers in a model; counting more would be slow."""
LAYER_TYPES = ("full_attention", "sliding_attention")

Kind = TypeVar("Kind", bound=Hashable)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The sizes of an attention layer."""

    d_model: int
    count: int
    """Number of query heads."""
    kv_count: int
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
        """Return a causal layer of these sizes with separate queries, keys and values."""
        variant = replace(
            QKV,
            num_kv_heads=None if self.kv_count == self.count else self.kv_count,
            window=window,
            positions=positions,
        )
        # Equal configurations stay equal if only one file states the usual head_dim.
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
    """Return the settings of rotary positions, from the section that transformers uses.

    This is ``rope_scaling``, or ``rope_parameters`` if ``rope_scaling`` is empty.
    """
    sections = [fields.nested(name) for name in ("rope_parameters", "rope_scaling")]
    return sections[1] if sections[1].content else sections[0]


def read_rotation(
    fields: Fields, *, fraction: float = 1.0, base: float = 10_000.0
) -> PositionConfig:
    """Return the rotary positions, from their own section or from the file's top level."""
    nested = rotary_section(fields)
    names = ("partial_rotary_factor", "rotary_pct")
    bases = ("rope_theta", "rotary_emb_base")
    return PositionConfig(
        rotary_fraction=nested.number(names[0], default=fields.number(*names, default=fraction)),
        rotary_base=nested.number(bases[0], default=fields.number(*bases, default=base)),
    )


def build_each(kinds: Sequence[Kind], build: Callable[[Kind], Made]) -> tuple[Made, ...]:
    """Return ``build(kind)`` for each entry of ``kinds``, called once per distinct kind."""
    different = len(set(kinds))
    if different > MOST_KINDS:
        raise ValueError(
            f"expected at most {MOST_KINDS} different kinds of layers, got {different:,}"
        )
    built = {kind: build(kind) for kind in dict.fromkeys(kinds)}
    return tuple(built[kind] for kind in kinds)


def build_decoder(
    fields: Fields,
    name: str,
    layers: tuple[Layer, ...],
    *,
    tied: bool | None,
    head_bias: bool = False,
    **others: Any,
) -> Model:
    """Return a model of these layers with token embeddings, a final norm and a head.

    ``tied`` is the default of ``tie_word_embeddings``; ``None`` means never tied. Further
    keywords set or replace fields of the model.
    """
    d_model, vocabulary = layers[0].attention.d_model, fields.size("vocab_size")
    is_tied = tied is not None and fields.flag("tie_word_embeddings", default=tied)
    head = Linear(d_model, vocabulary, tied=is_tied, bias=head_bias)
    usual: dict[str, Any] = {
        "tables": (Table(vocabulary, d_model),),
        "norms": (Norm(d_model),),
        "head": (head,),
    }
    if "max_tokens" not in others:
        usual["max_tokens"] = fields.optional_size("max_position_embeddings")
    return Model(name=name, layers=layers, vocabulary=vocabulary, **usual | others)


def read_latent(fields: Fields, *, shares_indexer: bool = False) -> LatentAttention:
    """Return the latent attention.

    With ``shares_indexer``, the attention uses the indexer of an earlier layer.
    """
    indexer = None
    if fields.has("index_topk"):
        indexer = Indexer(
            width=fields.size("index_head_dim"),
            heads=fields.size("index_n_heads"),
            top=fields.size("index_topk"),
            is_shared=shares_indexer,
        )
    return LatentAttention(
        d_model=fields.size("hidden_size"),
        num_heads=fields.size("num_attention_heads"),
        q_rank=fields.optional_size("q_lora_rank"),
        kv_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        rope_dim=fields.size("qk_rope_head_dim"),
        value_dim=fields.size("v_head_dim"),
        bias=fields.flag("attention_bias", default=False),
        indexer=indexer,
    )


def note_predictors(fields: Fields, predicts: int) -> tuple[str, ...]:
    """Return a note if the model has layers for multi-token prediction.

    ``predicts`` is the default number of these layers.
    """
    further = fields.count("num_nextn_predict_layers", "num_mtp_layers", default=predicts)
    return ("the layers that predict further tokens are not counted",) if further else ()
