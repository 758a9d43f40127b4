"""Likeness over training: what is measured of a network, and the page about it."""

import csv
import dataclasses
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from qkvary.reports.tables import table_csv
from qkvary.studies.catalog import load_study
from tests.conversions.networks import make_network
from tests.studies_scripts.loading import folder_of, load_script

FOLDER = "likeness-over-training"
page, script = load_script(FOLDER, "likeness_page"), load_script(FOLDER, "measure")
figures, tying = load_script(FOLDER, "likeness_figures"), load_script(FOLDER, "tying")


@pytest.fixture(scope="module")
def text() -> Any:
    draws = torch.Generator().manual_seed(3)
    read, scored = (torch.randint(13, (count, 10), generator=draws) for count in (7, 5))
    return SimpleNamespace(read=read, scored=scored)


@pytest.fixture(scope="module")
def network() -> Any:
    return make_network("QKV@alibi", bias=True).requires_grad_(requires_grad=False)


def test_loss_is_the_mean_over_all_tokens(network: Any, text: Any) -> None:
    logits = network(text.scored[:, :-1])
    expected = F.cross_entropy(logits.flatten(0, 1), text.scored[:, 1:].flatten())
    assert script.score(network, text) == pytest.approx(expected.item(), rel=1e-12)


def test_every_layer_is_tied_alone(network: Any, text: Any) -> None:
    layers = script.observe(network, text)
    found = script.measure_layers(network, text)
    assert [one["layer"] for one in found] == [1, 2]
    for figures, layer in zip(found, layers, strict=True):
        assert figures["loss"] == script.score(network, text)
        mean = layer.moments.input_sum / layer.moments.tokens
        tied = tying.tie_layer(network, layer.number, layer.ties(), mean)
        assert figures["tied_loss"] == script.score(tied, text)
        assert figures["forecast"] == pytest.approx(layer.result().fitted_forecast)
        assert figures["key_alone_loss"] != figures["tied_loss"]


def test_the_value_is_read_from_the_key_by_least_squares(network: Any, text: Any) -> None:
    (layer, _) = script.observe(network, text)
    joint = torch.cat((layer.attention.k_proj.weight, layer.attention.v_proj.weight))
    inputs = torch.linalg.cholesky(layer.moments.covariance()).mT
    for head, tie in enumerate(script.read_from_key(layer)):
        rows = slice(5 * head, 5 * head + 5)
        key, value = (inputs @ part[rows].mT for part in joint.split(20))
        solved = torch.linalg.lstsq(key, value).solution
        assert torch.allclose(tie.writer[5:], solved.mT, atol=1e-8)
        assert torch.equal(tie.writer[:5], torch.eye(5).double())
        assert torch.equal(tie.reader, torch.eye(10).double()[:5])


def test_layers_are_tied_in_the_order_of_their_forecasts(network: Any, text: Any) -> None:
    first, second = script.tie_greedily(network, text)
    forecasts = {one.number: one.result().fitted_forecast for one in script.observe(network, text)}
    assert first["layer"] == min(forecasts, key=lambda number: forecasts[number])
    assert first["forecast"] == pytest.approx(forecasts[first["layer"]])
    assert {first["layer"], second["layer"]} == {1, 2}
    assert second["forecast"] > first["forecast"]


def make_layer(step: int, layer: int, seed: int, *, shared: bool) -> dict[str, Any]:
    found = {
        "step": step,
        "layer": layer,
        "loss": 3 - step / 100 + seed / 1000 + 0.5 * shared,
        "is_shared": shared,
        "forecast": 0.01 * layer * (1 + step),
        "score_change": 0.1,
        "cosine_query-key": -0.2,
        "deviation_query-key": 0.1,
        "cosine_key-value": 0.05,
        "cosine_query-value": 0.03,
        "deviation_key-value": 0.1,
        "score_asymmetry": 0.7,
    }
    for name, chance in page.EXCESSES.values():
        found |= {name: 0.4 + step / 1000 + seed / 1_000, chance: 0.4}
    if not shared:
        found |= {"tied_loss": found["loss"] + 2 * found["forecast"]}
        found |= {"key_alone_loss": found["loss"] + 3 * found["forecast"]}
    return found


