"""Every test of kernels needs the native ones, and none that is pinned."""

import pytest

from qkvary.nn.decoding import build, decode, native, triton_attention
from qkvary.nn.decoding.build import find_compiler

# A machine without a compiler is normal, and has no native step to test.
collect_ignore_glob = [] if find_compiler() else ["test_step*.py"]
# Nor is Triton built for every system.
collect_ignore = [] if triton_attention.kernels else ["test_triton_attention.py"]


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Built here, and not in the folder of the test that happens to be the first."""
    native.library()


@pytest.fixture
def narrower(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library as a compiler makes it that is told to leave out the widest vectors."""
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-march=native", flag))
    monkeypatch.setattr(build, "NATIVE", ("",))
    library = native.library.__wrapped__()
    assert library is not None
    monkeypatch.setattr(native, "library", lambda: library)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test knows which kernel failed in another one, and none is pinned."""
    monkeypatch.delenv(decode.VARIABLE, raising=False)
    monkeypatch.setattr(decode, "_started", {})
