"""Which variants a model is compared in: as it is, and what could be shared in its place."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.labels import parse_variant, spell_label
from qkvary.arch.models import Model
from qkvary.arch.variants import QKV, Variant

AS_IT_IS = "as it is"
"""The name of a model whose layers are not all of one variant."""
SHARINGS = ("Q=K-V", "Q-K=V", "Q=K=V", "I-K-V", "I-K=V")
"""Sharings that are compared besides head sharing, where all costs are of interest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One row of a comparison."""

    label: str
    """The canonical label, or ``as it is`` for layers of several kinds."""
    model: Model
    """The model in this variant."""
    is_original: bool
    """Whether it is the model as it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The rows of a comparison, the model as it was given first."""

    rows: tuple[Candidate, ...]
    """What fits the model."""
    refused: tuple[str, ...]
    """Why the variants that were asked for do not fit, a sentence each."""

    @property
    def original(self) -> Candidate:
        """The model as it was given."""
        return self.rows[0]


def own_label(model: Model) -> str:
    """The label of a model's own variant, windows and positions left out."""
    labels = {
        spell_label(_bare(layer.attention.config.variant, layer.attention.config.num_heads))
        if isinstance(layer.attention, ProjectedAttention)
        else AS_IT_IS
        for layer in model.layers
    }
    return labels.pop() if len(labels) == 1 else AS_IT_IS


def choose_candidates(
    model: Model, labels: Sequence[str] = (), *, all_sharings: bool = False
) -> Candidates:
    """The model as it is, and the variants asked for or those that are worth comparing.

    Args:
        model: Any model.
        labels: Variants in any spelling; if none, head sharing with and without K=V.
        all_sharings: Whether sharings that do not change the cache are compared too, if none were
            asked for.

    Raises:
        ValueError: for a label that cannot be read.
    """
    label = own_label(model)
    rows = [Candidate(label=label, model=model, is_original=True)]
    refused: list[str] = []
    asked = [parse_variant(text) for text in labels]
    for variant in asked or _suggest(model, all_sharings=all_sharings):
        name = spell_label(variant)
        if any(row.label == name for row in rows):
            continue
        try:
            rows.append(Candidate(label=name, model=model.with_variant(variant), is_original=False))
        except ValueError as error:
            if asked:
                refused.append(f"{name} does not fit {model.name}: {error}")
    return Candidates(rows=tuple(rows), refused=tuple(refused))


def _suggest(model: Model, *, all_sharings: bool) -> Iterator[Variant]:
    """All heads and halves of what the model has, each with and without K=V."""
    layers = [layer.attention for layer in model.layers]
    if not all(isinstance(layer, ProjectedAttention) for layer in layers):
        return
    configs = [layer.config for layer in layers if isinstance(layer, ProjectedAttention)]
    queries = min(config.num_heads for config in configs)
    own = min(config.num_kv_heads for config in configs)
    yield QKV
    if all_sharings:
        yield from map(parse_variant, SHARINGS)
    else:
        yield parse_variant("Q-K=V")
    first = own if own < queries else own // 2
    steps = [heads for heads in (first, first // 2, first // 4) if heads > 1 and first % heads == 0]
    for heads in dict.fromkeys((*steps, 1)):
        if heads < queries:
            yield dataclasses.replace(QKV, num_kv_heads=heads)
            yield dataclasses.replace(parse_variant("Q-K=V"), num_kv_heads=heads)


def _bare(variant: Variant, num_heads: int) -> Variant:
    """The variant without window and positions, and without a number of heads that shares none."""
    heads = None if variant.num_kv_heads == num_heads else variant.num_kv_heads
    return dataclasses.replace(variant, window=None, positions="none", num_kv_heads=heads)
