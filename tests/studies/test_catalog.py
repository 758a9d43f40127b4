"""Studies are found by name and by path, and a file that is none is refused in a sentence."""

from dataclasses import replace
from pathlib import Path

import pytest

from qkvary.storage.errors import UsageError
from qkvary.studies import catalog
from qkvary.studies.catalog import load_study, study_names


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("quickstrat", "did you mean quickstart?"),
        ("lm-rotary-control", "did you mean lm-rotary-controls?"),
        ("zzzz", "choices: ablations-quick, "),
    ],
)
def test_unknown_names_are_answered(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        load_study(name)


TWO_PROTOCOLS = """
from dataclasses import replace
from tests.studies.toy_study import toy_study
STUDY = toy_study([1])
PROTOCOLS = {"as-published": STUDY, "clean": replace(STUDY, name="toy-clean")}
"""


def test_a_study_has_protocols(tmp_path: Path) -> None:
    path = tmp_path / "toy.py"
    path.write_text(TWO_PROTOCOLS, "utf-8")
    plain = load_study(str(path))
    assert load_study(str(path), "As_Published") == plain
    assert load_study(str(path), "clean") == replace(plain, name="toy-clean")
    with pytest.raises(UsageError, match=r"got 'clear'; did you mean clean\?"):
        load_study(str(path), "clear")
    with pytest.raises(UsageError, match="got 'clean'; this study has one protocol"):
        load_study("quickstart", "clean")


@pytest.mark.parametrize("name", study_names())
def test_every_protocol_is_found_by_its_name(name: str) -> None:
    module = catalog._import_definition(name)  # pyright: ignore[reportPrivateUsage]
    for protocol, study in getattr(module, "PROTOCOLS", {"": module.STUDY}).items():
        assert study is module.STUDY or study.name == f"{name}-{protocol}"
        assert load_study(study.name) == study
    public = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    assert public == [], "a file of a study defines nothing else"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n", "expected a STUDY in .* got None"),
        ("import nothing_of_this_name\n", r"run pip install nothing_of_this_name \(line 1\)"),
        ("\n\nSTUDY = (\n", r"SyntaxError: .*\(line 3\)"),
        ("\nraise KeyError('odd')\n", r"KeyError: 'odd' \(line 2\)"),
    ],
)
def test_files_that_are_no_study_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=says):
        load_study(str(path))
