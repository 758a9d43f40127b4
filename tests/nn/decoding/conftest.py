"""What decoding keeps between runs is made anew for the tests, and is not the developer's."""

from collections.abc import Iterator

import pytest

from qkvary.nn.decoding import choice, native


@pytest.fixture(scope="session", autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of the session's own, and no pinned kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKVARY_CACHE", str(tmp_path_factory.mktemp("kept")))
        patch.delenv(choice.VARIABLE, raising=False)
        # Built here, and not in the folder of the test that happens to be the first.
        native.library()
        yield


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No test knows what another one timed."""
    choice.forget()
    yield
    choice.forget()
