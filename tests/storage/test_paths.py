"""What is neither text nor a path is refused in one line."""

import pytest
from torch import nn

from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import read_path


@pytest.mark.parametrize("given", [None, 3, b"bytes", nn.Sequential(nn.Linear(2, 3), nn.ReLU())])
def test_other_arguments_are_refused_in_one_line(given: object) -> None:
    with pytest.raises(UsageError, match="expected the path of a folder, got ") as caught:
        read_path(given, "the path of a folder")
    assert "\n" not in str(caught.value)
