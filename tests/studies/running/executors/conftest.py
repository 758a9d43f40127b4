"""One cluster for all tests of executors."""

from collections.abc import Iterator

import pytest

from tests.studies.running.executors.loopback import Loopback


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """Two nodes with one core each, to which this process is connected."""
    with pytest.MonkeyPatch.context() as patch:
        running = Loopback(tmp_path_factory.mktemp("nodes"), patch)
        yield running
        running.stop()
