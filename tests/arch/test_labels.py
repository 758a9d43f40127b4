"""One canonical label each; other spellings are read; typos get the nearest label."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.labels import (
    canonical_label,
    format_label,
    format_tuple,
    parse_label,
    parse_variant,
    suggest_labels,
)
from qkvary.arch.sharing import share
from qkvary.arch.variants import LayerVariants, Rank, Variant, join_layers
from tests.arch.variant_strategies import variants
from tests.conftest import examples


@examples(50)
@given(variant=variants)
def test_labels_and_tuples_are_read_back(variant: Variant) -> None:
    for spell in (format_label, format_tuple):
        text = spell(variant)
        assert parse_variant(text) == variant
        assert spell(parse_variant(text)) == text
        assert parse_variant(f"  {text} ") == variant


@pytest.mark.parametrize(
    ("spelling", "label"),
    [
        ("MHA", "QKV"),
        ("QK-V", "Q=K-V"),
        ("KV+Pos", "(Q=K-V)+"),
        ("Q-KV", "Q-K=V"),
        ("Q−K=V", "Q-K=V"),
        ("K", "Q=K=V"),
        ("QKV/4", "GQA-4"),
        ("Q-K=V/4", "Q-GQA-4"),
        ("q,k=v/1", "Q-MQA"),
        ("x,k=v", "I-K=V"),
        ("q=v,k", "Q=V"),
        ("(q,k=v/2)+@relative", "(Q-GQA-2)+@relative"),
        ("QKV@w64@rotary", "QKV@rotary@w64"),
        ("QKV@T0.50", "QKV@t0.5"),
        ("Q-K=V[r16]", "Q-K[r16]=V"),
        ("x[map],x,v", "I[map]-I-V"),
        ("mha*1, q,k=v*2", "QKV*1,Q-K=V*2"),
        ("QKV*1,q,k,v*2,MQA*1", "QKV*3,MQA*1"),
        ("(q=k,v)+*2,GQA-4@rotary@w8*1", "(Q=K-V)+*2,GQA-4@rotary@w8*1"),
    ],
)
def test_other_spellings_are_read(spelling: str, label: str) -> None:
    assert canonical_label(spelling) == canonical_label(label) == label


def test_what_a_label_means() -> None:
    assert parse_variant("Q[residual-gelu]-K[r3]-V[d/4]/2@alibi@w5@t0.25") == Variant(
        sharing=share("q", "k", "v"),
        query_form="residual-gelu",
        k_rank=Rank(3),
        v_rank=Rank(4, of_width=True),
        num_kv_heads=2,
        positions="alibi",
        window=5,
        temperature=0.25,
    )


@pytest.mark.parametrize(
    ("typo", "nearest"),
    [
        ("Q-K=W", "Q-K=V"),
        ("Q=K=", "Q=K=V"),
        ("GAQ-4", "GQA-4"),
        ("q,k=w", "q,k=v"),
    ],
)
def test_typos_suggest_the_nearest(typo: str, nearest: str) -> None:
    assert nearest in suggest_labels(typo)
    if "," not in typo:
        with pytest.raises(ValueError, match=f"got {typo!r}; did you mean.*{nearest}"):
            parse_variant(typo)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got ''; `qkvary variants` lists the labels"),
        ("banana12345", "got 'banana12345'; `qkvary variants` lists the labels"),
        *(
            (text, f"as in q,k=v or x,k,v, got {text!r}")
            for text in ("q,k=w", "q,q,v", "q,k", "x,x,x,x")
        ),
        ("GQA-2/2", "expected the number of KV heads once, got 'GQA-2/2'"),
        ("Q-K=V/two", "heads after '/', as in Q-K=V/4, got 'Q-K=V/two'"),
        ("QKV@foo", "expected one of the options relative, alibi, rotary, "),
        ("QKV@alibi@rotary", "expected one positions option, got two in 'QKV@alibi@rotary'"),
        ("QKV@linear@linear-relu", "expected one core option, got two in 'QKV@linear@linear-relu'"),
        ("Q-K[map]=V", "expected the mark [map] on Q, got it on K in 'Q-K[map]=V'; a map between "),
        (
            "I[residual]-K-V",
            "expected a query with its own projection, which the query form residual needs",
        ),
        ("Q[r3]-K-V", "expected a rank on a learned key or value, got it on Q in 'Q[r3]-K-V'"),
        ("Q-K[foo]-V", "expected a mark such as [r16], [d/4], [residual], [residual-gelu] or "),
        ("Q-K=V@decoupled-3", "expected an even number of decoupled rotary channels of at least 2"),
        ("Q-K=V@rotary@decoupled-4", "expected rotary or decoupled positions, got both"),
        ("Q-K=V@decoupled-4@soft", "expected no decoupled with the core soft"),
        ("QKV@kv-norm", "expected a key and a value that share a learned projection for kv-norm"),
        ("Q-K=V@kv-norm@kv-norm", "expected one kv_norm option, got two in "),
        ("Q-K=V@latent-0", "expected a latent of at least 1 channel, got 0"),
        *(
            (
                f"{label}@latent-4",
                "expected a key and a value that share one full-rank projection",
            )
            for label in ("QKV", "Q=K=V", "Q-K[r3]=V")
        ),
        ("Q-K=V@rotary@latent-4", "expected positions that do not change keys"),
        *(
            (
                f"Q=K=V@diag-mean@{option}",
                "expected query and key to be the same tensor for ",
            )
            for option in ("kv-norm", "decoupled-2")
        ),
        ("QKV*3,Q-K=V", "expected a number of layers after each variant, as in QKV*3"),
        ("QKV*x,Q-K=V*2", "expected a number of layers after each variant"),
        ("QKV*0,Q-K=V*2", "expected numbers of layers of at least 1"),
        ("QKV*3", "write QKV for all layers"),
        ("QKV*3,Q-L=V*3", "did you mean Q-K=V"),
    ],
)
def test_refusals_say_what_was_expected_and_given(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse_label(text)
    assert message in str(caught.value)


@examples(66)
@given(text=st.text(alphabet="qkvxiQKVXI=-,+()[]/@rwtdgaGQAM0123456789. ", max_size=24))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        variant = parse_variant(text)
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = "expected nothing else"
        assert parse_variant(format_label(variant)) == variant
    assert refusal.startswith("expected ")


@examples(40)
@given(layers=st.lists(variants, min_size=1, max_size=4))
def test_labels_of_layers_are_read_back(layers: list[Variant]) -> None:
    joined = join_layers(layers)
    assert parse_label(format_label(joined)) == joined
    assert (isinstance(joined, Variant)) == (len(set(layers)) == 1)
    if isinstance(joined, LayerVariants):
        assert list(joined.layers) == layers
        tuples = ",".join(f"{format_tuple(one)}*1" for one in layers)
        assert parse_label(tuples) == joined
