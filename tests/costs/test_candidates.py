"""Which variants a model is compared in: sensible ones by default, all that fit on request."""

import pytest

from qkvary.arch.families.sizes import load_size, name_sizes
from qkvary.arch.models import Model, as_model
from qkvary.arch.named_networks import gpt_300m
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.candidates import AS_IT_IS, Candidates, choose_candidates, own_label
from tests.costs.toy_models import (
    compressed_model,
    encoder_decoder_model,
    language_model,
    latent_model,
    plain_layer,
    projected,
    stack,
    tied_rotary_model,
)


def names_of(found: Candidates) -> list[str]:
    return [row.name for row in found.rows]


def labels_of(found: Candidates) -> list[str]:
    return [row.label for row in found.rows if row.saving is None]


@pytest.mark.parametrize(
    ("model", "label"),
    [
        (language_model(), "QKV"),
        (language_model("GQA-8"), "QKV"),
        (language_model("GQA-4"), "GQA-4"),
        (language_model("MQA"), "MQA"),
        (language_model("Q-GQA-2"), "Q-GQA-2"),
        (language_model("QKV@rotary@w5"), "QKV"),
        (language_model("I-K-V@alibi"), "I-K-V"),
        (encoder_decoder_model("Q-K=V"), "Q-K=V"),
        (latent_model(), AS_IT_IS),
        (compressed_model(), AS_IT_IS),
        (tied_rotary_model(), AS_IT_IS),
        (stack(plain_layer(projected()), plain_layer(projected("MQA"))), AS_IT_IS),
    ],
)
def test_a_models_own_label(model: Model, label: str) -> None:
    assert own_label(model) == label


def test_a_plan_compares_what_the_papers_compare() -> None:
    found = choose_candidates(as_model(gpt_300m(), "300M"))
    assert names_of(found) == [
        "QKV",
        "QKV, layer input",
        "Q-K=V",
        "GQA-4",
        "Q-GQA-4",
        "MQA",
        "Q-MQA",
    ]
    assert found.original.model.name == "300M"
    assert [row.is_original for row in found.rows] == [True, True, *[False] * 5]
    # An inherited decoupled key is stored, so the label names it.
    found = choose_candidates(load_size("lm-1m-portable"), ["MQA", "Q-K=V@rotary"])
    assert labels_of(found)[1:] == ["MQA@decoupled-16", "Q-K=V@rotary"]


@pytest.mark.parametrize("all_sharings", [False, True])
def test_no_suggested_variant_keeps_more_than_the_model(all_sharings: bool) -> None:
    """Sharing is applied to the model's own KV heads, never to more of them."""
    for name in name_sizes():
        found = choose_candidates(load_size(name), all_sharings=all_sharings)
        assert len(set(names_of(found))) == len(found.rows), name
        assert found.rows[0].is_original, name
        assert all("no norms of query and key" in note for note in found.notes), name
        kept = [model_cache_bytes(row.model, context=5000, encoder_tokens=50) for row in found.rows]
        more = [row.name for row, size in zip(found.rows, kept, strict=True) if size > kept[0]]
        # More than a model of K=V with all heads: two projections again.
        assert {one.partition("@")[0] for one in more} <= {"QKV", "Q=K-V", "I-K-V"}, name
        assert not more or found.original.label.startswith("Q-K=V"), name
        # What is said to store less does.
        assert all(kept[i] < kept[0] for i, row in enumerate(found.rows) if row.saving), name


def test_variants_of_a_model_with_norms_of_query_and_key() -> None:
    """Key and value that are one tensor have no such norms, which a note says."""
    found = choose_candidates(load_size("qwen3-8b"))
    assert labels_of(found) == ["GQA-8", "Q-GQA-8", "MQA", "Q-MQA"]
    (note,) = found.notes
    assert note.startswith("Q-GQA-8 and Q-MQA have no norms of query and key, unlike qwen3-8b: ")
    lost = choose_candidates(load_size("qwen3-8b"), ["QKV@linear"]).notes
    assert (
        "QKV@linear has no positions in the scores, unlike qwen3-8b: the core does not" in lost[0]
    )


def test_what_does_not_fit_is_refused_in_a_sentence() -> None:
    found = choose_candidates(language_model(), ["GQA-3", "Q-K=V"])
    assert labels_of(found) == ["QKV", "Q-K=V"]
    (sentence,) = found.notes
    assert sentence.startswith("GQA-3 does not fit toy QKV: expected KV heads that divide 8")
