import json
import platform

import pytest

from qkvary.storage.environment import check_device, machine
from qkvary.storage.errors import UsageError


def test_what_is_known_of_the_machine_can_be_stored() -> None:
    known = machine()
    assert json.loads(json.dumps(known)) == known
    assert known["python"] == platform.python_version()
    assert known["torch"].startswith("2.")
    assert known["cpu"]
    assert known["cpu_count"] >= 1


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:1234", "cuda:٣", "cpu:0", "CUDA"])
def test_other_names_are_no_devices(device: str) -> None:
    """The same rule for a network and for a run."""
    with pytest.raises(UsageError, match="expected a device such as cpu, cuda, cuda:1 or mps"):
        check_device(device)
