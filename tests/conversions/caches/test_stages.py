"""Budgets, forecasts and stages: the figures that a conversion prints."""

import dataclasses
import json
from functools import partial
from pathlib import Path

import pytest
import torch

import qkvary as qk
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.conversions.caches.budget import (
    Budget,
    network_bytes,
    spend_by_cost,
    spend_evenly,
)
from qkvary.conversions.caches.calibration import Texts, read_texts
from qkvary.conversions.caches.conversion import RIDGE, Regression
from qkvary.conversions.caches.divergence import Comparison
from qkvary.conversions.caches.forecast import forecast
from qkvary.conversions.caches.forms import count_numbers
from qkvary.conversions.caches.stages import Plan, check_plan, forecast_stages, run_stages
from qkvary.conversions.catalog import BY_LAYER, load_method
from qkvary.costs.formats import parse_format
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.inference.streaming import detokenize
from qkvary.storage.errors import UsageError
from tests.conversions.caches.networks import TOKENS, convert, make_config, make_network

F16 = parse_format("fp16")
HALF = Budget(share=0.5, stored_as=F16)
TEXTS = Texts(TOKENS[:4], TOKENS, TOKENS[4:])


def test_the_ridge_is_that_of_the_normal_equations() -> None:
    generator = torch.Generator().manual_seed(4)
    inputs, wanted, prior = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((40, 5), (40, 3), (5, 3))
    )
    regression = Regression(prior)
    regression.add(inputs[:13], wanted[:13])
    regression.add(inputs[13:], wanted[13:])
    found = regression.solve()
    penalty = (RIDGE * inputs.square().sum(0).mean()).sqrt()
    rows = torch.cat((inputs, penalty * torch.eye(5).double()))
    expected = torch.linalg.lstsq(rows, torch.cat((wanted, penalty * prior))).solution
    assert torch.allclose(found, expected, atol=1e-10)
    error = float((wanted - inputs @ found).square().sum() / wanted.square().sum())
    assert regression.error(found) == pytest.approx(error)


@pytest.mark.parametrize(
    ("budget", "numbers"),
    [
        (HALF, 16),
        (Budget(share=0.3, stored_as=F16), 9),
        (Budget(bytes_per_token=90, stored_as=F16), 22),
        # One scale of the latent and one of the rotated key: 24 = 8 + 8 + 2 * 4.
        (Budget(share=0.5, stored_as=parse_format("int8")), 16),
        # 14 + 2 * 4 bytes are more than 45 % of 48.
        (Budget(share=0.45, stored_as=parse_format("int8")), 13),
    ],
)
def test_a_budget_is_spent_but_not_exceeded(budget: Budget, numbers: int) -> None:
    config, method = make_config("GQA-2@rotary"), load_method("latent")
    assert spend_evenly(config, budget, method.choose) == (numbers, numbers)
    made = check_plan(Plan(method="latent", budget=budget), config)
    share = network_bytes(made, budget.stored_as) / network_bytes(config, budget.stored_as)
    assert share <= budget.share_of(config) + 1e-12


def test_numbers_go_where_the_cost_falls_most() -> None:
    steep, flat = [8.0, 4.0, 2.0, 1.0, 0.5], [1.0, 0.9, 0.8, 0.7, 0.6]
    assert spend_by_cost([steep, flat], 5, least=1, step=1) == (4, 1)
    assert spend_by_cost([flat, flat], 6, least=1, step=2) == (3, 3)
    assert sum(spend_by_cost([steep, flat], 100, least=1, step=1)) == 8


@pytest.mark.parametrize("method", BY_LAYER)
def test_the_cost_of_a_layer_by_its_size_is_the_measured_one_at_its_own(method: str) -> None:
    network, module = make_network(make_config("GQA-2@rotary")), load_method(method)
    config = check_plan(Plan(method=method, budget=HALF), network.config)
    found = forecast(network, config, module, TOKENS)
    for layer, divergence in enumerate(found.layers):
        costs = found.costs(layer)
        own = count_numbers(config.layers[layer]) - config.layers[layer].rotated_channels
        assert float(costs[own]) == pytest.approx(divergence)
        assert costs.diff().le(1e-12).all()
        assert float(costs[0]) > 2 * divergence > float(costs[-1]) == 0


def test_a_forecast_measures_layers_alone_and_scales_the_others() -> None:
    network, method = make_network(make_config("GQA-2@rotary")), load_method("latent")
    config = check_plan(Plan(method="latent", budget=HALF), network.config)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found = forecast(network, config, method, TOKENS)
    assert all(found.measured)
    for layer in range(2):
        sizes = [16 if index == layer else None for index in range(2)]
        alone = convert(network, "latent", *sizes).one_shot
        _, expected = Comparison(network, TOKENS).measure(alone)
        assert found.layers[layer] == pytest.approx(expected, rel=1e-6)
    one = forecast(network, config, method, TOKENS, probed=1)
    assert one.measured == (True, False)
    assert one.layers[0] == pytest.approx(found.layers[0])
    lost = [float(spectrum[8]) for spectrum in one.spectra if spectrum is not None]
    assert one.layers[1] == pytest.approx(one.layers[0] * lost[1] / lost[0])
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_stages_say_what_was_measured(tmp_path: Path) -> None:
    network = make_network(make_config("GQA-2@rotary")).float()
    plan = Plan(method="latent", budget=HALF, heal_tokens=200)
    told: list[str] = []
    made = run_stages(
        network, plan, TEXTS, healing=tmp_path, on_stage=lambda stage: told.append(stage.name)
    )
    assert told == ["as it is", "one shot", "refitted", "healed"]
    assert [stage.name for stage in made.stages] == told
    assert made.share == 0.5
    compared = Comparison(network, TEXTS.held_out)
    for stage, measured in ((made.stages[0], network), (made.stages[-1], made.network)):
        assert (stage.loss, stage.divergence) == compared.measure(measured)
    plain = run_stages(network, Plan(method="latent", budget=HALF), TEXTS)
    assert len(plain.stages) == 3
    assert made.stages[2].loss == pytest.approx(plain.stages[2].loss, rel=1e-6)


