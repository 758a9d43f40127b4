"""What is found to be savable in models of every kind; that it is exact is shown in contracts."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.models import Model
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.exact_savings import Method, Saving, SavingsReport, apply_saving, find_savings
from qkvary.costs.formats import parse_format
from qkvary.costs.macs import decode_macs
from tests.costs.toy_models import (
    ALL_KINDS,
    encoder_decoder_model,
    language_model,
    plain_layer,
    projected,
    stack,
    tied_rotary_model,
)

BF16 = parse_format("bf16")


def report_of(model: Model, *, context: int = 37, **fields: object) -> SavingsReport:
    given: dict[str, object] = {"stored_as": BF16, **fields}
    return find_savings(model, context=context, **given)  # type: ignore[arg-type]


def savings_of(model: Model, **fields: object) -> dict[Method, Saving]:
    return {saving.method: saving for saving in report_of(model, **fields).savings}


def test_a_model_like_gemma_4_by_hand() -> None:
    context, window = 37, 6
    local, both = 2 * 3 * 8 * 2, 2 * 2 * 16 * 2
    model = tied_rotary_model(window=window)
    report = report_of(model, context=context)
    assert report.bytes_now == 5 * (window - 1) * local + context * both
    found = {saving.method: saving for saving in report.savings}
    sliced, turned = found["value and rotated slice"], found["rotate when read"]
    assert (sliced.layers, turned.layers) == ((5,), (5,))
    # The value of 16 channels and 4 rotated ones of the key, of two heads, instead of 32.
    assert sliced.bytes_then == context * 2 * (16 + 4) * 2
    assert turned.bytes_then == context * 2 * 16 * 2
    assert (sliced.share_of_layers, turned.share_of_layers) == (0.375, 0.5)
    assert turned.model_bytes_then == report.bytes_now - context * 2 * 16 * 2
    assert turned.share_of_model == pytest.approx(context * 64 / report.bytes_now)
    # 48 channels of keys and values where the input has 24.
    inputs = found["layer input"]
    assert inputs.layers == (0, 1, 2, 3, 4, 5)
    assert report.already == ("layers with a window keep 5 tokens",)
    assert report.obstacles == ()


@pytest.mark.parametrize(
    ("label", "methods"),
    [
        ("QKV", {"layer input"}),
        ("Q=K-V", {"layer input"}),
        ("I-K-V", {"layer input"}),
        ("Q-I-V", {"layer input"}),
        ("Q-K-I", {"layer input"}),
        ("QKV@rotary", {"layer input"}),
        ("Q-K[r3]-V", {"layer input", "latents"}),
        ("Q-K-V[r3]", {"layer input", "latents"}),
        ("Q-K[r3]=V", {"latents"}),
        ("Q-K[r3]=V/1@rotary", {"latents"}),
        ("GQA-4", set()),
        ("MQA", set()),
        ("Q-K=V", set()),
        ("Q-I-I", set()),
        ("Q-MQA", set()),
    ],
)
def test_which_methods_apply(label: str, methods: set[Method]) -> None:
    assert set(savings_of(language_model(label, d_model=40))) == methods


def test_keys_and_values_of_an_encoder_are_kept() -> None:
    found = savings_of(encoder_decoder_model(), encoder_tokens=19)
    assert found["layer input"].model_bytes_now == 2 * (37 + 19) * 48 * 2
    assert found["layer input"].model_bytes_then == 2 * 37 * 24 * 2 + 2 * 19 * 48 * 2


def test_where_nothing_is_kept_there_is_nothing_to_save() -> None:
    assert savings_of(language_model("QKV@w1")) == {}


@given(
    model=st.sampled_from(ALL_KINDS),
    context=st.integers(1, 300),
    form=st.sampled_from(["fp32", "bf16", "int8", "int4"]),
)
def test_a_saving_is_a_model_that_keeps_less(model: Model, context: int, form: str) -> None:
    report = report_of(model, context=context, stored_as=parse_format(form))
    assert report.bytes_now == model_cache_bytes(model, context=context, stored_as=form)
    for saving in report.savings:
        changed = apply_saving(model, saving.method)
        assert changed is not None
        then = model_cache_bytes(changed, context=context, stored_as=form)
        assert saving.model_bytes_then == then < report.bytes_now
        assert 0 < saving.share_of_model <= saving.share_of_layers + 1e-12 < 1
        different = [
            index
            for index, (own, other) in enumerate(zip(model.layers, changed.layers, strict=True))
            if own != other
        ]
        assert list(saving.layers) == different


@given(model=st.sampled_from(ALL_KINDS), context=st.integers(2, 300))
def test_what_is_not_kept_is_computed(model: Model, context: int) -> None:
    changed = apply_saving(model, "layer input")
    if changed is not None:
        assert (
            decode_macs(changed, context=context).total > decode_macs(model, context=context).total
        )
    for method in ("value and rotated slice", "rotate when read", "one tensor for both"):
        changed = apply_saving(model, method)
        if changed is not None:
            assert decode_macs(changed, context=context) == decode_macs(model, context=context)


def scores_of(attention: ProjectedAttention, *, context: int) -> int:
    """All products of one layer but those of the output, with 24 channels in and out."""
    count = decode_macs(stack(plain_layer(attention)), context=context)
    return count.projections + count.scores - 24 * 24


def test_products_of_stored_latents_by_hand() -> None:
    """Six heads of four: widened again, or absorbed where that takes fewer and nothing is turned.

    The query, x A of the new token, a stored source that is whole, the latents, the scores.
    """
    for label, context, products in (
        # Absorbed by query and output, the latents are narrower than a head: it takes less.
        ("Q-K[r3]-V[r2]", 9, 576 + 24 * (3 + 2) + 24 * (3 + 2) + 9 * 6 * (3 + 2)),
        ("Q-K[r3]=V", 9, 576 + 24 * 3 + 2 * 24 * 3 + 2 * 9 * 6 * 3),
        # The key is turned, the value is not.
        ("Q-K[r3]-V[r2]@rotary", 9, 576 + 120 + 9 * 3 * 24 + 24 * 2 + 9 * (24 + 12)),
        ("Q-K[r3]=V@rotary", 9, 576 + 72 + 9 * 3 * 24 + 9 * 48),
        # A whole value, and keys of two heads, which are quickly widened.
        ("Q-K[r7]-V/2", 2, 576 + 24 * 7 + 24 * 8 + 2 * 7 * 8 + 2 * 48),
        # The query is the new token's key.
        ("Q[r7]=K-V", 1, 24 * 7 + 576 + 7 * 24 + 48),
        ("Q[r3]=K-V", 9, 24 * 3 + 576 + 3 * 24 + 24 * 3 + 9 * 6 * 3 + 9 * 24),
    ):
        stored = dataclasses.replace(projected(label), storage="latent")
        assert scores_of(stored, context=context) == products, label
