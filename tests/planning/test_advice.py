"""Advice on serving: dominance, quoted figures, and no guesses."""

import re

import pytest

from qkvary.arch.families.sizes import load_size
from qkvary.arch.models import Model, as_model
from qkvary.arch.named_networks import gpt_300m, gpt_1200m
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.devices import Device, find_device
from qkvary.costs.formats import parse_format
from qkvary.costs.serving import Demand
from qkvary.planning.advice import (
    SMALL,
    ServedVariant,
    advise_serving,
    nearest_size,
    published_change,
    serve_variants,
    summarize_serving,
)
from qkvary.planning.curves import compute_quality_points
from qkvary.planning.quality import Size, quality_of

BF16, INT8 = map(parse_format, ("bf16", "int8"))
NONE_BETTER = (
    "Training another variant saves no devices: no variant with a published quality needs fewer."
)


def make_demand(**fields: object) -> Demand:
    given: dict[str, object] = {
        "device": find_device("a100-40gb"),
        "context": 32_768,
        "users": 100,
        "weights": BF16,
    }
    return Demand(**(given | fields))  # type: ignore[arg-type]


def serve(
    model: Model,
    labels: tuple[str, ...] = (),
    *,
    formats: tuple[str, ...] = ("bf16",),
    size: Size = "300M",
    **fields: object,
) -> tuple[ServedVariant, ...]:
    candidates = choose_candidates(model, labels).rows
    return serve_variants(
        candidates, make_demand(**fields), [*map(parse_format, formats)], size=size
    )


@pytest.mark.parametrize(
    ("model", "size"), [(as_model(gpt_300m()), "300M"), (as_model(gpt_1200m()), "1.2B")]
)
def test_a_plan_agrees_with_the_frontiers_of_the_papers(model: Model, size: Size) -> None:
    published = {one.variant: one for one in compute_quality_points(size).points}
    for row in serve(model, tuple(published), size=size):
        if row.saving is None:
            expected = published[row.label]
            assert set(row.dominated_by) == set(expected.dominated_by)
            assert row.status == expected.status


def test_unpublished_changes_are_not_guessed() -> None:
    labels = ("I-K-V", "GQA-8", "GQA-2", "Q-K=V@alibi")
    rows = {row.name: row for row in serve(as_model(gpt_300m()), labels)}
    for label in labels:
        assert rows[label].quality is None
        assert (rows[label].status, rows[label].dominated_by) == ("no published figure", ())


@pytest.mark.parametrize(
    ("name", "label", "size", "published"),
    [
        # Four query heads to a KV head, whatever their number.
        ("llama-3.1-8b", "GQA-8", "1.2B", "GQA-8"),
        ("llama-3.1-8b", "GQA-8", "300M", "GQA-4"),
        ("llama-3.1-8b", "Q-GQA-8", "1.2B", "Q-GQA-8"),
        ("llama-3.1-8b", "GQA-4", "1.2B", None),
        ("llama-3.1-70b", "GQA-8", "1.2B", None),
        ("llama-3.1-8b", "MQA", "1.2B", "MQA"),
        ("llama-3.1-8b", "MQA", "300M", None),
        ("llama-3.1-70b", "GQA-4", "300M", "MQA"),
        ("gpt2", "MQA", "300M", None),
        ("gpt2", "Q-GQA-3", "300M", "Q-GQA-4"),
        ("gpt2", "Q-K=V", "300M", "Q-K=V"),
        ("llama-3.1-8b", "Q=K=V", "1.2B", None),
        ("gemma-4-31b", "as it is", "1.2B", None),
        ("deepseek-v3", "as it is", "1.2B", None),
    ],
)
def test_published_changes_are_looked_up_by_the_size_of_a_group(
    name: str, label: str, size: Size, published: str | None
) -> None:
    labels = () if label == "as it is" else (label,)
    rows = choose_candidates(load_size(name), labels).rows
    candidate = next(row for row in rows if row.label == label)
    found = published_change(candidate, size)
    assert found == (None if published is None else quality_of(published, size))


def test_models_are_compared_with_the_nearer_network() -> None:
    assert nearest_size(305_534_976) == nearest_size(SMALL - 1) == "300M"
    assert nearest_size(SMALL) == nearest_size(10**12) == "1.2B"


