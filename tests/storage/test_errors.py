import pytest

from qkvary.storage import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UsageError, 2),
        (errors.DamagedError, 3),
        (errors.NewerFormatError, 3),
        (errors.ResourceError, 4),
        (errors.DivergedError, 5),
        (errors.BusyError, 6),
        (errors.UnsafeError, 7),
    ],
)
def test_every_error_has_its_exit_code(kind: type[errors.QkvaryError], code: int) -> None:
    assert kind.exit_code == code
    assert str(kind("what failed; what to do")) == "what failed; what to do"
    assert issubclass(kind, ValueError) == (kind is errors.UsageError)
