"""Small networks whose heads can change their basis, and the tokens they read."""

from typing import Any

import torch
from torch import Tensor

from qkvary.nn.attention import Attention
from qkvary.nn.language_model import LanguageModel
from tests.small_networks import small_config

VOCABULARY = 31


def make_network(
    label: str = "QKV", *, heads: int = 2, seed: int = 0, **fields: Any
) -> LanguageModel:
    """A network in float64 with weights large enough that attention prefers some tokens."""
    sizes = {"d_model": 12, "d_ff": 17, "vocabulary": VOCABULARY, "max_tokens": 64}
    given = sizes | {"rotary_fraction": 0.5, "positions": "learned"} | fields
    config = small_config(label, num_heads=heads, **given)
    network = LanguageModel(config).double().eval()
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" not in name:
                drawn = torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
                parameter.copy_(drawn * 0.4)
    return network.requires_grad_(requires_grad=False)


def draw_gains(network: LanguageModel) -> LanguageModel:
    """The network with gains of the norms of query and key that are not one."""
    draws = torch.Generator().manual_seed(9)
    for block in network.stack.blocks:
        for norm in (block.attention.query_norm, block.attention.key_norm):
            if norm is not None:
                drawn = torch.rand(norm.weight.shape, generator=draws, dtype=torch.float64)
                norm.weight.copy_(0.5 + drawn)
    return network


def make_windows(seed: int = 0, *lengths: int) -> list[Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [
        torch.randint(VOCABULARY, (length,), generator=draws) for length in lengths or (41, 37, 29)
    ]


def draw_gauge(size: int, draws: torch.Generator) -> Tensor:
    """An invertible matrix that is far from orthogonal, of a condition number of at most 25."""
    bases = [torch.linalg.qr(_draw(size, draws))[0] for _ in range(2)]
    scales = 5 ** (2 * torch.rand(size, generator=draws, dtype=torch.float64) - 1)
    return bases[0] * scales @ bases[1]


def draw_rotary_gauge(size: int, rotated: int, draws: torch.Generator) -> Tensor:
    """What commutes with rotations: a complex factor a frequency, anything on other channels."""
    still, half = size - rotated, rotated // 2
    real, imaginary = (torch.diag(0.5 + _draw(half, draws)[0].abs()) for _ in range(2))
    turned = torch.cat(
        (torch.cat((real, -imaginary), dim=1), torch.cat((imaginary, real), dim=1)), dim=0
    )
    return torch.block_diag(draw_gauge(still, draws), turned) if still else turned


def change_basis(network: LanguageModel, seed: int) -> None:
    """Change the basis of query and key, and another of value and output, in every KV head."""
    draws = torch.Generator().manual_seed(seed)
    for block in network.stack.blocks:
        _change_layer(block.attention, draws)


def _change_layer(attention: Attention, draws: torch.Generator) -> None:
    config = attention.config
    size, group = config.size_per_head, config.num_heads // config.num_kv_heads
    is_rotary = config.variant.positions == "rotary"
    rotated = config.position.rotary_dim(size) if is_rotary else 0
    for head in range(config.num_kv_heads):
        scored = draw_rotary_gauge(size, rotated, draws) if rotated else draw_gauge(size, draws)
        mixed = draw_gauge(size, draws)
        own = slice(head * size, (head + 1) * size)
        _apply(attention.k_proj, own, scored)
        _apply(attention.v_proj, own, mixed)
        for query in range(head * group, (head + 1) * group):
            part = slice(query * size, (query + 1) * size)
            _apply(attention.q_proj, part, torch.linalg.inv(scored).mT)
            output = attention.o_proj.weight
            output[:, part] = output[:, part] @ torch.linalg.inv(mixed)


def _apply(projection: object, rows: slice, matrix: Tensor) -> None:
    for name in ("weight", "bias"):
        found = getattr(projection, name)
        if found is not None:
            found[rows] = matrix @ found[rows]


def _draw(size: int, draws: torch.Generator) -> Tensor:
    return torch.randn(size, size, generator=draws, dtype=torch.float64)
