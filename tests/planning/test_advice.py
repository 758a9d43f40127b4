"""Advice on serving: dominance, quoted figures, and no guesses."""

import itertools
import re

import pytest

from qkvary.arch.families.sizes import load_size
from qkvary.arch.labels import parse_variant
from qkvary.arch.models import Model, as_model
from qkvary.arch.named_networks import find_network
from qkvary.arch.published_networks import gpt_300m, gpt_1200m
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.devices import Device, find_device
from qkvary.costs.formats import parse_format
from qkvary.costs.serving import Demand
from qkvary.planning.advice import (
    SMALL,
    ServedVariant,
    advise_serving,
    advise_task,
    collect_caveats,
    nearest_size,
    published_change,
    serve_variants,
    summarize_serving,
)
from qkvary.planning.quality import Size, frontier_positions, qualities, quality_of

H200 = find_device("h200")
BF16, INT8 = map(parse_format, ("bf16", "int8"))
PUBLISHED = ("QKV", "Q=K-V", "Q-K=V", "Q=K=V", "GQA-4", "Q-GQA-4", "MQA", "Q-MQA")
NONE_BETTER = "With training: no variant with a published quality needs fewer devices."
PUBLISHED_LARGE = ("QKV", "Q-K=V", "GQA-8", "Q-GQA-8", "MQA", "Q-MQA")


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


def small(labels: tuple[str, ...] = PUBLISHED, **fields: object) -> dict[str, ServedVariant]:
    return {row.name: row for row in serve(as_model(gpt_300m(), "300M"), labels, **fields)}  # type: ignore[arg-type]


def test_the_published_frontier_is_found() -> None:
    rows = small()
    assert {name for name, row in rows.items() if row.status == "frontier"} == {
        "QKV",
        "GQA-4",
        "MQA",
        "Q-MQA",
    }
    assert rows["Q-K=V"].dominated_by == ("GQA-4", "MQA")
    assert rows["Q-GQA-4"].dominated_by == ("MQA",)
    assert rows["Q-K=V"].status == "dominated"


def test_equal_perplexities_dominate_by_their_printed_digits_only() -> None:
    """Q=K-V and Q-MQA print one perplexity: rounding may have made them equal."""
    rows = serve(as_model(gpt_300m("Q=K-V")), ("Q-MQA",))
    assert rows[0].label == "Q=K-V"
    assert rows[0].status == "dominated by the printed digits only"
    assert rows[0].dominated_by == ("Q-MQA",)
    (sentence,) = (text for text in advise_serving(rows) if text.startswith("Q=K-V is"))
    assert sentence.startswith("Q=K-V is dominated by the printed digits only: Q-MQA takes no")


@pytest.mark.parametrize(
    ("model", "labels", "size"),
    [
        (as_model(gpt_300m()), PUBLISHED, "300M"),
        (as_model(gpt_1200m()), PUBLISHED_LARGE, "1.2B"),
    ],
)
def test_a_plan_agrees_with_the_frontiers_of_the_papers(
    model: Model, labels: tuple[str, ...], size: Size
) -> None:
    published = {one.variant: one for one in frontier_positions(size)}
    for row in serve(model, labels, size=size):
        if row.saving is None:
            expected = published[row.label]
            assert set(row.dominated_by) == set(expected.dominated_by)
            is_sure = expected.status == "dominated beyond rounding"
            assert (row.status == "dominated") == is_sure


def test_dominance_by_comparing_every_pair() -> None:
    rows = [row for row in small().values() if row.saving is None]
    for row in rows:
        above = {
            other.label
            for other in rows
            if other.quality
            and row.quality
            and other.plan.user_bytes <= row.plan.user_bytes
            and other.quality.perplexity <= row.quality.perplexity
            and (other.plan.user_bytes, other.quality.perplexity)
            != (row.plan.user_bytes, row.quality.perplexity)
        }
        assert set(row.dominated_by) == above


def test_exact_savings_neither_dominate_nor_are_dominated() -> None:
    rows = small()
    saved = rows["QKV, layer input"]
    assert (saved.status, saved.dominated_by, saved.is_original) == ("same function", (), True)
    assert all("layer input" not in name for row in rows.values() for name in row.dominated_by)


