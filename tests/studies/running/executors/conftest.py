"""One cluster for all tests of executors."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.studies.running.executors.loopback import start_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes with one core each; a test may add others."""
    with start_cluster(tmp_path_factory.mktemp("nodes")) as running:
        yield running
