"""Advice on training: own arithmetic compared with published measurements."""

from qkvary.arch.models import Model, as_model
from qkvary.arch.named_networks import gpt_300m, gpt_1200m
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.devices import Device, find_device
from qkvary.costs.formats import parse_format
from qkvary.costs.parameters import model_parameters
from qkvary.costs.serving import Demand
from qkvary.costs.training import plan_training
from qkvary.planning.quality import Size
from qkvary.planning.training_advice import Regime, TrainedVariant, advise_training, train_variants

A100 = find_device("a100-40gb")


def train(
    model: Model, labels: tuple[str, ...] = (), *, size: Size = "300M", **fields: object
) -> tuple[TrainedVariant, ...]:
    regime = {name: fields.pop(name) for name in ("checkpointing", "utilization") if name in fields}
    demand = {"device": A100, "context": 1024, "users": 1, "weights": parse_format("bf16")} | fields
    candidates = [row for row in choose_candidates(model, labels).rows if row.saving is None]
    return train_variants(
        candidates,
        Demand(**demand),  # type: ignore[arg-type]
        Regime(**regime),  # type: ignore[arg-type]
        size=size,
    )


def test_rows_are_plans_of_each_variant() -> None:
    model = as_model(gpt_300m())
    rows = train(model, ("Q-K=V", "MQA"), checkpointing=True, utilization=0.3, reserve=0.2)
    candidates = choose_candidates(model, ("Q-K=V", "MQA")).rows
    assert [row.label for row in rows] == ["QKV", "Q-K=V", "MQA"]
    for row in rows:
        own = next(one.model for one in candidates if one.label == row.label and not one.saving)
        assert row.parameters == model_parameters(own).total
        assert row.plan == plan_training(
            own, device=A100, tokens=1024, checkpointing=True, utilization=0.3, reserve=0.2
        )


def test_advice_on_the_papers_network() -> None:
    rows = train(as_model(gpt_300m()))
    first, second = advise_training(rows)
    base = rows[0].plan.macs_per_token
    best = next(row for row in rows if row.label == "Q-MQA").plan.macs_per_token
    assert first.startswith(
        "Of the variants on the published frontier of arithmetic and quality, Q-MQA needs the "
        "fewest multiply-accumulates: "
        f"{100 * (1 - best / base):.1f} % fewer"
    )
    assert "448k against 427k tokens/s" in second
    assert "+1.5 % against +3.1 %" in second


def advice_words(sentence: str) -> set[str]:
    """What a sentence about a model that does not fit advises."""
    assert "gradients and optimizer" in sentence
    return {word for word in ("shard", "--checkpointing", "--context") if word in sentence}


def test_a_model_that_does_not_fit_is_reported_first() -> None:
    small = Device(name="x", title="x", memory_bytes=22 * 10**9)
    large = as_model(gpt_1200m())
    sentences = list(advise_training(train(large, size="1.2B", device=small, context=4096)))
    assert advice_words(sentences[0]) == {"shard", "--checkpointing", "--context"}
