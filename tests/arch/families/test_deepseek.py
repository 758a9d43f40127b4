"""DeepSeek V2 to V4: published models, with the arithmetic written out.

Cache bytes are those of 16-bit numbers.
"""

import pytest

from qkvary.arch.blocks import CompressedAttention, Experts, FeedForward, LatentAttention
from qkvary.arch.models import Model
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.parameters import active_parameters, model_parameters
from tests.arch.families.config_files import read

FURTHER = "does not count what predicts further tokens"


def total(model: Model) -> int:
    return model_parameters(model).total


def compressed(model: Model, layer: int) -> CompressedAttention:
    found = model.layers[layer].attention
    assert isinstance(found, CompressedAttention)
    return found


def rates(model: Model) -> list[int | None]:
    """Tokens per summary in each layer."""
    parts = [compressed(model, index).compressor for index in range(len(model.layers))]
    return [None if part is None else part.rate for part in parts]


def test_deepseek_v2_lite() -> None:
    model = read("deepseek-v2-lite")
    # 27 layers, a latent of 512 channels and a rotated key of 64, 2 bytes: 30.4 KiB a token.
    assert model_cache_bytes(model, context=1) == 27 * (512 + 64) * 2 == 31_104
    assert model_cache_bytes(model, context=32_768) == 32_768 * 31_104 == 1_019_215_872
    query, latent = 2048 * 16 * 192, 2048 * (512 + 64)
    heads, out = 512 * 16 * (128 + 128), 16 * 128 * 2048
    attention = query + latent + heads + out + 512
    expert = 3 * 2048 * 1408
    mixture = 64 * expert + 2 * expert + 2048 * 64
    layers = 27 * (attention + 2 * 2048) + 3 * 2048 * 10944 + 26 * mixture
    assert total(model) == 2 * 102400 * 2048 + layers + 2048 == 15_706_484_224
    assert active_parameters(model) == total(model) - 26 * 58 * expert == 2_661_150_208
    assert isinstance(model.layers[0].feed_forward[0], FeedForward)
    assert isinstance(model.layers[1].feed_forward[0], Experts)
    assert (model.max_tokens, model.notes) == (163_840, ())


def test_latent_attention_and_experts_of_other_shapes() -> None:
    plain = read("deepseek-v2-lite")
    low = read("deepseek-v2-lite", q_lora_rank=96)
    attention = low.layers[3].attention
    assert isinstance(attention, LatentAttention)
    assert (attention.q_rank, attention.key_dim, attention.stored_width) == (96, 192, 576)
    change = 2048 * 96 + 96 + 96 * 16 * 192 - 2048 * 16 * 192
    assert total(low) - total(plain) == 27 * change
    # Of the latent and of the output; of dense networks and shared experts, not of routed ones.
    biased = read("deepseek-v2-lite", attention_bias=True)
    assert total(biased) - total(plain) == 27 * (576 + 2048)
    biased = read("deepseek-v2-lite", mlp_bias=True)
    assert total(biased) - total(plain) == (2 * 10944 + 2048) + 26 * (2 * 2 * 1408 + 2048)
    assert total(read("deepseek-v3", mlp_bias=True)) == total(read("deepseek-v3"))
    alone = read("deepseek-v2-lite", n_shared_experts=0)
    assert total(plain) - total(alone) == 26 * 2 * 3 * 2048 * 1408
    assert read("deepseek-v2-lite", n_shared_experts=None).layers == alone.layers
    dense = read("deepseek-v2-lite", first_k_dense_replace=99, n_routed_experts=None)
    assert all(isinstance(layer.feed_forward[0], FeedForward) for layer in dense.layers)
    mixed = read("deepseek-v2-lite", first_k_dense_replace=0, intermediate_size=None)
    assert all(isinstance(layer.feed_forward[0], Experts) for layer in mixed.layers)


def test_deepseek_v4_flash_has_two_layers_with_a_window_only() -> None:
    model = read("deepseek-v4-flash")
    assert rates(model) == [None, None, *[4, 128] * 20, 4]
    assert len({id(layer) for layer in model.layers}) == 3
    attention = compressed(model, 2)
    assert (attention.index_heads, attention.index_top) == (64, 512)
    assert attention.indexer is not None
    assert (attention.indexer.width, attention.indexer.rate) == (128, 4)
    assert compressed(model, 3).indexer is None


