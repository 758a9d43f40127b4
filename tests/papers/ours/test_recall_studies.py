"""The studies of recall and of texts have the sizes that their descriptions and sources have."""

from pathlib import Path

import numpy as np
import pytest

from qkvary.arch.labels import canonical_label
from qkvary.arch.networks import EncoderConfig, LanguageModelConfig
from qkvary.cli.main import main
from qkvary.data.labelled_texts import load_labelled_texts
from qkvary.data.recall import draw_recall, score_positions
from qkvary.papers.ours.recall import POSITIONAL_FLOORS, PROJECTIONS, recall_floor, with_cores
from qkvary.studies.catalog import load_study
from qkvary.studies.study import Setting
from qkvary.tasks.config import RecallTaskConfig, TextTaskConfig

PUBLISHED = {(64, 4): 512, (128, 8): 512, (256, 16): 256}
"""Length and pairs, and sequences per step: code of Arora et al. 2023, figure 2."""


def test_published_grid() -> None:
    study = load_study("recall-mqar")
    # Logarithmically spaced from 1e-4 to 1e-2.
    assert study.learning_rates == tuple(float(f"{10 ** (-4 + 2 * i / 3):.3g}") for i in range(4))
    sizes: list[tuple[int, int, int, int]] = []
    for setting in study.settings:
        task, network, training = setting.task, setting.network, setting.training
        assert isinstance(task, RecallTaskConfig)
        assert isinstance(network, LanguageModelConfig)
        assert (task.vocabulary, task.power, task.train_examples) == (8_192, 0.01, 100_000)
        assert training.batch_size == PUBLISHED[task.length, task.pairs]
        assert training.steps == 64 * training.evaluate_every
        assert training.evaluate_every == 100_000 // training.batch_size
        assert (training.optimizer.weight_decay, training.optimizer.gradient_clip) == (0.1, None)
        assert (training.schedule.name, training.schedule.warmup_steps) == ("cosine", 0)
        assert (training.solve_threshold, training.stop_when_solved) == (0.99, True)
        (layer,) = set(network.layers)
        assert (network.num_layers, network.positions, network.tied_head) == (2, "learned", True)
        assert (layer.dropout, network.embedding_dropout, network.block.dropout) == (0.1, 0.1, 0)
        assert layer.init.std == network.init.std == 0.02
        one = layer.num_heads == 1
        of_one = tuple(map(canonical_label, with_cores(PROJECTIONS)))
        assert set(study.variants_of(setting)) == set(of_one if one else study.labels)
        assert (setting.table is not None) == one
        sizes.append((task.length, task.pairs, network.d_model, layer.num_heads))
    assert len(set(sizes)) == len(sizes) == 3 * 4 * 2
    assert len(study.cells()) == 3 * 4 * (2 * 8 + 2 + 2 * 4 + 2) * 4 * 3


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


def test_one_head_of_64_has_the_cache_of_four_of_16() -> None:
    small, large, one, *longer = load_study("recall-quick").settings
    for setting, heads, head_dim in ((small, 4, 8), (large, 4, 16), (one, 1, 64)):
        assert isinstance(setting.network, LanguageModelConfig)
        (layer,) = set(setting.network.layers)
        assert (layer.num_heads, layer.d_model // layer.num_heads) == (heads, head_dim)
        assert setting.name == f"{'four heads' if heads == 4 else 'one head'} of {head_dim}"
    assert large.task == one.task == small.task
    for short, late in zip((one, large), longer, strict=True):
        assert late.name == f"{short.name}, five times the steps"
        assert (late.task, late.network) == (short.task, short.network)
        assert (late.variants, late.training.steps) == (short.variants, 5 * short.training.steps)


def test_the_encoder_of_texts_is_bidirectional_and_pools() -> None:
    (setting,) = load_study("authors-quick").settings
    task, network = setting.task, setting.network
    assert isinstance(task, TextTaskConfig)
    assert isinstance(network, EncoderConfig)
    assert not any(layer.causal for layer in network.layers)
    assert network.pooling == "mean"
    assert task.labels is not None
    assert network.classes == len(task.labels) == 4


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
