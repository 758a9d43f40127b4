"""Evaluation, analysis, conversion and storage on a device: as on the CPU, and seldom waiting.

The device is ``tests.fake_device``, as in ``test_fake_device``.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decoding import cache_quality
from qkvary.analysis.measurement import analyze_windows
from qkvary.arch.caches import CacheOptions
from qkvary.arch.networks import BlockConfig
from qkvary.checkpoints.models import load_model, save_model
from qkvary.conversions.caches import healing
from qkvary.conversions.caches.divergence import Comparison
from qkvary.conversions.caches.forecast import forecast
from qkvary.conversions.catalog import load_method, method_names, rewrite_names
from qkvary.conversions.draft import RewriteOptions
from qkvary.conversions.rewriting import run_rewrite
from qkvary.inference.evaluation.lengths import lengthen
from qkvary.inference.evaluation.scoring import score_windows
from qkvary.inference.evaluation.windows import batch, cut
from qkvary.nn.language_model import LanguageModel
from qkvary.training import loop
from tests.analysis.networks import make_network, make_windows
from tests.contracts.both_devices import CPU, FEW, TOKENS, build, on_both
from tests.contracts.variant_cases import make_language_model_config
from tests.conversions import networks as convertible
from tests.conversions.caches import networks as convertible_caches
from tests.conversions.caches.networks import TOKENS as WINDOWS
from tests.conversions.rewrites.test_absorb_skip import with_absorbable
from tests.fake_device import DEVICE, FakeDevice


@pytest.mark.parametrize("label", FEW[1::6])
def test_evaluation(label: str) -> None:
    text = np.arange(90) * 7 % 13
    windows = cut(np.array([[0, 33], [33, 60], [60, 90]]), context=8, stride=4)

    def score(model: Any, _device: str) -> Any:
        losses = score_windows(model, text, windows, batch_size=4)
        return np.round(np.nan_to_num(losses), 8).tolist()

    device = on_both(build("language model", label).eval(), score)
    batches = len(batch(windows, size=4))
    assert device.waits == {"inference/evaluation/scoring.py _score": batches}


def test_caches_are_measured() -> None:
    options = [CacheOptions(storage="int4", group=2)]

    def measure(model: Any, _device: str) -> Any:
        text = [number * 7 % 13 for number in range(34)]
        (found,) = cache_quality.measure_text(model, text, options, contexts=[8], most_tokens=16)
        return round(found.quality.mean_kl, 9), found.quality.bits_per_token

    on_both(build("language model", "Q-K=V").eval(), measure)


def test_a_network_that_reads_longer_windows() -> None:
    model = LanguageModel(make_language_model_config("Q-K=V@alibi")).double().eval()

    def read(model: Any, device: str) -> Any:
        tokens = torch.arange(30, device=device)[None] % 13
        with torch.no_grad():
            return lengthen(model, 40)(tokens)

    assert on_both(model, read).waits == {}


AFTER_THE_TEXT = {
    "analysis/attention_statistics.py AttentionStatistics.result",
    "analysis/layers.py LayerStatistics._compare_heads",
    "analysis/layers.py LayerStatistics._compare_heads.<locals>.<genexpr>",
    "analysis/measurement.py _keep_maps",
    "nn/projections.py read_matrix",
    "nn/role_maps.py _shape_query",
}
"""Matrices of a layer, which the CPU takes apart; and the maps of the first window."""


@pytest.mark.parametrize("label", ["(Q=K-V)+", "Q[map]=K-V@alibi", "MQA@rotary@w3@t0.5"])
def test_analysis(label: str) -> None:
    windows = make_windows(0, 41, 11)

    def analyze(model: Any, _device: str) -> Any:
        found = analyze_windows(model, windows, context=64)
        head = found.layers[0].key_values[0]
        figures = (found.loss, head.similarity, head.forecast, found.layers[1].attention[0].entropy)
        return [round(one, 7) for one in figures], found.maps.round(7).tolist()

    device = on_both(make_network(label), analyze)
    # Tokens are drawn on the CPU, the same for every device, and the loss is read.
    assert device.waits.pop("analysis/observation.py read_window") == 2 * len(windows)
    assert set(device.waits) <= AFTER_THE_TEXT


REWRITTEN = {
    "absorb-skip": lambda: with_absorbable(convertible.make_network("QKV", block=RELU), 20),
    "reduce-plus": lambda: convertible.make_network("(Q=K-V)+"),
    "merge-query-key": lambda: convertible.make_network("QKV", heads=1),
    "merge-value-output": lambda: convertible.make_network("QKV", heads=1),
}
RELU = BlockConfig(d_ff=40, activation="relu", norm="none")


@pytest.mark.parametrize("name", rewrite_names())
def test_rewrite(name: str) -> None:
    make = REWRITTEN.get(name, lambda: convertible.make_network("QKV"))

    def rewrite(model: Any, device: str) -> Any:
        made = run_rewrite(name, model, RewriteOptions()).network
        with torch.no_grad():
            return made(TOKENS.to(device))

    on_both(make(), rewrite, gate=1e-9)


def test_a_checkpoint_of_the_device_is_one_of_the_cpu(tmp_path: Path) -> None:
    model = build("language model", "(Q=K-V)+").eval()
    with FakeDevice():
        save_model(tmp_path / "there", copy.deepcopy(model).to(DEVICE))
        loaded = load_model(tmp_path / "there").network
        assert {one.device.type for one in loaded.parameters()} == {CPU}
        again = loaded.to(DEVICE)
    for name, weight in again.state_dict().items():
        assert torch.equal(weight.cpu(), model.state_dict()[name])


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name in ("latent", "shared") else pytest.mark.slow)
        for name in method_names()
    ],
)
def test_a_smaller_cache(method: str) -> None:
    def shrink(model: Any, device: str) -> Any:
        made = convertible_caches.convert(model, method, 16)
        expected = forecast(model, made.refitted.config, load_method(method), WINDOWS, probed=1)
        measured = Comparison(model, WINDOWS).measure(made.refitted)
        figures = [round(figure, 9) for figure in (expected.divergence, *measured)]
        with torch.no_grad():
            return figures, [one(WINDOWS.to(device)) for one in (made.one_shot, made.refitted)]

    on_both(convertible_caches.make_network(convertible_caches.make_config()), shrink, gate=1e-7)


def test_healing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "require_device", lambda _: None)
    for name in ("BATCH_TOKENS", "PASS_TOKENS"):
        monkeypatch.setattr(healing, name, 8 * 19)

    def heal(model: Any, device: str) -> Any:
        made = convertible_caches.convert(model, "latent", 16).refitted
        task = healing.Distillation(model, made, WINDOWS, WINDOWS[:2])
        healed = healing.heal(task, tmp_path / device.partition(":")[0], tokens=24 * 19)
        with torch.no_grad():
            return healed(WINDOWS.to(device))

    model = convertible_caches.make_network(convertible_caches.make_config())
    device = on_both(model, heal, gate=1e-6)
    assert device.uploads
