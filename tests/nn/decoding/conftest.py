"""What decoding keeps between runs is made anew for the tests, and is not the developer's."""

from collections.abc import Iterator

import pytest

from qkvary.nn.decoding import choice, native, triton_attention
from qkvary.nn.decoding.build import find_compiler

# A machine without a compiler is normal, and has no native step to test.
collect_ignore = [] if find_compiler() else ["test_step.py"]
# Nor is Triton built for every system.
collect_ignore += [] if triton_attention.kernels else ["test_triton_attention.py"]


@pytest.fixture(scope="session", autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of the session's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKVARY_CACHE", str(tmp_path_factory.mktemp("kept")))
        # Built here, and not in the folder of the test that happens to be the first.
        native.library()
        yield


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test knows what another one timed, and no kernel is pinned."""
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    choice.forget()
    yield
    choice.forget()
