"""The costs of a model in each of its variants, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from qkvary.costs.cache import entry_bytes, growth_bytes, model_cache_bytes
from qkvary.costs.candidates import Candidate
from qkvary.costs.decoding import DecodeStep, decode_step, weight_bytes
from qkvary.costs.formats import Format
from qkvary.costs.macs import TRAINING_FACTOR, MacCount, decode_macs, forward_macs
from qkvary.costs.parameters import ParameterCount, active_parameters, model_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One variant of a model. Figures of caches are ``None`` where nothing is decoded."""

    candidate: Candidate
    """The variant, and its model."""
    parameters: ParameterCount
    """Parameters by part."""
    active_parameters: int
    """Those that one token meets."""
    weight_bytes: int
    """All parameters in the format of the weights."""
    decode_macs: MacCount
    """MACs of one token that attends to the whole context."""
    prefill_macs: MacCount
    """MACs of a prompt as long as the context, logits for its last token, visible pairs only."""
    square_macs: MacCount
    """MACs of a forward pass with all logits and all pairs: the papers' convention."""
    training_macs_per_token: float
    """Forward and backward, visible pairs only, over the tokens of the context."""
    cache_bytes_per_token: float | None
    """Bytes that one token adds while no window is full."""
    cache_growth_bytes_per_token: float | None
    """Bytes that one more token adds at the end of the context."""
    cache_bytes: int | None
    """Bytes of the whole batch at the full context."""
    step: DecodeStep | None
    """One decoded token for each sequence of the batch."""

    @property
    def label(self) -> str:
        """The variant."""
        return self.candidate.label


def compare_costs(
    candidates: Sequence[Candidate],
    *,
    context: int,
    batch: int,
    weights: Format,
    cache: Format,
    encoder_tokens: int | None = None,
) -> tuple[CostRow, ...]:
    """Derive every cost of every candidate.

    Args:
        candidates: A model in several variants.
        context: Tokens of a sequence.
        batch: Sequences.
        weights: How weights are stored.
        cache: How the cache is stored.
        encoder_tokens: Tokens of the encoder, where the model does not fix them.

    Raises:
        ValueError: for a context or a batch that is not positive.
    """
    if context < 1 or batch < 1:
        raise ValueError(f"expected a context and a batch of at least 1, got {context} and {batch}")
    return tuple(
        _row(
            candidate,
            context=context,
            batch=batch,
            weights=weights,
            cache=cache,
            encoder_tokens=encoder_tokens,
        )
        for candidate in candidates
    )


def _row(
    candidate: Candidate,
    *,
    context: int,
    batch: int,
    weights: Format,
    cache: Format,
    encoder_tokens: int | None,
) -> CostRow:
    model = candidate.model
    decodes = model.is_causal
    forward = forward_macs(model, tokens=context, encoder_tokens=encoder_tokens)
    held = model_cache_bytes(model, context=context, stored_as=cache, encoder_tokens=encoder_tokens)
    return CostRow(
        candidate=candidate,
        parameters=model_parameters(model),
        active_parameters=active_parameters(model),
        weight_bytes=weight_bytes(model, weights),
        decode_macs=decode_macs(model, context=context, encoder_tokens=encoder_tokens),
        prefill_macs=forward_macs(
            model, tokens=context, logits="last", encoder_tokens=encoder_tokens
        ),
        square_macs=forward_macs(
            model, tokens=context, pairs="square", encoder_tokens=encoder_tokens
        ),
        training_macs_per_token=TRAINING_FACTOR * forward.total / context,
        cache_bytes_per_token=entry_bytes(model, cache) if decodes else None,
        cache_growth_bytes_per_token=(
            growth_bytes(model, context=context, stored_as=cache) if decodes else None
        ),
        cache_bytes=batch * held if decodes else None,
        step=(
            decode_step(
                model,
                batch=batch,
                context=context,
                weights=weights,
                cache=cache,
                encoder_tokens=encoder_tokens,
            )
            if decodes
            else None
        ),
    )
