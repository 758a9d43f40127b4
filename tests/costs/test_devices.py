"""The table of devices: plausible figures, each with a source; names are forgiving."""

import pytest

from qkvary.costs.devices import DEVICES, GB, TERA, Device, find_device


def test_figures_are_in_the_right_units() -> None:
    for device in DEVICES.values():
        assert 8 * GB <= device.memory_bytes <= 300 * GB
        bandwidth, rate = device.bandwidth_bytes_per_second, device.flops_per_second_16_bit
        assert bandwidth is not None
        assert 10 * GB < bandwidth < 10 * TERA
        if rate is not None:
            assert bandwidth > 0.2 * TERA
            assert 50 * TERA < rate < 3_000 * TERA
            # Products that a device can make while it reads a byte.
            assert 70 < rate / bandwidth < 700


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


def test_impossible_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a positive memory, got 0 bytes"):
        Device(name="none", title="none", memory_bytes=0)
    for rate in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="expected a positive bandwidth_bytes_per_second"):
            Device(name="x", title="x", memory_bytes=1, bandwidth_bytes_per_second=rate)
        with pytest.raises(ValueError, match="expected a positive flops_per_second_16_bit"):
            Device(name="x", title="x", memory_bytes=1, flops_per_second_16_bit=rate)


@pytest.mark.parametrize(
    ("name", "meant"), [("a100", "a100-40gb or a100-80gb"), ("H100", "h100-80gb or h100-pcie")]
)
def test_a_name_cut_short_means_those_that_begin_with_it(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean {meant}\\?"):
        find_device(name)