def test_formats_are_compared_with_their_own_kind() -> None:
    rows = serve(as_model(gpt_300m()), PUBLISHED, formats=("bf16", "int8"))
    half = len(rows) // 2
    assert [row.cache.name for row in rows] == ["bf16"] * half + ["int8"] * half
    for first, second in itertools.pairwise((rows[:half], rows[half:])):
        assert [row.name for row in first] == [row.name for row in second]
        assert [row.status for row in first] == [row.status for row in second]


def test_unpublished_changes_are_not_guessed() -> None:
    rows = small(("I-K-V", "GQA-8", "GQA-2", "Q-K=V@alibi"))
    for label in ("I-K-V", "GQA-8", "GQA-2", "Q-K=V@alibi"):
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
    """Return the three sentences of the summary, and the further advice."""
    sentences = [*summarize_serving(rows, make_demand(**fields)), *advise_serving(rows)]
    assert all(sentence.endswith((".", "!")) and "\n" not in sentence for sentence in sentences)
    return sentences


def test_advice_on_the_papers_network() -> None:
    sentences = advice_of(serve(as_model(gpt_300m(), "300M")))
    figures = [
        re.findall(r"([\w ]+): (\d+) users? on (\d+).*?, (\d+)", text) for text in sentences[:3]
    ]
    assert figures == [
        [(" unchanged", "13", "1", "8"), (" layer input", "26", "1", "4")],
        [(" fp8", "26", "1", "4"), (" int8", "50", "2", "4"), (" int4", "46", "1", "3")],
        [(" MQA", "211", "1", "1")],
    ]
    assert "+1.5 % perplexity" in sentences[2]
    text = "\n".join(sentences)
    assert "On the published frontier, with training: MQA (1 device, +1.5 % perplexity); " in text
    assert "Q-K=V is dominated: GQA-4 and MQA take no more cache and are no worse" in text
    assert "Q-GQA-4 is dominated: MQA takes no more cache and is no worse" in text
    assert "that run was never published" in text
    assert "K=V stacks on head sharing, as its authors say" in text


def test_advice_quotes_what_was_published() -> None:
    text = "\n".join(advice_of(serve(as_model(gpt_300m()))))
    shared, queries = quality_of("Q-K=V"), quality_of("Q=K-V")
    assert shared is not None
    assert queries is not None
    assert f"{shared.change_percent:+.1f} % against {queries.change_percent:+.1f} %" in text
    tied = quality_of("Q=K=V")
    assert tied is not None
    assert f"(Q=K=V {tied.change_percent:+.1f} % perplexity at 300M)" in next(advise_task("causal"))


def test_digits_are_those_that_rounding_leaves() -> None:
    small_text = "\n".join(advice_of(serve(as_model(gpt_300m()))))
    large_text = "\n".join(advice_of(serve(as_model(gpt_1200m()), size="1.2B")))
    assert "MQA (1 device, +1.5 % perplexity)" in small_text
    assert "+1.06 % perplexity" in large_text


def test_a_model_that_is_best_as_it_is() -> None:
    demand: dict[str, object] = {"users": 1, "context": 2048}
    sentences = advice_of(serve(load_size("falcon-7b"), size="1.2B", **demand), **demand)
    assert sentences[0].count(":") == 2
    assert sentences[2] == NONE_BETTER
    assert sentences[3].endswith("frontier, with training: Q-MQA (1 device, +4.16 % perplexity).")


def test_one_user_is_one_user() -> None:
    """Beside 237 MiB of weights 270 MiB hold 36 MiB of cache four times on two devices, or once."""
    narrow = Device(name="x", title="x", memory_bytes=300 * 2**20)
    demand: dict[str, object] = {"device": narrow, "users": 1, "context": 1024}
    sentences = advice_of(serve(load_size("gpt2"), **demand), **demand)
    assert "; layer input: 1 user on 1 device, 1 device for all." in sentences[0]
    assert not any("1 users" in sentence for sentence in sentences)


