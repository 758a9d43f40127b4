"""Every file in conversions/rewrites is a rewrite: it explains itself, and can be asked for."""

from pathlib import Path

import pytest

from qkvary.conversions import rewrites
from qkvary.conversions.catalog import load_rewrite, rewrite_names
from tests.contracts.parsed import ROOT

GUIDE = ROOT / "docs" / "guide" / "rewrites.md"


def test_every_file_is_found() -> None:
    files = Path(rewrites.__path__[0]).glob("[!_]*.py")
    assert sorted(file.stem for file in files) == [
        name.replace("-", "_") for name in rewrite_names()
    ]


@pytest.mark.parametrize("name", rewrite_names())
def test_file_is_a_rewrite_that_the_guide_explains(name: str) -> None:
    assert callable(load_rewrite(name))
    assert f"`{name}`" in GUIDE.read_text("utf-8")
