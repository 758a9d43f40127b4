"""The scripts of one-off experiments fit the package: their records say what they found."""

import pytest

from tests.studies_scripts.loading import STUDIES, load_script

SCRIPTS = sorted((path.parent.name, path.stem) for path in STUDIES.rglob("*.py"))


@pytest.mark.parametrize(("folder", "name"), SCRIPTS)
def test_a_script_finds_what_it_imports(folder: str, name: str) -> None:
    assert load_script(folder, name).__doc__
