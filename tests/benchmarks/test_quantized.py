"""What a measurement of rounded caches refuses, before anything is measured."""

from pathlib import Path

import pytest

from decoding.cache_quality import QualityMeter
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
