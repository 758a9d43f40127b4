"""The table of devices: plausible figures, each with a source; names are forgiving."""

import pytest

from qkvary.costs.devices import DEVICES, find_device


def test_every_figure_has_a_source_and_every_name_is_its_own() -> None:
    assert all(device.source.startswith(device.title.split()[0]) for device in DEVICES.values())
    assert all(name == device.name == name.lower() for name, device in DEVICES.items())


def test_unknown_devices_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean a100-40gb") as caught:
        find_device("a100-40")
    assert "h200" in str(caught.value)
    with pytest.raises(ValueError, match="for any other give --memory") as caught:
        find_device("abacus")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"), [("a100", "a100-40gb or a100-80gb"), ("H100", "h100-80gb or h100-pcie")]
)
def test_a_name_cut_short_means_those_that_begin_with_it(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean {meant}\\?"):
        find_device(name)
