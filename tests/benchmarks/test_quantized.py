"""What a measurement of rounded caches refuses, before anything is measured."""

import json
from pathlib import Path

import pytest

from decoding.cache_quality import QualityMeter
from decoding.quantized import choose_contexts
from qkvary.checkpoints.models import save_model
from qkvary.cli.main import main
from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import make_language_model_config, randomize


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks, one that sees four tokens only, and texts."""
    folder = tmp_path_factory.mktemp("quantized")
    for name, label in (("own", "Q-K=V"), ("narrow", "Q-K=V@w4")):
        model = LanguageModel(make_language_model_config(label, positions="learned"))
        randomize(model, seed=7)
        save_model(folder / name, model, CharacterTokenizer("abcdefgh .\n\té"))
    (folder / "text").write_text("abc abc. " * 20, "utf-8")
    (folder / "latin").write_bytes("abc é".encode("latin-1"))
    return folder


@pytest.mark.parametrize(
    ("model", "text", "typed", "message"),
    [
        ("own", "latin", [], "latin, which is not at byte 4"),
        ("own", "text", ["--context", "4,0"], "expected windows of at least 1 token, got 0"),
        ("own", "text", ["--context", "4,18"], "expected windows of at most 17 tokens, got 18"),
        ("own", "text", ["--context", "4,999"], "expected a text of more than 999 tokens"),
        ("narrow", "text", ["--storage", "int8-g3,int8-b8"], "fit a window of 4 tokens, got"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_rest_is(
    places: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
    text: str,
    typed: list[str],
    message: str,
) -> None:
    def measure(*_: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr(QualityMeter, "measure", measure)
    words = ["bench", "quantized", str(places / model), "--text", str(places / text), *typed]
    assert main([*words, "--context", "4"] if "--context" not in typed else words) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said


@pytest.mark.parametrize(
    ("longest", "budget", "contexts"),
    [
        (8192, 10**6, [128, 512, 8192]),
        # Decoding the longest window would take hours.
        (8192, 2000, [128, 512]),
        (8192, 200, [128]),
        (8192, 50, [50]),
        # A text, or a network, of 90 tokens.
        (90, 10**6, [90]),
        (128, 10**6, [128]),
    ],
)
def test_default_contexts_follow_from_the_text_and_the_network(
    longest: int, budget: int, contexts: list[int]
) -> None:
    assert choose_contexts(None, longest, budget) == contexts


def test_a_short_text_is_measured_by_default(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (places / "short").write_text("abc a", "utf-8")
    words = ["bench", "quantized", str(places / "own"), "--text", str(places / "short"), "--json"]
    assert main([*words, "--storage", "int8-g3"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["storages"]
    assert row["context"] == 4
