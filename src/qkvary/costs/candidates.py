"""Lists the variants that share projections or heads, to compare with a model's own variant."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from qkvary.arch.blocks import ProjectedAttention, RecurrentLayer
from qkvary.arch.labels import as_label, format_label, parse_variant
from qkvary.arch.models import Model, count_kinds
from qkvary.arch.variants import QKV, AnyVariant, Variant
from qkvary.costs.exact_savings import Method, apply_savings
from qkvary.text.names import listed

AS_IT_IS = "as it is"
"""The label of a model whose layers have different variants."""
SHARINGS = ("Q=K-V", "Q-K=V", "Q=K=V", "I-K-V", "I-K=V")
"""The sharing patterns that ``all_sharings`` compares in addition to head sharing."""

PUBLISHED_GROUP = 4
"""Number of query heads per KV head in the papers' GQA networks of both sizes."""

_KEPT: tuple[tuple[str, Callable[[Variant], bool], str], ...] = (
    (
        "positions in the scores",
        lambda variant: variant.has_positions,
        "the core does not support them",
    ),
    (
        "norms of query and key",
        lambda variant: variant.head_norm != "none",
        "such norms need a key and a value that are different tensors",
    ),
)
"""Parts of a model, each with a test for it and the reason why some variants cannot keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that becomes one row of a comparison."""

    label: str
    """The canonical label of the variant, or ``as it is`` for layers of several kinds."""
    model: Model
    is_original: bool
    """Whether the candidate keeps the weights of the given model."""
    saving: Method | None = None
    """The exact saving that the cache uses. None if it uses no saving."""

    @property
    def name(self) -> str:
        """The label and, if the cache uses an exact saving, the method of the saving."""
        return self.label if self.saving is None else f"{self.label}, {self.saving}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The rows of a comparison: the given model, each exact saving of it, and its variants."""

    rows: tuple[Candidate, ...]
    """The variants that fit the model."""
    notes: tuple[str, ...]
    """Sentences on requested variants that do not fit, and on parts of the model that are lost."""

    @property
    def original(self) -> Candidate:
        """The given model."""
        return self.rows[0]


def own_label(model: Model) -> str:
    """Return the label of a model's own variant, without parts that its other variants inherit."""
    labels: set[str] = set()
    for layer, _ in count_kinds(model.layers):
        if isinstance(layer.attention, RecurrentLayer):
            continue
        if not isinstance(layer.attention, ProjectedAttention):
            return AS_IT_IS
        config = layer.attention.config
        heads = None if config.num_kv_heads == config.num_heads else config.num_kv_heads
        kept: dict[str, Any] = {"positions": "none", "head_norm": "none", "soft_cap": None}
        bare = dataclasses.replace(config.variant, window=None, num_kv_heads=heads, **kept)
        labels.add(format_label(bare))
    return labels.pop() if len(labels) == 1 else AS_IT_IS


def choose_candidates(
    model: Model, labels: Sequence[AnyVariant | str] = (), *, all_sharings: bool = False
) -> Candidates:
    """Return the given model with its requested variants, by default those worth comparing.

    With ``all_sharings``, these include sharing patterns that do not change the cache, and more
    choices of the number of KV heads.
    """
    label = own_label(model)
    rows = [Candidate(label=label, model=model, is_original=True)]
    for method, less in (apply_savings(model) if model.is_causal else {}).items():
        rows.append(Candidate(label=label, model=less, is_original=True, saving=method))
    notes: list[str] = []
    asked = [as_label(given) for given in labels]
    for variant in asked or _suggest(model, all_sharings=all_sharings):
        try:
            made = model.with_variant(variant)
        except ValueError as error:
            if asked:
                notes.append(f"{format_label(variant)} does not fit {model.name}: {error}")
            continue
        name = _label_inherited(variant, made)
        if all(row.label != name for row in rows):
            rows.append(Candidate(label=name, model=made, is_original=False))
    return Candidates(rows=tuple(rows), notes=(*notes, *_list_losses(model, rows)))


def _label_inherited(variant: AnyVariant, made: Model) -> str:
    """Return the label of a variant with the decoupled key that it inherits, which has a cost."""
    attentions = [layer.attention for layer, _ in count_kinds(made.layers)]
    projected = [one for one in attentions if isinstance(one, ProjectedAttention)]
    inherited = {one.config.variant.decoupled for one in projected}
    if isinstance(variant, Variant) and len(inherited) == 1:
        variant = dataclasses.replace(variant, decoupled=inherited.pop())
    return format_label(variant)


def _list_losses(model: Model, rows: Sequence[Candidate]) -> Iterator[str]:
    """Yield sentences about the parts of a model that some of its variants cannot keep."""
    for what, has, why in _KEPT:
        before = _count_layers(model, has)
        lost = [(row.label, before - _count_layers(row.model, has)) for row in rows]
        for layers in sorted({number for _, number in lost if number > 0}):
            names = [label for label, number in lost if number == layers]
            every = len(model.layers)
            where = "" if layers == every else f" in {layers} of {every} layers"
            verb = "has" if len(names) == 1 else "have"
            yield f"{listed(names)} {verb} no {what}{where}, unlike {model.name}: {why}"


def _count_layers(model: Model, has: Callable[[Variant], bool]) -> int:
    return sum(
        count
        for layer, count in count_kinds(model.layers)
        if isinstance(layer.attention, ProjectedAttention) and has(layer.attention.config.variant)
    )


def _suggest(model: Model, *, all_sharings: bool) -> Iterator[Variant]:
    """Yield sharing patterns, first with the model's number of KV heads, then with fewer."""
    layers = [layer.attention for layer, _ in count_kinds(model.layers)]
    layers = [layer for layer in layers if not isinstance(layer, RecurrentLayer)]
    configs = [layer.config for layer in layers if isinstance(layer, ProjectedAttention)]
    if not layers or len(configs) < len(layers):
        return
    queries = min(config.num_heads for config in configs)
    own = min(config.num_kv_heads for config in configs)
    tied = parse_variant("Q-K=V")
    for sharing in (QKV, *(map(parse_variant, SHARINGS) if all_sharings else (tied,))):
        # A query that is the key has as many heads as the key, so it allows no fewer KV heads.
        with suppress(ValueError):
            yield dataclasses.replace(sharing, num_kv_heads=None if own == queries else own)
    halves = (own // 2, own // 4, own // 8) if all_sharings else (queries // PUBLISHED_GROUP,)
    for heads in (*(heads for heads in halves if 1 < heads < own and queries % heads == 0), 1):
        if heads < own:
            yield dataclasses.replace(QKV, num_kv_heads=heads)
            yield dataclasses.replace(tied, num_kv_heads=heads)