@pytest.mark.parametrize("context", [0, 1, 3, 4, 127, 128, 129, 1000, 32_768, 1_048_576])
def test_deepseek_v4_flash_keeps_one_tensor_and_summaries(context: int) -> None:
    """43 windows of 127 tokens of 512 channels; 21 layers with summaries of 4, 20 of 128 tokens."""
    windows = 43 * min(context, 127) * 512
    of_four, four_wait = divmod(context, 4)
    # Content and gate of those that wait, twice as wide where the next summary sees them too; and
    # of the 4 tokens of the last summary the half that the next one sees.
    sparse = 21 * (512 + 128) * (of_four + four_wait * 2 * 2 + (2 * 4 if of_four else 0))
    of_many, many_wait = divmod(context, 128)
    heavy = 20 * 512 * (of_many + many_wait * 2)
    assert model_cache_bytes(read("deepseek-v4-flash"), context=context) == 2 * (
        windows + sparse + heavy
    )


def test_deepseek_v4_flash_is_284_billion_of_which_13_are_active() -> None:
    """By its model card: 284B, 13B activated."""
    model = read("deepseek-v4-flash")
    query = 4096 * 1024 + 1024 + 1024 * 64 * 512
    out = 64 * 512 * 1024 + 8 * 1024 * 4096
    attention = query + (4096 * 512 + 512) + out + 64
    # Content and gate, positions inside a summary, and a norm.
    many = 2 * 4096 * 512 + 128 * 512 + 512
    four = 2 * 4096 * 1024 + 4 * 1024 + 512
    indexer = 2 * 4096 * 256 + 4 * 256 + 128 + 1024 * 64 * 128 + 4096 * 64
    expert = 3 * 4096 * 2048
    mixture = 257 * expert + 4096 * 256
    # Four streams, whose hyper-connection reads, writes and mixes around attention and experts.
    connection = 4 * 4096 * 24 + 24 + 3
    each = attention + mixture + 2 * connection + 2 * 4096
    layers = 43 * each + 20 * many + 21 * (four + indexer)
    choice = 4 * 4096 * 4 + 4 + 1
    assert total(model) == 2 * 129280 * 4096 + layers + 4096 + choice == 284_332_230_231
    assert active_parameters(model) == total(model) - 43 * 250 * expert == 13_799_622_231
    assert model.notes == (
        FURTHER,
        "does not count 2,327,040 numbers of experts, the tables of 3 layers that hash",
    )
    assert 3 * 129280 * 6 == 2_327_040
    assert read("deepseek-v4-flash", num_hash_layers=0).notes == (FURTHER,)


def test_deepseek_v4_as_transformers_spells_it() -> None:
    kinds = {None: "sliding_attention", 4: "compressed_sparse_attention"}
    types = [kinds.get(rate, "heavily_compressed_attention") for rate in [None, None, 4, 128, 4]]
    short = {"num_hidden_layers": 5, "compress_ratios": None}
    model = read("deepseek-v4-flash", **short, layer_types=types)
    assert rates(model) == [None, None, 4, 128, 4]
    # Further entries are those of layers that predict further tokens.
    longer = read("deepseek-v4-flash", **short, layer_types=[*types, "sliding_attention"])
    assert longer.layers == model.layers
    assert rates(read("deepseek-v4-flash", **short)) == [128, 128, 128, 4, 128]
    changed = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}
    slower = read("deepseek-v4-flash", **short, layer_types=types, compress_rates=changed)
    assert rates(slower) == [None, None, 8, 64, 8]
    older = read("deepseek-v4-flash", **short, layer_types=types, compress_rate_csa=16)
    assert rates(older) == [None, None, 16, 128, 16]
    words = ["hash_moe"] * 2 + ["moe"] * 3
    hashed = read("deepseek-v4-flash", **short, mlp_layer_types=words)
    assert "the tables of 2 layers that hash" in hashed.notes[1]
    biased = read("deepseek-v4-flash", mlp_bias=True)
    # Of the shared experts alone.
    assert total(biased) - total(read("deepseek-v4-flash")) == 43 * (2 * 2048 + 4096)