def test_an_exact_saving_that_takes_more_devices_is_no_advice() -> None:
    """Heads are divided among devices; the layer input that stands for them is on every one."""
    rows = serve(load_size("llama-2-7b"), size="1.2B", context=2**17, users=10)
    by_name = {row.name: row.plan for row in rows}
    own, stored = by_name["QKV"].devices, by_name["QKV, layer input"].devices
    assert own is not None
    assert stored is None or own < stored
    assert not any("layer input" in sentence for sentence in advice_of(rows))


def test_an_exact_saving_may_make_a_model_fit() -> None:
    tight = Device(name="x", title="x", memory_bytes=300 * 2**20)
    rows = serve(load_size("gpt2"), device=tight, context=1024, replica_sizes=(1,))
    assert [row.plan.fits for row in rows[:2]] == [False, True]
    sentences = advice_of(rows, device=tight, context=1024, replica_sizes=(1,))
    assert "unchanged: no user fits" in sentences[0]
    assert "layer input: 1 user on 1 device, 100 devices for all" in sentences[0]


def test_dominated_models_are_not_on_the_frontier() -> None:
    rows = serve(load_size("gemma-4-31b"), size="1.2B", users=1, context=1024, device=H200)
    sentences = advice_of(rows, users=1, context=1024, device=H200)
    assert sentences[2] == NONE_BETTER
    assert rows[0].status == "no published figure"
    assert sentences[3].startswith("On the published frontier, with training: MQA (1 device")


def test_a_format_is_not_a_way_of_sharing() -> None:
    """Eight bits halve any cache: what nothing else does is said of sharing."""
    text = "\n".join(advice_of(serve(as_model(gpt_300m()), formats=("bf16", "int8"))))
    assert "with one KV head left no other sharing halves the cache again (Q-MQA" in text


def test_a_demand_that_nothing_meets() -> None:
    tiny = Device(name="x", title="x", memory_bytes=10**6)
    sentences = advice_of(serve(as_model(gpt_300m()), device=tiny), device=tiny)
    assert [text.count("no user fits with the weights") for text in sentences[:2]] == [1, 3]
    assert sentences[2] == NONE_BETTER


def test_a_state_that_no_format_makes_smaller() -> None:
    rows = serve(as_model(find_network("lm-1m").with_variant(parse_variant("Q-K=V@linear"))))
    assert "no format" in advice_of(rows)[1]


def test_a_cache_of_few_bits_is_compared_with_fewer() -> None:
    rows = serve(as_model(gpt_300m()), formats=("int8",))
    assert re.findall(r"(\w+): \d", advice_of(rows)[1]) == ["int4"]


@pytest.mark.parametrize("kind", ["set", "image"])
def test_models_that_do_not_decode_have_no_cache_to_save(kind: str) -> None:
    sentences = list(advise_task(kind))  # type: ignore[arg-type]
    assert "nothing is decoded" in sentences[0]
    assert "section 2.5" in sentences[1]
    assert any("suspect" in sentence for sentence in sentences) == (kind == "set")


def test_caveats_are_listed_once_with_their_variant() -> None:
    found = collect_caveats([*qualities("300M"), None, *qualities("300M")])
    assert len(set(found)) == len(found)
    assert any(sentence.startswith("Q-GQA-4 of 300M: ") for sentence in found)
    for words in ("a language model of 300M", "One network was", "padded to 2,048 tokens"):
        assert sum(words in sentence for sentence in found) == 1


def test_without_published_figures_there_is_nothing_to_warn_of() -> None:
    assert collect_caveats([None, None]) == ()
    baseline = quality_of("QKV")
    (only,) = collect_caveats([baseline])
    assert "a language model of 300M" in only


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


def test_a_state_is_planned_in_the_first_format_alone() -> None:
    labels = ("Q-K=V@linear", "QKV*4,Q-K=V@linear*1")
    rows = serve(as_model(find_network("lm-1m")), labels, formats=("bf16", "int8"))
    formats = {
        label: [row.cache.name for row in rows if row.label == label] for label in ("QKV", *labels)
    }
    assert formats == {
        "QKV": ["bf16", "bf16", "int8", "int8"],
        "Q-K=V@linear": ["bf16"],
        "QKV*4,Q-K=V@linear*1": ["bf16", "int8"],
    }
