"""The encoder-decoder equals torch's, and cross attention with the published mistake is that."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, EncoderDecoderConfig
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache
from qkvary.nn.encoder_decoder import EncoderDecoder, EncoderDecoderCache
from qkvary.papers.key_value.cross_attention import ReplacedQuery
from tests.reference.positions import sinusoid

INIT = Initialization(scheme="xavier-matrices")
SOURCE = torch.tensor([[2, 6, 5, 4, 3], [2, 4, 3, 1, 1]])
TARGET = torch.tensor([[2, 9, 8, 4], [2, 7, 7, 5]])


def make_config(
    label: str = "QKV", cross_sharing: str = "none", **fields: object
) -> EncoderDecoderConfig:
    layer = AttentionConfig(
        d_model=12, num_heads=3, variant=parse_variant(label), causal=True, init=INIT
    )
    given: dict[str, object] = {
        "attention": layer,
        "block": BlockConfig(d_ff=19, activation="relu"),
        "num_layers": 2,
        "vocabulary": 11,
        "source_vocabulary": 7,
        "max_tokens": 13,
        "cross_sharing": cross_sharing,
        "init": INIT,
    }
    return EncoderDecoderConfig(**{**given, **fields})  # type: ignore[arg-type]


def make_model(config: EncoderDecoderConfig) -> EncoderDecoder:
    model = EncoderDecoder(config, seed=3).double().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(7))
    return model


def copy_attention(own: Attention, other: nn.MultiheadAttention) -> None:
    parts = [own.projections[source] for source in ("q", "k", "v")]
    with torch.no_grad():
        other.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        other.in_proj_bias.copy_(torch.cat([part.bias for part in parts if part.bias is not None]))
    other.out_proj.load_state_dict(own.o_proj.state_dict())


def reference(model: EncoderDecoder) -> nn.Transformer:
    """Torch's network with the same weights."""
    config = model.config
    sizes = (config.d_model, config.layers[0].num_heads, config.block.d_ff)
    form: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
    layers, norm = config.num_layers, nn.LayerNorm(config.d_model)
    torch_model = nn.Transformer(
        *sizes[:2],
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, **form), layers, norm, enable_nested_tensor=False
        ),
        custom_decoder=nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*sizes, **form), layers, nn.LayerNorm(config.d_model)
        ),
        batch_first=True,
    ).double()
    stacks = ((model.encoder, torch_model.encoder), (model.decoder, torch_model.decoder))
    for own, other in stacks:
        other.norm.load_state_dict(own.final_norm.state_dict())
        for block, layer in zip(own.blocks, other.layers, strict=True):
            copy_attention(block.attention, layer.self_attn)
            norms = [block.attention_norm, block.feed_forward_norm]
            if own is model.decoder:
                copy_attention(block.cross, layer.multihead_attn)
                norms.insert(1, block.cross_norm)
            for number, norm in enumerate(norms, start=1):
                getattr(layer, f"norm{number}").load_state_dict(norm.state_dict())
            layer.linear1.load_state_dict(block.feed_forward.up.state_dict())
            layer.linear2.load_state_dict(block.feed_forward.down.state_dict())
    return torch_model


def embed(tokens: Tensor, table: Tensor) -> Tensor:
    """Tokens times sqrt(d), plus sine and cosine in turns."""
    width = table.shape[1]
    waves = [sinusoid(place, width) for place in range(tokens.shape[1])]
    return F.embedding(tokens, table) * width**0.5 + torch.tensor(waves, dtype=torch.float64)


