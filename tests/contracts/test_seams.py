"""Attention and decoding over a memory."""

import itertools

import pytest
import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.models import as_model
from qkvary.arch.networks import BlockConfig, EncoderDecoderConfig
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.macs import forward_macs
from qkvary.costs.network import network_costs
from qkvary.inference.beams import search
from qkvary.inference.requests import Request
from qkvary.nn.attention import Attention
from qkvary.nn.decoder import Decoder
from qkvary.nn.encoder_decoder import EncoderDecoder, EncoderDecoderCache
from qkvary.nn.layout import Layout
from tests.contracts.flops import count_macs

BEGIN, END = 0, 1
"""The end is also the padding."""
CROSSING = (
    *("QKV", "Q=K-V", "Q-K=V", "Q=V", "Q=K=V", "(Q=K-V)+", "(Q=K=V)+"),
    *("GQA-2", "Q-GQA-2", "MQA", "Q-MQA"),
    *("I-K-V", "Q-I-V", "Q-K-I", "I-K=V", "Q=K-I", "Q=V-I", "I-I-V", "I-K-I", "Q-I-I", "I-I-I"),
    *("Q[residual]-K-V", "Q[map]=K-V", "Q-K[r3]-V", "Q-K-V[r3]", "Q-K=V[r3]"),
    *("QKV@rotary", "Q-K=V@rotary", "Q-K=V@latent-4", "Q=K-V@soft", "QKV@t0.5"),
)
"""Variants of cross attention: every sharing, and the options that need no order of tokens."""


def translation(label: str = "Q-K=V", cross: str = "same") -> EncoderDecoderConfig:
    layer = AttentionConfig(d_model=16, num_heads=4, variant=parse_variant(label), causal=True)
    return EncoderDecoderConfig(
        attention=layer,
        block=BlockConfig(d_ff=29),
        num_layers=2,
        vocabulary=8,
        source_vocabulary=7,
        padding=END,
        max_tokens=11,
        cross_sharing=cross,
        scale_embedding=False,
    )


@pytest.mark.parametrize(
    ("label", "cross"), [*((label, "same") for label in CROSSING), ("Q-K=V@rotary", "none")]
)
def test_an_encoder_decoder_is_counted(label: str, cross: str) -> None:
    config = translation(label, cross)
    model, source, tokens = EncoderDecoder(config), torch.arange(2, 7)[None], torch.zeros(1, 3)
    assert network_costs(config).parameters.total == sum(one.numel() for one in model.parameters())
    macs = forward_macs(as_model(config), tokens=3, encoder_tokens=5, pairs="square")
    assert count_macs(model, tokens.long(), source=source) == macs.total


@pytest.mark.parametrize(
    ("label", "cross"),
    [
        *((label, "same") for label in CROSSING),
        *((label, "none") for label in ("QKV@relative", "Q-K=V@decoupled-2", "(Q=K-V)+", "Q-MQA")),
    ],
)
def test_steps_through_caches_equal_one_pass(label: str, cross: str) -> None:
    config = translation(label, cross)
    model = EncoderDecoder(config).double()
    assert isinstance(model, Decoder)
    drawn = torch.Generator().manual_seed(0)
    source, inputs = (torch.randint(2, 7, (3, size), generator=drawn) for size in (6, 7))
    source[1, 4:] = source[2, 1:] = END
    with torch.no_grad():
        whole = model(inputs, source=source)
        cache = EncoderDecoderCache(config, *model.encode(source))
        steps = [model(inputs[:, n : n + 1], cache=cache) for n in range(7)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-12, atol=1e-12)
    # What cross attention stored is read, and not made again: another memory changes nothing.
    assert {layer.length for layer in cache.cross.layers} == {6}
    held = model_cache_bytes(as_model(config), context=7, stored_as="fp32", encoder_tokens=6)
    assert cache.nbytes == 2 * 3 * held


@pytest.mark.parametrize("label", ["(Q=K-V)+", "Q-K=V"])
def test_beams_over_a_memory_find_the_most_probable_translation(label: str) -> None:
    config = translation(label)
    model = EncoderDecoder(config).double().eval()
    source = torch.tensor([[3, 5, 2, 6]])
    memory = model.encode(source)
    request = Request(prompt=(BEGIN,), max_new_tokens=2, stop_tokens=(END,))
    (best, *_) = search(
        model,
        request,
        # As many as there are continuations, so that none is given up.
        beams=8**2,
        length_penalty=0.0,
        new_cache=lambda limit: EncoderDecoderCache(config, *memory, max_tokens=limit),
    )
    answers = [answer for length in range(3) for answer in itertools.product(*[OTHERS] * length)]
    totals = {answer: total_of(model, source, answer) for answer in answers}
    likeliest = max(totals, key=lambda answer: totals[answer])
    assert best.tokens == likeliest
    assert best.logprob == pytest.approx(totals[likeliest], rel=1e-9)


OTHERS = [token for token in range(8) if token != END]


def total_of(model: EncoderDecoder, source: torch.Tensor, answer: tuple[int, ...]) -> float:
    """The log-probability of a translation, in one pass; a short one ends."""
    said = [*answer, END][:2]
    inputs = torch.tensor([[BEGIN, *said[:-1]]])
    with torch.no_grad():
        logprobs = model(inputs, source=source).log_softmax(-1)[0]
    return sum(logprobs[place, token].item() for place, token in enumerate(said))


@pytest.mark.parametrize("label", CROSSING)
def test_cross_attention_equals_attention_to_tokens_before(label: str) -> None:
    """A causal layer's last token, seen from outside: its keys are a memory for its query."""
    variant = parse_variant(label)
    causal = AttentionConfig(d_model=12, num_heads=4, variant=variant, causal=True)
    one = Attention(causal).double()
    other = Attention(AttentionConfig(d_model=12, num_heads=4, variant=variant)).double()
    other.load_state_dict(one.state_dict())
    x = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    x.requires_grad_()
    across = Layout(new_tokens=5, device=x.device, query_positions=torch.full((1, 1), 4))
    expected = one(x)[:, -1:]
    found = other(x[:, -1:], memory=x, layout=across)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
