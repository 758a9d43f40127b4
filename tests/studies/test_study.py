import dataclasses
import re

import pytest

from qkvary.arch.labels import format_label
from qkvary.arch.named_networks import find_network
from qkvary.storage.errors import UsageError
from qkvary.studies.study import CrossSettingContrast, Study
from tests.studies.toy_study import toy_study

STUDY = toy_study([3, 1])


def changed(**fields: object) -> Study:
    return dataclasses.replace(STUDY, **fields)  # type: ignore[arg-type]


def test_cells_are_settings_by_variants_by_seeds() -> None:
    cells = STUDY.cells()
    assert [(cell.seed, cell.variant) for cell in cells] == [
        (3, "QKV"),
        (3, "Q-K=V"),
        (1, "QKV"),
        (1, "Q-K=V"),
    ]
    assert len({cell.run_key for cell in cells}) == 4
    assert {cell.learning_rate for cell in cells} == {0.1}
    assert cells[1].title == "toy <b>setting</b> Q-K=V seed 3 lr 0.1"
    assert cells[1].run.network == STUDY.settings[0].network.with_variant(
        cells[1].run.network.layers[0].variant
    )


def test_the_key_of_a_run_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    study = dataclasses.replace(STUDY, seeds=(5,))
    keys = [*study.runs()]
    monkeypatch.setattr("qkvary.training.config.canonical_json", pytest.fail)
    assert [cell.run_key for cell in study.cells()] == [*study.runs()] == keys


def test_a_network_may_be_given_by_its_name() -> None:
    setting = dataclasses.replace(STUDY.settings[0], network="lm-10m")  # type: ignore[arg-type]
    assert setting.network == find_network("10M")
    with pytest.raises(ValueError, match="expected the name of a network, got 'lm-9m'"):
        dataclasses.replace(setting, network="lm-9m")  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Parity:
    name: str = "parity"
    metric: str = "accuracy"


@pytest.mark.parametrize(
    ("field", "part", "message"),
    [
        ("task", Parity(), "expected a task of the class TaskConfig or a subclass, got Parity"),
        ("network", 7, "expected a network of the class Network or a subclass, got int$"),
    ],
)
def test_a_part_of_another_class_is_refused(field: str, part: object, message: str) -> None:
    (setting, *_) = toy_study([1]).settings
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(setting, **{field: part})


def test_labels_become_canonical() -> None:
    study = changed(variants=("q,k,v", "q,k=v"), baseline="q,k,v")
    assert [cell.variant for cell in study.cells()] == ["QKV", "Q-K=V"] * 2
    assert [cell.run_key for cell in study.cells()] == [cell.run_key for cell in STUDY.cells()]


def test_layers_may_have_variants_of_their_own() -> None:
    network = dataclasses.replace(STUDY.settings[0].network, num_layers=3)
    settings = (dataclasses.replace(STUDY.settings[0], network=network),)
    study = changed(variants=("QKV", "q,k,v*1,q,k=v*2"), settings=settings, seeds=(3,))
    first, second = study.cells()
    assert (first.variant, second.variant) == ("QKV", "QKV*1,Q-K=V*2")
    labels = [format_label(layer.variant) for layer in second.run.network.layers]
    assert labels == ["QKV", "Q-K=V", "Q-K=V"]


def test_each_learning_rate_is_a_run() -> None:
    study = changed(learning_rates=(0.3, 0.1), seeds=(3,), variants=("QKV",))
    assert [cell.learning_rate for cell in study.cells()] == [0.3, 0.1]
    assert study.cells()[1].run_key == STUDY.cells()[0].run_key


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "expected a name for the study"),
        ({"seeds": ()}, "study 'toy': expected seeds, got none"),
        ({"seeds": (0, -1)}, "expected a whole number of at least 0 for seed, got -1"),
        ({"seeds": (1, 2, 1)}, "study 'toy': expected distinct seeds, got 1 twice"),
        ({"variants": ("QKV", "q,k,v")}, "expected distinct variants, got QKV twice"),
        ({"variants": ("Q-K=V",)}, "expected a baseline among its variants, got 'QKV'; choices:"),
        ({"variants": ("QKV", "Q-K=W")}, "Q-K=W"),
        ({"contrasts": (("MQA", "QKV"),)}, "in the contrast MQA against QKV, got 'MQA'; choices:"),
        (
            {"contrasts": (("QKV", "q,k,v"),)},
            "a variant and a different reference .*, got QKV, QKV",
        ),
        ({"contrasts": (("QKV", "Q-K=V"), ("QKV", "q,k=v"))}, "expected distinct contrasts, got"),
        ({"contrasts": (("QKV",),)}, "a variant and a different reference .*, got QKV$"),
    ],
)
def test_a_study_without_meaning_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changed(**fields)


def test_a_variant_without_meaning_in_a_setting_is_named() -> None:
    study = changed(variants=("QKV", "GQA-8"))
    with pytest.raises(ValueError, match="study 'toy', setting 'toy <b>setting</b>', variant"):
        study.cells()


def test_a_part_keeps_the_baseline_and_what_it_is_compared_with() -> None:
    first = STUDY.settings[0]
    second = dataclasses.replace(first, name="second", table="own", variants=("QKV", "Q=K=V"))
    study = changed(
        settings=(first, second),
        variants=("QKV", "Q-K=V", "Q=K=V"),
        contrasts=(
            ("Q=K=V", "Q-K=V"),
            ("Q-K=V", "QKV"),
            CrossSettingContrast(
                variant="QKV", setting="second", reference="QKV", reference_setting=first.name
            ),
        ),
    )
    part = study.select(tasks=(), settings=(), variants=("q,k=v",))
    assert part.variants == ("QKV", "Q-K=V")
    # The second setting has none of the variants that are asked for.
    assert part.settings == (first,)
    assert part.contrasts == study.contrasts[1:2]
    assert part.description == "Nothing was run. This is the part with variant Q-K=V."
    both = study.select(tasks=(), settings=(), variants=("Q=K=V",))
    assert [both.variants_of(setting) for setting in both.settings] == [("QKV", "Q=K=V")] * 2
    assert both.contrasts == study.contrasts[2:]
    one = study.select(tasks=("copy",), settings=(first.name,), variants=())
    assert (one.settings, one.variants) == ((first,), study.variants)
    assert one.contrasts == study.contrasts[:2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tasks": ("copies",)}, "expected a task of the study, got 'copies'; did you mean copy?"),
        ({"settings": ("x",)}, "expected a setting of the study, got 'x'; choices: toy <b>"),
        ({"variants": ("MQA",)}, "expected a variant of the study, got 'MQA'; choices: QKV, Q-K=V"),
    ],
)
def test_parts_that_are_not_there_are_refused(
    given: dict[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        STUDY.select(**{"tasks": (), "settings": (), "variants": (), **given})
