"""Cross attention with a mistake of paper 2's public code: ``cross_sharing="published-code"``.

This cross attention has three projections. It has the 2D position encoding ``+`` if self-attention
has it. If self-attention shares query and key, the public code uses the same kind of layer for
cross attention. That layer treats two inputs of equal length as self-attention: if padded source
and target are equally long, it uses the key as the query, so the output does not depend on the
target.
"""

from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.nn.attention import Attention, make_attention
from qkvary.nn.cache import LayerCache
from qkvary.nn.layout import Layout
from qkvary.nn.projections import Heads


def make_cross(own: AttentionConfig, cross: AttentionConfig) -> Attention:
    """Return cross attention; it has the mistake if self-attention shares query and key."""
    if own.variant.sharing.query == own.variant.sharing.key:
        return ReplacedQuery(cross, draw=False)
    return make_attention(cross)


class ReplacedQuery(Attention):
    """Cross attention that uses the key as its query when source and target are equally long."""

    def read(
        self,
        x: Float[Tensor, "batch queries d_model"],
        layout: Layout,
        *,
        memory: Float[Tensor, "batch memory d_model"] | None = None,
        cache: LayerCache | None = None,
    ) -> Heads:
        """Return query, key and value; if ``memory`` is as long as ``x``, the query is the key."""
        heads = super().read(x, layout, memory=memory, cache=cache)
        if memory is not None and memory.shape[1] == x.shape[1]:
            return heads._replace(query=heads.key)
        return heads
