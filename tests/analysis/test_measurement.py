"""An analysis from text: windows, limits, and what is refused."""

from pathlib import Path

import pytest
import torch

from qkvary.analysis import measurement
from qkvary.analysis.measurement import analyze_network, analyze_windows, read_windows
from qkvary.checkpoints.models import LoadedModel
from qkvary.data.documents import Document
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from tests.analysis.networks import make_network, make_windows

LETTERS = "abcdefghij klmnopq.,\n"
TEXT = "a big cab.\n" * 40


def load(network: LanguageModel | None = None, tokenizer: Tokenizer | None = None) -> LoadedModel:
    return LoadedModel(network or make_network(), tokenizer or CharacterTokenizer(LETTERS))


@pytest.fixture
def text(tmp_path: Path) -> tuple[Path, ...]:
    (tmp_path / "text.txt").write_text(TEXT)
    return (tmp_path,)


def test_windows_are_cut_from_one_document_each() -> None:
    documents = [Document(text, "x") for text in ("abcdefg", "h", "ij kl")]
    found = read_windows(documents, CharacterTokenizer(LETTERS), tokens=12, context=5)
    words = ["".join(LETTERS[token] for token in window) for window in found]
    # Tokens of windows that are too short for a next token are not counted.
    assert words == ["abcde", "fg", "ij kl"]
    separated = CharacterTokenizer(LETTERS, has_separator=True)
    found = read_windows(documents, separated, tokens=10, context=64)
    assert [window.tolist()[-1] for window in found] == [21, 21]


def test_text_is_read_up_to_the_limit_with_progress(text: tuple[Path, ...]) -> None:
    seen: list[tuple[int, int]] = []
    network = make_network()
    found = analyze_network(
        load(network), text, tokens=150, on_progress=lambda *counts: seen.append(counts)
    )
    assert (found.tokens, found.windows, found.context) == (150, 3, 64)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert found.maps.shape == (2, 2, 48, 48)
    tokens = torch.tensor([LETTERS.index(letter) for letter in TEXT[:150]])
    expected = analyze_windows(network, tokens.split(64), context=64)
    assert found == expected
    with torch.no_grad():
        losses = [float(network(one[None, :-1], targets=one[None, 1:])) for one in tokens.split(64)]
    assert found.loss == pytest.approx(sum(losses) / 147)


def read_state(network: LanguageModel) -> tuple[object, ...]:
    return (
        [module.training for module in network.modules()],
        [(one.requires_grad, one.dtype, one.tolist()) for one in network.parameters()],
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fails", [False, True])
def test_a_network_is_as_before(
    dtype: torch.dtype, fails: bool, text: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = make_network().to(dtype).train()
    next(iter(network.stack.blocks)).eval()
    network.embedding.requires_grad = True
    before = read_state(network)
    if fails:

        def fail(*_arguments: object, **_options: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(measurement, "read_window", fail)
        with pytest.raises(KeyboardInterrupt):
            analyze_network(load(network), text, tokens=150)
    else:
        assert analyze_network(load(network), text, tokens=150).loss > 0
    assert read_state(network) == before


def test_what_cannot_be_read_is_refused(text: tuple[Path, ...], tmp_path: Path) -> None:
    for given, message in (
        ({"context": 65}, "a context of 2 to 64 tokens, the maximum of the network, got 65"),
        ({"context": 1}, "a context of 2 to 64 tokens"),
        ({"tokens": 23}, "a text of at least 24 tokens, 4 for each channel of a head, got"),
    ):
        with pytest.raises(UsageError, match=f"expected {message}"):
            analyze_network(load(), text, **given)
    with pytest.raises(UsageError, match="expected a checkpoint with a tokenizer"):
        analyze_network(LoadedModel(make_network(), None), text)
    with pytest.raises(UsageError, match="expected tokens below 31, the vocabulary of the network"):
        analyze_network(load(tokenizer=ByteTokenizer()), text)
    with pytest.raises(UsageError, match="expected layers with a softmax"):
        analyze_network(load(make_network("Q=K-V@soft")), text)
    (tmp_path / "other.txt").write_text("XYZ")
    with pytest.raises(UsageError, match=r"other\.txt.* cannot be encoded: expected one of"):
        analyze_network(load(), (tmp_path / "other.txt",))
    with pytest.raises(UsageError, match="expected a text of at least 24 tokens"):
        analyze_windows(make_network(), [], context=64)


def test_more_text_takes_no_more_memory() -> None:
    """What is kept between windows has the same size after one window as after many."""
    kept: list[int] = []
    network = make_network("GQA-2", d_model=16, heads=4)

    def measure(_done: int, _total: int) -> None:
        parts = (vars(part) for one in layers for part in (one.moments, one.statistics))
        held = [one for fields in parts for one in fields.values()]
        kept.append(sum(one.numel() for one in held if isinstance(one, torch.Tensor)))

    layers: list[measurement.LayerStatistics] = []
    original = measurement.LayerStatistics

    def remember(*arguments: object) -> measurement.LayerStatistics:
        layers.append(original(*arguments))  # pyright: ignore[reportArgumentType]
        return layers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "LayerStatistics", remember)
        analyze_windows(
            network, make_windows(1, *([31] * 5)), context=64, expected=5, on_progress=measure
        )
    assert len(layers) == 2
    assert len(kept) == 5
    assert len(set(kept)) == 1
