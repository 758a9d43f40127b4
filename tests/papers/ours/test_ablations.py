"""The ablations have every sharing that admits them, and the controls of lm-rotary its runs."""

from collections import Counter

from qkvary.arch.labels import parse_variant
from qkvary.studies.catalog import load_study
from qkvary.training.config import TemperatureSchedule

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


def test_each_is_compared_with_its_own_sharing() -> None:
    ablated = [label for label in STUDY.variants if "@" in label]
    assert dict(STUDY.pairs) == {label: label.partition("@")[0] for label in ablated}


def test_simas_have_no_characters_and_annealing_has_every_sharing() -> None:
    swap, characters, *annealed = STUDY.settings
    missing = set(STUDY.variants_of(swap)) - set(STUDY.variants_of(characters))
    assert {parse_variant(label).core for label in missing} == {"sima"}
    assert len(missing) == 4
    for plain, cooled in zip((swap, characters), annealed, strict=True):
        assert plain.training.temperature is None
        assert cooled.training.temperature == TemperatureSchedule(start=4.0)
        assert STUDY.variants_of(cooled) == SHARINGS
        assert (cooled.task, cooled.network) == (plain.task, plain.network)


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