def advice_of(rows: tuple[ServedVariant, ...], **fields: object) -> list[str]:
    """Return the sentences of the summary, and the further advice."""
    sentences = [*summarize_serving(rows, make_demand(**fields)), *advise_serving(rows)]
    assert all(sentence.endswith((".", "!")) and "\n" not in sentence for sentence in sentences)
    return sentences


def test_advice_on_the_papers_network() -> None:
    sentences = advice_of(serve(as_model(gpt_300m(), "300M")))
    figures = [
        re.findall(r"([\w ]+) \((\d+) users? on (\d+).*?, (\d+)", text)
        for text in (*sentences[:2], sentences[3])
    ]
    assert figures == [
        [(" fp8", "26", "1", "4"), (" int8", "50", "2", "4"), (" int4", "46", "1", "3")],
        [(" the model as it is", "13", "1", "8"), (" layer input", "26", "1", "4")],
        [(" MQA", "211", "1", "1")],
    ]
    assert sentences[2].startswith(
        "Convert the model (qkvary convert --to latent --cache 50%): 26 users on 1 device, 4 "
        "devices for all users; the loss of SmolLM2-135M rose by 0.086"
    )
    assert "+1.5 % perplexity" in sentences[3]
    assert not any("A smaller model" in sentence for sentence in sentences)
    text = "\n".join(sentences)
    assert "(each requires training): MQA (1 device, +1.5 % perplexity); " in text
    assert "Q-K=V is dominated: GQA-4 and MQA take no more cache and are no worse" in text
    assert "Q-GQA-4 is dominated: MQA takes no more cache and is no worse" in text
    assert "K=V can be combined with head sharing, as its authors say" in text


def test_an_exact_saving_may_make_a_model_fit() -> None:
    tight = Device(name="x", title="x", memory_bytes=300 * 2**20)
    rows = serve(load_size("gpt2"), device=tight, context=1024, replica_sizes=(1,))
    assert [row.plan.fits for row in rows[:2]] == [False, True]
    sentences = advice_of(rows, device=tight, context=1024, replica_sizes=(1,))
    assert "the model as it is (the devices have no room" in sentences[1]
    assert "layer input (1 user on 1 device, 100 devices for all users)" in sentences[1]


def test_an_exact_saving_is_named_where_one_device_is_enough() -> None:
    sentences = advice_of(serve(as_model(gpt_300m()), users=1), users=1)
    assert "layer input (26 users on 1 device, 1 device for all users)" in sentences[1]


def test_a_demand_that_nothing_meets() -> None:
    tiny = Device(name="x", title="x", memory_bytes=10**6)
    sentences = advice_of(serve(as_model(gpt_300m()), device=tiny), device=tiny)
    assert [text.count("the devices have no room") for text in sentences[:2]] == [3, 1]
    assert sentences[3] == NONE_BETTER


def test_a_smaller_model_where_one_device_does_not_hold_the_weights() -> None:
    model = load_size("llama-3.1-70b")
    given = {"device": find_device("rtx-4090"), "context": 8192, "users": 1}
    rows = serve(model, **given)  # type: ignore[arg-type]
    (found,) = [one for one in advice_of(rows, **given) if one.startswith("Use a smaller model")]
    left = make_demand(**given).usable_bytes - rows[0].plan.user_bytes
    assert f"{left / 2 / 1e9:.2f} G parameters in bf16 or {left * 2 / 1e9:.1f} G" in found


@pytest.mark.parametrize(
    ("name", "converts"), [("llama-3.1-8b", True), ("qwen3-8b", False), ("deepseek-v3", False)]
)
def test_a_conversion_where_there_is_one(name: str, converts: bool) -> None:
    sentences = advice_of(serve(load_size(name)))
    assert any(one.startswith("Convert the model") for one in sentences) == converts


def test_hidden_candidates_dominate_too() -> None:
    model = as_model(gpt_300m(), "300M")
    asked = choose_candidates(model, ("Q-K=V",)).rows
    hidden_candidates = choose_candidates(model).rows
    alone = serve_variants(asked, make_demand(), [BF16], size="300M")
    beside = serve_variants(
        asked, make_demand(), [BF16], size="300M", hidden_candidates=hidden_candidates
    )
    assert [row.name for row in beside] == [row.name for row in alone]
    assert (alone[-1].label, alone[-1].status, alone[-1].dominated_by) == (
        "Q-K=V",
        "frontier",
        (),
    )
    assert (beside[-1].status, beside[-1].dominated_by) == ("dominated", ("GQA-4", "MQA"))
    assert beside[-1].plan == alone[-1].plan
