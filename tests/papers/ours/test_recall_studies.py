"""The studies of recall and of texts have the sizes that their descriptions and sources have."""

from pathlib import Path

import numpy as np
import pytest

from qkvary.cli.main import main
from qkvary.data.labelled_texts import load_labelled_texts
from qkvary.data.recall import draw_recall, score_positions
from qkvary.papers.ours.recall import POSITIONAL_FLOORS, recall_floor
from qkvary.studies.catalog import load_study
from qkvary.studies.study import Setting
from qkvary.tasks.config import RecallTaskConfig


def guess_of(setting: Setting) -> float:
    scale = setting.task.scale(setting.network, setting.task.metric)
    assert scale is not None
    assert scale.perfect == 1
    return scale.guess


def test_a_solver_that_recalls_nothing_knows_positions() -> None:
    for setting in load_study("recall-quick").settings:
        guess = guess_of(setting)
        assert f" scores {1 / 4:g}, " in setting.note
        assert f" {guess:.3f}: neither recalls." in setting.note
    (setting,) = load_study("authors-quick").settings
    assert guess_of(setting) == 0.25
    assert " scores 0.25" in setting.note


@pytest.mark.parametrize(("length", "pairs"), POSITIONAL_FLOORS)
def test_the_positional_floor_is_what_a_table_of_positions_scores(length: int, pairs: int) -> None:
    task = RecallTaskConfig(length=length, pairs=pairs)
    expected = score_positions(length, pairs, task.power)
    assert POSITIONAL_FLOORS[length, pairs] == round(expected, 3)
    assert f"at the position of the query {expected:.3f}: " in recall_floor(task)
    # A table of the likeliest pair of each position, counted in some sequences, scored in others.
    counted, scored = (
        draw_recall(
            seed=seed,
            length=length,
            pairs=pairs,
            vocabulary=64,
            power=task.power,
            split="test",
            count=4_000,
        ).pairs[:, 2 * pairs :: 2]
        for seed in (7, 8)
    )
    table = np.stack([(counted == pair).sum(axis=0) for pair in range(pairs)]).argmax(axis=0)
    right = (scored == table).sum() / (4_000 * pairs)
    assert abs(right - expected) < 5 * (expected / (4_000 * pairs)) ** 0.5


MAILS = """
import qkvary as qk
from qkvary.data.labelled_texts import load_labelled_texts
from qkvary.papers.ours.texts import text_network
from qkvary.tasks.config import TextTaskConfig
from qkvary.training.config import OptimizerConfig, TrainingConfig

SHA256 = {sha256}
setting = qk.Setting(
    name="mails",
    task=TextTaskConfig(data={folder!r}, data_sha256=SHA256, context=16),
    network=text_network(classes=2, context=16, d_model=8),
    training=TrainingConfig(
        steps=2, batch_size=2, optimizer=OptimizerConfig(learning_rate=1e-3), evaluate_every=2
    ),
)
STUDY = qk.Study(
    name="mails", question="?", description="", settings=(setting,), variants=("QKV",), seeds=(0,)
)
"""


def test_a_folder_of_ones_own_is_planned_or_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, study, out = tmp_path / "mails", tmp_path / "mine.py", tmp_path / "runs"
    for label in ("spam", "ham"):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            (folder / label / f"{number}.txt").write_text(f"{label} {number}")
    command = ["study", str(study), "--workers", "1", "--out", str(out)]
    loaded = f"load_labelled_texts({str(folder)!r}).fingerprint"
    sha256 = load_labelled_texts(str(folder)).fingerprint
    study.write_text(MAILS.format(folder=str(folder), sha256=loaded))
    assert main([*command, "--dry-run"]) == 0
    assert "1 run, 0 done, 0 running, 1 open" in capsys.readouterr().out
    (folder / "spam" / "1.txt").write_bytes(b"\xff")
    load_labelled_texts.cache_clear()
    assert main(command) == 2
    assert f"expected UTF-8 text in {folder}/spam/1.txt" in capsys.readouterr().err
    study.write_text(MAILS.format(folder=str(folder), sha256=repr(sha256)))
    assert main([*command[:-1], str(tmp_path / "others")]) == 3
    error = capsys.readouterr().err
    assert f"expected UTF-8 text in {folder}/spam/1.txt" in error
    assert error.count("\n") == 1
    (folder / "spam" / "1.txt").write_text("another text")
    assert main([*command[:-1], str(tmp_path / "others")]) == 3
    assert f"expected the texts of {folder} with sha256 {sha256}" in capsys.readouterr().err
