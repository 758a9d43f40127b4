"""The shapes of tensors that many functions take and return."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

TokenIds = Int[Tensor, "batch tokens"]
Hidden = Float[Tensor, "batch tokens d_model"]
PerHead = Float[Tensor, "batch heads tokens head_dim"]
Pairs = Float[Tensor, "batch heads queries keys"]
LayerMaps = Float[Tensor, "batch layers heads tokens tokens"]
"""The attention probabilities of every layer."""
Logits = Float[Tensor, "batch tokens vocabulary"]
AttentionMask = Bool[Tensor, "batch keys"] | Int[Tensor, "batch keys"]
"""True or 1 for real tokens, False or 0 for padding."""
