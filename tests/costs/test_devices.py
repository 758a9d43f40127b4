"""The table of devices: plausible figures, each with a source; names are forgiving."""

import pytest

from qkvary.costs.devices import DEVICES, find_device


def test_every_figure_has_a_source_and_every_name_is_its_own() -> None:
    assert all(device.source.startswith(device.title.split()[0]) for device in DEVICES.values())
    assert all(name == device.name == name.lower() for name, device in DEVICES.items())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a100-40", r"h200.*did you mean a100-40gb\?"),
        # A name that is cut short means those that begin with it.
        ("a100", r"did you mean a100-40gb or a100-80gb\?"),
        ("H100", r"did you mean h100-80gb or h100-pcie\?"),
        ("abacus", "^(?!.*did you mean).*for any other device give --memory"),
    ],
)
def test_unknown_devices_are_refused_with_the_nearest(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        find_device(name)
