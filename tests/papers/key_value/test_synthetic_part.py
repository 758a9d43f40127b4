"""The limit of the part of the synthetic experiments names the scores of two kept runs."""

from pathlib import Path

from qkvary.papers.key_value.studies.synthetic_published import HARDER
from qkvary.studies.running.run_archive import read_runs

PATH = Path(__file__).parents[3] / "studies/key_value/synthetic-published-part/longer-runs.jsonl.xz"


def test_the_limit_names_the_scores_of_the_kept_runs() -> None:
    found = {}
    for one in read_runs(PATH.read_bytes(), str(PATH)):
        task = one.config["run"]["task"]
        assert task["length"] == 128
        found[task["name"]] = one.record.metrics["test_accuracy"]
    assert f"scores {found['reverse']:.3f} on reverse and {found['swap']:.3f} on swap" in HARDER
