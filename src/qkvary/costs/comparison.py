"""The costs of a model in each of its variants, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.canonical import own_parts
from qkvary.arch.descriptions import describe_layers
from qkvary.arch.models import Model, count_kinds
from qkvary.arch.variants import AnyVariant
from qkvary.costs.cache import growth_bytes, model_cache_bytes, model_state_bytes
from qkvary.costs.candidates import Candidate, Candidates, choose_candidates
from qkvary.costs.decoding import DecodeStep, decode_step, weight_bytes
from qkvary.costs.formats import Format
from qkvary.costs.macs import MacCount, decode_macs, forward_macs
from qkvary.costs.parameters import ParameterCount, active_parameters, model_parameters
from qkvary.costs.training import training_macs_per_token

LONGEST_DEFAULT = 8192
"""Largest context that is chosen by default, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """The costs of one variant of a model. Cache costs are ``None`` if the model cannot decode."""

    candidate: Candidate
    parameters: ParameterCount
    active_parameters: int
    """Number of parameters that one token passes through."""
    weight_bytes: int
    """Number of bytes that all parameters take in the format of the weights."""
    decode_macs: MacCount
    """MACs of one token that attends to the whole context."""
    prefill_macs: MacCount
    """MACs of the prefill of a full context: visible pairs only, and logits for the last token."""
    square_macs: MacCount
    """MACs of a forward pass with all logits and all pairs of tokens, as the papers count them."""
    training_macs_per_token: float
    """MACs of the forward and backward pass per token of the context, with visible pairs only."""
    cache_bytes_per_token: float | None
    """Bytes that one token adds to the cache while no window is full."""
    cache_growth_bytes_per_token: float | None
    """Bytes that one more token adds to the cache at the end of the context."""
    cache_bytes: int | None
    """Bytes of the cache of the whole batch at the full context."""
    step: DecodeStep | None
    """The cost of decoding one token for each sequence of the batch."""

    @property
    def label(self) -> str:
        """The label of the variant."""
        return self.candidate.label


@dataclass(frozen=True, slots=True, kw_only=True)
class CostComparison:
    """The costs of a model's variants, with the model and the settings that the costs depend on."""

    model: Model
    layers: str
    """The kinds of attention of the model, in words."""
    rows: Sequence[CostRow]
    """One row for each variant; the row of the given model comes first."""
    context: int
    batch: int
    cache: Format
    weights: Format
    encoder_tokens: int | None = None
    """Number of encoder tokens, if the model does not fix it."""
    notes: Sequence[str] = ()

    def mean_cache_bytes_per_token(self, row: CostRow) -> float | None:
        """Return the mean bytes per token of a row's cache at the full context."""
        if row.cache_bytes is None:
            return None
        return row.cache_bytes / (self.batch * self.context)

    def state_bytes(self, row: CostRow) -> int | None:
        """Return the size in bytes of the states in a row's cache, the same for any context."""
        if row.cache_bytes is None:
            return None
        return self.batch * model_state_bytes(row.candidate.model, self.cache)


def compare_model(
    model: Model,
    labels: Sequence[AnyVariant | str] = (),
    *,
    context: int | None = None,
    batch: int = 1,
    weights: Format,
    cache: Format,
    encoder_tokens: int | None = None,
) -> CostComparison:
    """Derive the costs of a model and its variants, by default the variants worth comparing."""
    tokens = choose_context(model, context)
    candidates = choose_candidates(model, labels, all_sharings=True)

    def derive(candidate: Candidate) -> CostRow:
        model, seen = candidate.model, encoder_tokens
        decodes = model.is_causal
        forward = partial(forward_macs, model, tokens=tokens, encoder_tokens=seen)
        held = model_cache_bytes(model, context=tokens, stored_as=cache, encoder_tokens=seen)
        growth = growth_bytes(model, context=tokens, stored_as=cache)
        step = partial(decode_step, model, batch=batch, context=tokens, encoder_tokens=seen)
        return CostRow(
            candidate=candidate,
            parameters=model_parameters(model),
            active_parameters=active_parameters(model),
            weight_bytes=weight_bytes(model, weights),
            decode_macs=decode_macs(model, context=tokens, encoder_tokens=seen),
            prefill_macs=forward(logits="last", fills_cache=decodes),
            square_macs=forward(pairs="square"),
            training_macs_per_token=training_macs_per_token(
                model, tokens=tokens, encoder_tokens=seen
            ),
            cache_bytes_per_token=growth_bytes(model, stored_as=cache) if decodes else None,
            cache_growth_bytes_per_token=growth if decodes else None,
            cache_bytes=batch * held if decodes else None,
            step=step(weights=weights, cache=cache) if decodes else None,
        )

    return CostComparison(
        model=model,
        layers=describe_layers(model),
        rows=tuple(map(derive, candidates.rows)),
        context=tokens,
        batch=batch,
        cache=cache,
        weights=weights,
        encoder_tokens=encoder_tokens,
        notes=collect_notes(model, candidates, tokens, encoder_tokens=encoder_tokens),
    )


def choose_context(model: Model, requested: int | None) -> int:
    """Return the requested context, or the model's maximum up to a limit."""
    return requested or min(model.max_tokens or LONGEST_DEFAULT, LONGEST_DEFAULT)


def collect_notes(
    model: Model, candidates: Candidates, context: int, *, encoder_tokens: int | None = None
) -> list[str]:
    """Return notes on the limitations of the counted costs."""
    kinds = (kind for row in candidates.rows for kind in count_kinds(row.model.layers))
    attentions = (layer.attention for layer, _ in kinds)
    variants = (one.config.variant for one in attentions if isinstance(one, ProjectedAttention))
    own = (f"not counted: {part}" for part in own_parts(variants))
    notes = [*dict.fromkeys((*model.notes, *own))]
    fixed = 0 if model.encoder is None else model.encoder.tokens
    if encoder_tokens is not None and fixed not in {None, encoder_tokens}:
        notes.append(f"{model.name} always has {fixed:,} encoder tokens")
    if model.max_tokens is not None and context > model.max_tokens:
        notes.append(
            f"{model.name} was made for {model.max_tokens:,} tokens: at {context:,} the byte "
            "counts are right, but the text is beyond the model's limit"
        )
    return [*notes, *candidates.notes]
