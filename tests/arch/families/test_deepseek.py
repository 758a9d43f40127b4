"""DeepSeek V2 to V4: published models, with the arithmetic written out.

Cache bytes are those of 16-bit numbers.
"""

from qkvary.arch.blocks import CompressedAttention
from qkvary.arch.models import Model
from tests.arch.families.config_files import read


def compressed(model: Model, layer: int) -> CompressedAttention:
    found = model.layers[layer].attention
    assert isinstance(found, CompressedAttention)
    return found


def rates(model: Model) -> list[int | None]:
    """Tokens per summary in each layer."""
    parts = [compressed(model, index).compressor for index in range(len(model.layers))]
    return [None if part is None else part.rate for part in parts]


def test_deepseek_v4_flash_has_two_layers_with_a_window_only() -> None:
    model = read("deepseek-v4-flash")
    assert rates(model) == [None, None, *[4, 128] * 20, 4]
    assert len({id(layer) for layer in model.layers}) == 3
    attention = compressed(model, 2)
    assert (attention.index_heads, attention.index_top) == (64, 512)
    assert attention.indexer is not None
    assert (attention.indexer.width, attention.indexer.rate) == (128, 4)
    assert compressed(model, 3).indexer is None


def test_deepseek_v4_as_transformers_spells_it() -> None:
    kinds = {None: "sliding_attention", 4: "compressed_sparse_attention"}
    types = [kinds.get(rate, "heavily_compressed_attention") for rate in [None, None, 4, 128, 4]]
    short = {"num_hidden_layers": 5, "compress_ratios": None}
    # Further entries are those of layers that predict further tokens.
    longer = read("deepseek-v4-flash", **short, layer_types=[*types, "sliding_attention"])
    assert rates(longer) == [None, None, 4, 128, 4]
    assert rates(read("deepseek-v4-flash", **short)) == [128, 128, 128, 4, 128]
    older = read("deepseek-v4-flash", **short, layer_types=types, compress_rate_csa=16)
    assert rates(older) == [None, None, 16, 128, 16]
