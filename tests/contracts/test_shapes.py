"""Every variant once with the shapes in annotations executed: forward, backward and decoding."""

import subprocess
import sys

import pytest

from tests.contracts.variant_cases import LABELS, variant_fields
from tests.forked import ForkedPython
from tests.pairwise import cover

FIELDS = tuple(tuple(variant_fields(label).items()) for label in LABELS)
EVERY_VALUE = [LABELS[place] for place in cover(FIELDS, together=1)]


@pytest.mark.parametrize(
    "labels", [EVERY_VALUE, pytest.param(LABELS, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_shapes_are_those_annotated(labels: list[str]) -> None:
    process = ForkedPython(
        [sys.executable, "-m", "tests.contracts.executed_shapes", *labels],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said, problems = process.communicate(timeout=240)
    assert (process.returncode, problems) == (0, "")
    assert said.splitlines() == [f"{label} has the shapes that are annotated" for label in labels]