def test_it_is_the_transformer_of_torch() -> None:
    model = make_model(make_config())
    x, y = embed(SOURCE, model.source_embedding), embed(TARGET, model.embedding)
    padding = SOURCE == 1
    hidden = reference(model)(
        x,
        y,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    expected = F.linear(hidden, model.head_weight, model.head_bias)
    torch.testing.assert_close(model(TARGET, source=SOURCE), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("label", ["Q=K-V", "(Q=K-V)+", "Q=K=V"])
def test_the_published_mistake_replaces_the_query_where_lengths_agree(label: str) -> None:
    config = make_config(label, "published-code")
    cross = make_model(config).decoder.blocks[0].cross  # type: ignore[index]
    assert isinstance(cross, ReplacedQuery)
    draw = torch.Generator().manual_seed(1)
    memory, x, y = (torch.randn(2, 5, 12, dtype=torch.float64, generator=draw) for _ in range(3))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = cross(x, memory=memory, attention_mask=mask)
    assert torch.equal(found, cross(y, memory=memory, attention_mask=mask))
    # It is self-attention of the memory with one projection for query and key.
    variant = parse_variant("(Q=K-V)+" if label.endswith("+") else "Q=K-V")
    shared = Attention(dataclasses.replace(cross.config, variant=variant)).double()
    shared.load_state_dict({k: v for k, v in cross.state_dict().items() if "q_proj" not in k})
    torch.testing.assert_close(found, shared(memory, attention_mask=mask), rtol=1e-12, atol=1e-12)
    # Elsewhere it is cross attention.
    plain = Attention(cross.config).double()
    plain.load_state_dict(cross.state_dict())
    for queries in (x[:, :4], F.pad(x, (0, 0, 0, 1))):
        expected = plain(queries, memory=memory, attention_mask=mask)
        torch.testing.assert_close(cross(queries, memory=memory, attention_mask=mask), expected)


def test_cross_attention_has_the_variant_that_its_field_says() -> None:
    expected = {"none": "QKV", "same": "(Q=K=V)+", "published-code": "QKV+"}
    for name, label in expected.items():
        cross = make_config("(Q=K=V)+", name).cross  # type: ignore[arg-type]
        assert {layer.variant for layer in cross} == {parse_variant(label)}


def test_blocks_that_are_recomputed_find_the_same_gradients() -> None:
    config = make_config("Q-K=V", block=BlockConfig(d_ff=19, dropout=0.2))
    gradients: list[list[Tensor]] = []
    for recompute in (False, True):
        model = EncoderDecoder(config).double()
        model.encoder.recompute_blocks = model.decoder.recompute_blocks = recompute
        torch.manual_seed(4)
        loss = model(TARGET, source=SOURCE).square().sum()
        gradients.append(list(torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


@pytest.mark.parametrize("layer", [0, 1])
def test_attention_maps_are_those_of_the_pass(layer: int) -> None:
    """What the layers mix with these weights is what they give in a pass."""
    model = make_model(make_config("QKV"))
    found, block = model.attention_maps(TARGET, SOURCE), model.decoder.blocks[layer]
    seen: list[tuple[Tensor, Tensor]] = []
    block.attention.register_forward_hook(
        lambda _, inputs, output: seen.append((inputs[0], output))
    )
    model(TARGET, source=SOURCE)
    (x, output), *_ = seen
    value = block.attention.v_proj(x).unflatten(-1, (3, -1)).transpose(1, 2)
    mixed = (found.decoder[:, layer] @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(block.attention.o_proj(mixed), output)


@pytest.mark.parametrize(
    ("label", "fields", "message"),
    [
        ("QKV", {"attention": AttentionConfig(d_model=12, num_heads=3)}, "causal layers in a"),
        ("QKV", {"embedding_dropout": 1.0}, "embedding_dropout in"),
        ("QKV", {"padding": 7}, "a padding token in both vocabularies, got 7"),
        ("QKV", {"block": BlockConfig(d_ff=19, norm_placement="post")}, "the norm placement pre"),
        ("QKV@w4", {"cross_sharing": "same"}, "no linear core, window, stride or diagonal"),
        ("QKV@linear", {"cross_sharing": "same"}, "no linear core, window, stride or diagonal"),
        ("QKV@linear@decay-fixed", {}, "an encoder-decoder without a decay"),
    ],
)
def test_what_has_no_meaning_is_refused(label: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"expected {message}"):
        make_config(label, **fields)


def test_what_cannot_be_computed_is_refused() -> None:
    config = make_config("Q=K-V", "published-code")
    model = make_model(config)
    with pytest.raises(ValueError, match="expected cross attention that can be decoded step by"):
        EncoderDecoderCache(config, *model.encode(SOURCE))
    with pytest.raises(ValueError, match="got no source and KVCache"):
        model(TARGET, cache=KVCache(config.layers))
    with pytest.raises(ValueError, match="expected at most 13 tokens, got 0 cached and 14 new"):
        model(TARGET, source=torch.full((2, 14), 3))


def test_the_source_is_projected_once() -> None:
    model = make_model(make_config("Q-K=V"))
    projected: list[int] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        projected.append(inputs[0].shape[1])

    for block in model.decoder.blocks:
        block.cross.k_proj.register_forward_hook(note)
    with torch.no_grad():
        memory, mask = model.encode(SOURCE)
        cache = EncoderDecoderCache(model.config, memory, mask, max_tokens=4)
        steps = [model(TARGET[:, index : index + 1], cache=cache) for index in range(4)]
        assert projected == [5, 5]
        torch.testing.assert_close(torch.cat(steps, dim=1), model(TARGET, source=SOURCE))
