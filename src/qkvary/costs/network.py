"""Derives all costs of a network from its configuration."""

from dataclasses import dataclass
from typing import Any, get_args

from qkvary.arch.models import as_model
from qkvary.arch.networks import Network
from qkvary.arch.parts import check_word
from qkvary.costs.cache import cache_bytes_per_token, model_cache_bytes
from qkvary.costs.formats import Dtype
from qkvary.costs.macs import MacCount, forward_macs
from qkvary.costs.parameters import ParameterCount, model_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of a network at one sequence length and in one dtype."""

    length: int
    """Tokens of the sequence for which MACs and cache are counted."""
    dtype: Dtype
    """The dtype of the cache."""
    parameters: ParameterCount
    """Number of learned parameters by part."""
    square_macs: MacCount
    """MACs of a forward pass over one sequence with all pairs of tokens, as in the papers."""
    visible_macs: MacCount
    """MACs of a forward pass with only the pairs of tokens that no mask hides."""
    cache_bytes_per_token: int | None
    """Bytes that the cache stores per decoded token; ``None`` for a network that is not causal."""
    cache_bytes_per_sequence: int | None
    """Bytes that the cache stores for ``length`` tokens."""

    @property
    def macs_per_sequence(self) -> int:
        """MACs of a forward pass over one sequence, counting every pair of tokens."""
        return self.square_macs.total

    @property
    def macs_per_token(self) -> int:
        """``macs_per_sequence`` divided by the number of tokens."""
        return self.macs_per_sequence // self.length

    def to_dict(self) -> dict[str, Any]:
        """Return the costs as JSON-ready data; every name ends with the unit."""
        return {
            "length": self.length,
            "dtype": self.dtype,
            "parameters": self.parameters.to_dict(),
            "macs": self.square_macs.to_dict(),
            "visible_macs": self.visible_macs.to_dict(),
            "macs_per_token": self.macs_per_token,
            "macs_per_sequence": self.macs_per_sequence,
            "visible_macs_per_token": self.visible_macs.total / self.length,
            "visible_macs_per_sequence": self.visible_macs.total,
            "cache_bytes_per_token": self.cache_bytes_per_token,
            "cache_bytes_per_sequence": self.cache_bytes_per_sequence,
        }


def network_costs(config: Network, *, length: int | None = None, dtype: Dtype = "float32") -> Costs:
    """Derive all costs of a network from its configuration.

    Args:
        config: The network.
        length: Tokens of a sequence; ``None`` means the maximum length of the network.
        dtype: The dtype of the cache.
    """
    check_word("dtype", dtype, get_args(Dtype))
    model = as_model(config)
    tokens = model.max_tokens if length is None else length
    if tokens is None:
        kind = type(config).__name__
        raise ValueError(f"expected a length, because {kind} has no maximum length, got none")
    return Costs(
        length=tokens,
        dtype=dtype,
        parameters=model_parameters(model),
        square_macs=forward_macs(model, tokens=tokens, pairs="square"),
        visible_macs=forward_macs(model, tokens=tokens, pairs="visible"),
        cache_bytes_per_token=cache_bytes_per_token(config, dtype),
        cache_bytes_per_sequence=(
            model_cache_bytes(model, context=tokens, stored_as=dtype) if model.is_causal else None
        ),
    )