@pytest.mark.parametrize(("label", "rotates"), [("GQA-2@rotary", True), ("GQA-2@alibi", False)])
@pytest.mark.parametrize("method", ["latent", "shared"])
def test_a_rotated_key_is_named_where_there_is_one(label: str, rotates: bool, method: str) -> None:
    network = make_network(make_config(label))
    made = forecast_stages(network, Plan(method=method, budget=HALF), TEXTS)
    assert made.statement.endswith("share one rotated key") == rotates


def test_layers_that_cost_more_get_more() -> None:
    network = make_network(make_config("GQA-2@rotary"))
    # Keys and values of the second layer are made of few directions.
    attention = network.stack.layers[1].attention
    for name in ("k_proj.weight", "v_proj.weight"):
        weight = attention.get_parameter(name).data
        weight[:, 2:] = 0
    plan = Plan(method="latent", budget=Budget(share=0.75, stored_as=F16), by_layer=True)
    made = run_stages(network, plan, TEXTS)
    first, second = (count_numbers(layer) for layer in made.config.layers)
    assert first > second
    assert first + second <= 48
    told = forecast_stages(network, dataclasses.replace(plan, by_layer=False), TEXTS)
    assert told.layers == ()
    assert told.network is network
    assert told.seconds is not None
    assert told.seconds > 0


def test_texts_are_windows_of_all_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 400)
    (tmp_path / "b.txt").write_text("b" * 60)
    tokenizer = ByteTokenizer()
    texts = read_texts(tokenizer, [tmp_path], tokens=180, context=10, held_out_tokens=20)
    assert texts.fitted.shape == (18, 10)
    assert texts.held_out.shape == (2, 10)
    counts = torch.bincount(torch.cat((texts.fitted, texts.held_out)).flatten())
    assert counts[ord("a")] == 140
    assert counts[ord("b")] == 60
    other = tmp_path / "other.txt"
    other.write_text("c" * 50)
    (tmp_path / "a.txt").write_text("".join(f"{number:04}" for number in range(100)))
    whole = torch.tensor(list((tmp_path / "a.txt").read_bytes())).view(40, 10)
    read = partial(read_texts, tokenizer, [tmp_path / "a.txt"], context=10, held_out_tokens=20)
    for most, trained in ((0, whole[:18]), (5, whole[18:19]), (220, whole[18:]), (230, whole)):
        texts = read(tokens=180, held_out=[other], trained_tokens=most)
        assert torch.equal(texts.fitted, whole[:18])
        assert torch.equal(texts.trained, trained)
    assert set(texts.held_out.flatten().tolist()) == {ord("c")}
    assert torch.equal(read(tokens=180, trained_tokens=200).trained, whole[20:])
    with pytest.raises(UsageError, match="at least 10 windows of 50 tokens, got 4"):
        read_texts(tokenizer, [tmp_path / "a.txt"], tokens=200, context=50, held_out_tokens=10)
    with pytest.raises(UsageError, match="expected a text of at least 500 tokens, got 400"):
        read_texts(tokenizer, [tmp_path / "a.txt"], tokens=900, context=500, held_out_tokens=10)


def test_short_documents_are_read_whole_and_held_out_whole(tmp_path: Path) -> None:
    loaded = load_checkpoint("tiny")
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    names = (f"{one}{end}" for one in ("Tim", "Ann", "Lee", "Bob") for end in "abcdefghij")
    prompts = [f"{name} had a" for name in names]
    texts = qk.generate(loaded, prompts, tokens=90, temperature=0.8)
    stories = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]

    def write(name: str, documents: list[str]) -> Path:
        lines = (json.dumps({"text": document}) + "\n" for document in documents)
        (tmp_path / name).write_text("".join(lines))
        return tmp_path / name

    data = write("stories.jsonl", stories)
    found = read_texts(tokenizer, [data], tokens=640, context=32, held_out_tokens=10_000)
    read = [
        detokenize(tokenizer, part.flatten().tolist()) for part in (found.fitted, found.held_out)
    ]
    used = [[story for story in stories if story[:40] in text] for text in read]
    assert not set(used[0]) & set(used[1])
    assert (len(used[0]), len(used[1])) == (20, 4)
    loss, _ = Comparison(loaded.network, found.held_out).measure(loaded.network)
    alone = qk.evaluate(loaded, write("held_out.jsonl", used[1]), context=32)
    assert loss == pytest.approx(alone.value.score.loss, abs=0.2)