def make_run(seed: int, *, shared: bool) -> dict[str, Any]:
    greedy = [{"layer": n, "forecast": 0.1 * n, "rise": 0.25 * n + seed / 100} for n in (1, 2)]
    return {
        "variant": "Q-K=V@alibi" if shared else "QKV@alibi",
        "seed": seed,
        "steps": [
            make_layer(step, layer, seed, shared=shared) for step in (0, 50) for layer in (1, 2)
        ],
        "greedy": [] if shared else greedy,
    }


def make_study() -> Any:
    return page.Likeness(
        question="Alike?",
        description="Made up.",
        limits=("A limit.",),
        environment={"cpu": "none"},
        read_tokens=4_096,
        scored_tokens=32_768,
        runs=tuple(make_run(seed, shared=shared) for seed in (0, 1, 2) for shared in (False, True)),
    )


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return page.likeness_files(make_study())


def test_figures_are_points_above_random_weights_at_the_end() -> None:
    table = figures.figures_table(make_study(), {"QKV@alibi": 101})
    rows = [[cell.raw for cell in row] for row in table.rows]
    assert [row[:4] for row in rows] == [
        *(["at the end", "QKV@alibi", "random weights", name] for name in figures.QUANTITIES),
        *(["at the end", "QKV@alibi", "", name] for name in figures.COSINES),
    ]
    assert {*(tuple(row[9:]) for row in rows)} == {(101, 101)}
    for row in rows[:2]:
        # 5, 5.1 and 5.2 points; Student's 0.975 quantile with two degrees of freedom is 4.303.
        half = 4.302653 * 0.1 / 3**0.5
        assert row[4:7] == pytest.approx([5.1, 5.1 - half, 5.1 + half])
        assert row[7] > half
        assert row[8] == 3


def test_the_kept_figures_follow_from_the_kept_records() -> None:
    folder = folder_of(FOLDER)
    runs = tuple(json.loads((folder / "records.json").read_text("utf-8"))["runs"])
    study = dataclasses.replace(make_study(), runs=runs)
    kept = (folder / "tables" / "figures.csv").read_bytes()
    parameters = script.count_parameters(load_study(FOLDER))
    assert table_csv(figures.figures_table(study, parameters)).encode() == kept


def test_sentences_follow_from_the_figures(files: dict[str, bytes]) -> None:
    text = files["README.md"].decode()
    # 0.05 above chance after 50 steps; seeds add 0, 0.1 and 0.2 points.
    assert "explains 0.1 [−0.1, 0.3] points more" in text
    assert "and 5.1 [4.9, 5.3] at the end, where random weights explain 40 %" in text
    assert "rank correlation 1.00 over the layers at 1 step of a training" in text
    assert "the rise is 2.00" in text
    assert "One layer tied costs 1.5300" in text
    assert "and 2.2950" in text
    assert "0.510 [0.485, 0.535] nats, forecast 0.200" in text
    assert "Trained with one tensor from the start, it is 0.500" in text
    assert "- A limit." in text


def test_tables_hold_means_over_layers_and_seeds(files: dict[str, bytes]) -> None:
    rows = list(csv.DictReader(io.StringIO(files["tables/tying.csv"].decode())))
    assert [row["layer"] for row in rows] == ["1", "2"]
    assert [float(row["rise_nats"]) for row in rows] == pytest.approx([1.02, 2.04])
    steps = list(csv.DictReader(io.StringIO(files["tables/over_training.csv"].decode())))
    assert [row["step"] for row in steps] == ["0", "50"]
    assert float(steps[1]["forecast_nats"]) == pytest.approx(0.51 + 1.02)
    assert float(steps[1]["cosine_deviations"]) == pytest.approx(0.5)
    assert len(json.loads(files["records.json"])["runs"]) == 6
    assert files[page.PICTURE].startswith(b"<svg")


def test_a_study_without_all_its_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = SimpleNamespace(missing=3, failed=0, diverged=0, done=7)

    def run(*_given: object) -> object:
        return summary

    monkeypatch.setattr(script, "run_study", run)
    with pytest.raises(SystemExit):
        script.main(["--out", str(tmp_path), "--to", str(tmp_path)])
    assert "expected all 10 runs, got 7" in capsys.readouterr().err


def test_networks_are_kept_from_the_start_to_the_end() -> None:
    (cell, *_) = load_study(FOLDER).cells()
    assert cell.kept_networks == (0, 24, 48, 120, 240, None)
