"""GPT-2, GPT-NeoX, OPT, Bloom, Falcon and Phi: published models, with the arithmetic written out.

Cache bytes are those of 16-bit numbers.
"""

from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.parameters import model_parameters
from tests.arch.families.config_files import read, read_without


def attention(model: Model, layer: int = 0) -> ProjectedAttention:
    found = model.layers[layer].attention
    assert isinstance(found, ProjectedAttention)
    return found


def cache_bytes(model: Model, context: int) -> int:
    return model_cache_bytes(model, context=context, stored_as="bf16")


def total(model: Model) -> int:
    return model_parameters(model).total


def test_gpt2() -> None:
    model = read("gpt2")
    # 12 layers, keys and values, 12 heads of 64 channels, 2 bytes: 36,864 a token.
    assert 12 * 2 * 12 * 64 * 2 == 36_864
    assert cache_bytes(model, 1) == 36_864
    assert cache_bytes(model, 1024) == 1024 * 36_864 == 37_748_736
    layer = (768 * 3 * 768 + 3 * 768) + (768 * 768 + 768)
    layer += (768 * 3072 + 3072) + (3072 * 768 + 768) + 2 * 2 * 768
    assert layer == 7_087_872
    # Tokens, positions, layers and the last norm; the head is the table of tokens.
    assert 50257 * 768 + 1024 * 768 + 12 * layer + 2 * 768 == 124_439_808
    assert total(model) == 124_439_808
    assert (model.max_tokens, model.vocabulary) == (1024, 50257)
    assert attention(model).config.variant.positions == "none"


def test_checkpoint_folders_is_read_where_newer_files_nest_it() -> None:
    nested = {"partial_rotary_factor": 0.5, "rope_theta": 777.0, "rope_type": "default"}
    position = attention(read("pythia-160m", rope_parameters=nested)).config.position
    assert (position.rotary_fraction, position.rotary_base) == (0.5, 777.0)
    position = attention(read_without("pythia-160m", "rotary_pct")).config.position
    assert (position.rotary_fraction, position.rotary_base) == (0.25, 10_000.0)


def test_opt_125m_ends_with_a_norm() -> None:
    small = {
        "do_layer_norm_before": True,
        "hidden_size": 768,
        "word_embed_proj_dim": None,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "num_attention_heads": 12,
    }
    assert total(read("opt-350m", **small)) == 125_239_296
    assert total(read("opt-350m", **small, _remove_final_layer_norm=True)) == 125_239_296 - 2 * 768
    plain = read("opt-350m", **small, layer_norm_elementwise_affine=False, enable_bias=False)
    assert model_parameters(plain).norms == 0
    assert model_parameters(plain).biases == 0


def test_bloom_560m() -> None:
    model = read("bloom-560m")
    # 24 layers, keys and values, 16 heads of 64 channels, 2 bytes.
    assert cache_bytes(model, 2048) == 2048 * (24 * 2 * 16 * 64 * 2) == 201_326_592
    # The model card: 559,214,592 parameters, 256,901,120 of them in the table of tokens.
    assert model_parameters(model).embedding == 250880 * 1024 == 256_901_120
    assert total(model) == 559_214_592
    assert attention(model).config.variant.positions == "alibi"
    assert model.max_tokens == 2048
    old = read_model(
        {
            "model_type": "bloom",
            "n_embed": 1024,
            "n_layer": 24,
            "num_attention_heads": 16,
            "seq_length": 2048,
            "vocab_size": 250880,
        },
        "bloom-560m",
    )
    assert old == model


def test_falcon_40b_groups_its_heads() -> None:
    model = read("falcon-40b")
    # 60 layers, keys and values, 8 KV heads of 64 channels, 2 bytes: 122,880 a token.
    assert cache_bytes(model, 2048) == 2048 * (60 * 2 * 8 * 64 * 2) == 251_658_240
    queries_and_groups = 8192 * (128 + 2 * 8) * 64
    layer = queries_and_groups + 8192 * 8192 + 2 * 8192 * 4 * 8192 + 2 * 2 * 8192
    assert total(model) == 65024 * 8192 + 60 * layer + 2 * 8192 == 41_303_293_952
    assert model.notes == (
        "transformers stores keys and values 16 times, once for every query head",
    )
    assert model.max_tokens is None


def test_falcon_7b_has_one_kv_head() -> None:
    model = read(
        "falcon-40b",
        new_decoder_architecture=False,
        multi_query=True,
        hidden_size=4544,
        num_hidden_layers=32,
        num_attention_heads=71,
        num_kv_heads=71,
        max_position_embeddings=2048,
    )
    # 32 layers, keys and values, 1 KV head of 64 channels, 2 bytes.
    assert cache_bytes(model, 2048) == 2048 * (32 * 2 * 1 * 64 * 2) == 16_777_216
    layer = 4544 * (4544 + 2 * 64) + 4544 * 4544 + 2 * 4544 * 4 * 4544 + 2 * 4544
    assert total(model) == 65024 * 4544 + 32 * layer + 2 * 4544 == 6_921_720_704
    assert model.notes == ()


def test_phi_2() -> None:
    model = read("phi-2")
    # 32 layers, keys and values, 32 heads of 80 channels, 2 bytes: 327,680 a token.
    assert cache_bytes(model, 2048) == 2048 * (32 * 2 * 32 * 80 * 2) == 671_088_640
    layer = 4 * (2560 * 2560 + 2560) + (2560 * 10240 + 10240) + (10240 * 2560 + 2560) + 2 * 2560
    # The head is a separate matrix, with a bias.
    outside = 51200 * 2560 + 2 * 2560 + (2560 * 51200 + 51200)
    assert total(model) == 32 * layer + outside == 2_779_683_840
    config = attention(model).config
    assert config.position.rotary_dim(config.size_per_head) == 32
