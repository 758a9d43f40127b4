"""The task of labelled texts: windows, splits, and what solvers score that are known beforehand."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkvary.data.labelled_texts import load_labelled_texts
from qkvary.nn.layout import Layout
from qkvary.tasks.config import TextTaskConfig
from qkvary.tasks.contract import Batch
from qkvary.tasks.texts import PADDING, TextTask
from tests.tasks.solvers import Solver
from tests.tasks.tiny_networks import tiny_network

LABELS = ("fish", "fowl", "meat")
CONTEXT = 5


def contents(label: int, number: int) -> str:
    """Texts of many lengths; a letter belongs to one label."""
    return "abcdefghi"[3 * label : 3 * label + 3] * (1 + 2 * number + label) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label, name in enumerate(LABELS):
        (tmp_path / name).mkdir()
        for number in range(4):
            (tmp_path / name / f"{number}.txt").write_text(contents(label, number))
    return tmp_path


def make(folder: Path, **changes: int) -> TextTask:
    sha256 = load_labelled_texts(str(folder)).fingerprint
    sizes = {"context": CONTEXT, "evaluation_batch_size": 4}
    return TextTask(TextTaskConfig(data=str(folder), data_sha256=sha256, **sizes | changes))


class Reader(Solver):
    """Needs the mask."""

    def forward(self, tokens: Tensor, *, attention_mask: Tensor | None = None) -> Tensor:
        is_real = torch.ones_like(tokens) if attention_mask is None else attention_mask
        assert torch.equal(is_real.bool(), tokens != PADDING)
        return self.features(tokens)


def find_label(row: list[int]) -> int:
    return next("abcdefghi".index(chr(one)) // 3 for one in row if chr(one) in "abcdefghi")


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("windows", [1, 1_000])
def test_an_oracle_scores_one_and_one_answer_the_share_of_its_label(
    folder: Path, split: str, windows: int
) -> None:
    task = make(folder, windows_per_label=windows)
    assert task.evaluate(Reader(find_label, 3), split) == {  # type: ignore[arg-type]
        "loss": pytest.approx(0.0, abs=1e-9),
        "accuracy": 1.0,
    }
    for answer in range(3):
        stubborn = Reader(lambda _, answer=answer: answer, 3)
        assert task.evaluate(stubborn, split)["accuracy"] == 1 / 3  # type: ignore[arg-type]


def windows_of(text: bytes, step: int) -> list[list[int]]:
    """Windows by a plain loop; a text shorter than one is padded."""
    last = max(0, len(text) - CONTEXT)
    cut = [list(text[start : start + CONTEXT]) for start in range(0, last + 1, step)]
    return [window + [PADDING] * (CONTEXT - len(window)) for window in cut]


def by_label(*batches: Batch) -> list[list[list[int]]]:
    """The windows of each label."""
    found: list[list[list[int]]] = [[] for _ in LABELS]
    for batch in batches:
        for window, label in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            found[label].append(window)
    return found


def test_scored_windows_are_those_of_plain_loops(folder: Path) -> None:
    task = make(folder, windows_per_label=1_000)
    every = [
        [window for text in texts for window in windows_of(bytes(text.data), CONTEXT)]
        for texts in task.texts["test"]
    ]
    # As many of each label as there are of the shortest texts.
    count = min(map(len, every))
    assert {len(some) for some in every} != {count}
    expected = [[some[number * len(some) // count] for number in range(count)] for some in every]
    assert by_label(*task.evaluation_batches("test")) == expected


def test_fewer_windows_are_spread_evenly(folder: Path) -> None:
    for path in folder.glob("*/*.txt"):
        path.write_text(9 * path.read_text())
    few = make(folder, windows_per_label=2)
    shown = by_label(*few.evaluation_batches("test"))
    for texts, found in zip(few.texts["test"], shown, strict=True):
        every = [w for text in texts for w in windows_of(bytes(text.data), CONTEXT)]
        assert found == [every[0], every[len(every) // 2]]


def test_training_draws_every_window_of_the_training_texts_equally(folder: Path) -> None:
    task, draws = make(folder), 6_000
    shown = by_label(task.batch(0, draws, 0))
    for texts, windows in zip(task.texts["train"], shown, strict=True):
        every = [tuple(w) for text in texts for w in windows_of(bytes(text.data), 1)]
        drawn = list(map(tuple, windows))
        assert abs(len(drawn) - draws / 3) < 5 * (draws * 2 / 9) ** 0.5
        assert set(drawn) == set(every)
        for window in set(every):
            share = every.count(window) / len(every)
            spread = (len(drawn) * share * (1 - share)) ** 0.5
            assert abs(drawn.count(window) - len(drawn) * share) <= 5 * spread


def test_padding_is_not_shown_as_attended(folder: Path) -> None:
    task = make(folder, context=31)
    network = dataclasses.replace(tiny_network("texts"), classes=3, max_tokens=31)
    model = task.build(network, 0).eval()
    first = next(task.evaluation_batches("validation")).inputs[:1]
    length = int((first != PADDING).sum())
    assert length < 31
    example = task.attention_example(model)
    assert example is not None
    assert (len(example.tokens), "∅" in example.tokens) == (length, False)
    x = model._embed(first, Layout(new_tokens=31))
    layout = Layout(new_tokens=31, attention_mask=first != PADDING)
    expected = model.stack.attention_maps(x, layout=layout)[0][:, :, :length, :length]
    assert torch.allclose(torch.from_numpy(example.maps), expected, atol=1e-6)
