"""Sums of second moments of a layer over the windows of a text, in float64.

Memory does not grow with the text.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.analysis.observation import LayerReading
from qkvary.analysis.tying import DAMPING
from qkvary.arch.attention import AttentionConfig
from qkvary.nn.layout import Rotation


class LayerMoments:
    """Sums the second moments of the input, queries and gradients of one layer."""

    def __init__(self, config: AttentionConfig, device: torch.device) -> None:
        self.config = config
        size = config.size_per_head

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.tokens = 0
        self.input_sum = zeros(config.d_model)
        self.input_products = zeros(config.d_model, config.d_model)
        self.query_products = zeros(config.num_heads, size, size)
        # Two halves of the text: the odd and the even windows.
        self.windows = 0
        self.half_tokens = [0, 0]
        self.gradient_products = zeros(2, config.num_kv_heads, 2 * size, 2 * size)
        # Normalised keys next to values; these do not follow from the moments of the input.
        normed = config.num_kv_heads if config.variant.head_norm != "none" else 0
        self.pair_sum = zeros(normed, 2 * size)
        self.pair_products = zeros(normed, 2 * size, 2 * size)

    @torch.no_grad()
    def add(self, reading: LayerReading, generator: torch.Generator) -> None:
        """Add a window; in a rotary layer, draw one visible key for each query."""
        inputs = reading.input.double()
        self.tokens += len(inputs)
        self.input_sum += inputs.sum(dim=0)
        self.input_products += inputs.mT @ inputs
        queries = scaled_queries(reading, generator)
        self.query_products += queries.mT @ queries
        if len(self.pair_sum):
            pairs = torch.cat((reading.key, reading.value), dim=-1).double()
            self.pair_sum += pairs.sum(dim=1)
            self.pair_products += pairs.mT @ pairs
        gradients = torch.cat((reading.key_gradient, reading.value_gradient), dim=-1).double()
        half = self.windows % 2
        self.windows += 1
        self.half_tokens[half] += len(inputs)
        self.gradient_products[half] += gradients.mT @ gradients

    def covariance(self) -> Float[Tensor, "d_model d_model"]:
        """Return the covariance of the layer input, with a raised diagonal.

        ``DAMPING`` times the mean of the diagonal is added to the diagonal.
        """
        mean = self.input_sum / self.tokens
        found = self.input_products / self.tokens - torch.outer(mean, mean)
        found = (found + found.mT) / 2
        share = DAMPING * found.trace().clamp(min=torch.finfo(found.dtype).tiny) / len(found)
        return found + share * torch.eye(len(found), dtype=found.dtype, device=found.device)

    def pair_covariance(self) -> Float[Tensor, "kv_heads joint joint"]:
        """Return the covariance of [k, v] for normalised keys k and values v."""
        mean = self.pair_sum / self.tokens
        return self.pair_products / self.tokens - mean[..., None] * mean[:, None]

    def query_moments(self) -> Float[Tensor, "heads head_dim head_dim"]:
        """Return the second moment of the queries, including the scale of the scores."""
        return self.query_products / self.tokens

    def curvature(self) -> Float[Tensor, "kv_heads joint joint"]:
        """Return the second moment of the gradients with respect to key and value, as [k, v]."""
        return self.gradient_products.sum(dim=0) / self.tokens

    def half_curvatures(self) -> tuple[Float[Tensor, "kv_heads joint joint"], ...]:
        """Return the curvature of each half of the windows. A single window serves as both."""
        if self.windows < 2:
            return (self.curvature(), self.curvature())
        return tuple(map(torch.div, self.gradient_products, self.half_tokens))


def scaled_queries(
    reading: LayerReading, generator: torch.Generator
) -> Float[Tensor, "heads tokens head_dim"]:
    """Return queries, scaled such that their products with unrotated keys are scores.

    In a rotary layer, one visible key is drawn for each query, and the query is rotated back by the
    position of that key. Under a soft cap, one visible key is also drawn, and the query is
    multiplied by the slope of the cap at the score of that key.
    """
    scores, rotation, config = reading.scores, reading.rotation, reading.attention.config
    factor = scores.scale / scores.temperature
    query = scores.query * (factor if scores.gain is None else factor * scores.gain)
    if rotation is None and config.variant.soft_cap is None:
        return query[0].double()
    index = torch.arange(query.shape[2])
    window = config.variant.window
    nearest = 0 if window is None else (index - window + 1).clamp(min=0)
    drawn = torch.rand(len(index), generator=generator, dtype=torch.float64)
    keys = nearest + (drawn * (index - nearest + 1)).long()
    if scores.products is not None and config.variant.soft_cap is not None:
        met = scores.products[:, :, index, keys.to(query.device)]
        query = query * (1 - (met / config.variant.soft_cap).square())[..., None]
    if rotation is None:
        return query[0].double()
    turned = Rotation(keys[None].to(query.device), config, query.dtype, len(index))
    return turned.rotate(query, inverse=True)[0].double()
