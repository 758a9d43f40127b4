"""The ablations have every sharing that admits them, and the controls of lm-rotary its runs."""

from collections import Counter

from qkvary.arch.labels import parse_variant
from qkvary.studies.catalog import load_study

STUDY = load_study("ablations-quick")


SHARINGS = ("QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=K=V", "(Q=K=V)+")


def is_admitted(label: str) -> bool:
    try:
        parse_variant(label)
    except ValueError:
        return False
    return True


def test_every_ablation_meets_every_variant_of_the_papers_that_admits_it() -> None:
    options = {label.partition("@")[2] for label in STUDY.variants} - {""}
    assert len(options) == 4 + 5 + 2
    possible = {f"{sharing}@{option}" for sharing in SHARINGS for option in options}
    assert set(STUDY.variants) == {*SHARINGS, *filter(is_admitted, possible)}


def test_the_controls_share_runs_with_lm_rotary() -> None:
    known = {cell.run_key for cell in load_study("lm-rotary").cells()}
    shared = Counter(
        (cell.setting, cell.variant, cell.run_key in known)
        for cell in load_study("lm-rotary-controls").cells()
    )
    assert shared == {
        ("all rotates, counter", "QKV@rotary", True): 5,
        ("all rotates, counter", "Q-K=V@rotary", True): 5,
        ("all rotates, rotated", "Q-K=V@rotary", True): 5,
        ("values rotate too, counter", "QKV@rotary", False): 5,
        ("values rotate too, rotated", "QKV@rotary", False): 5,
        ("learned positions", "QKV", False): 5,
        ("learned positions", "Q-K=V", False): 5,
    }
