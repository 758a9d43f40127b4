"""The device of the tests refuses what a GPU refuses, and counts what makes the host wait."""

import pytest
import torch

from tests.fake_device import DEVICE, NAME, DeviceTensor, FakeDevice


def test_it_computes_as_the_cpu_does() -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with FakeDevice() as device:
        there = x.to(DEVICE)
        there[1] = 7.0
        made = torch.arange(5, device=NAME) + there.T.contiguous()[:, 0]
    x[1] = 7.0
    assert isinstance(made, DeviceTensor)
    assert made.device == torch.device(DEVICE)
    assert torch.equal(made.cpu(), torch.arange(5) + x[0])
    assert not device.waits


@pytest.mark.parametrize("inference", [False, True])
def test_what_mixes_devices_is_refused(inference: bool) -> None:
    here = torch.ones(3)
    with FakeDevice(), torch.inference_mode(inference):
        there = torch.ones(3, device=DEVICE)
        for mix in (
            lambda: here + there,
            lambda: there @ here,
            lambda: there[torch.tensor([0])],
            lambda: torch.cat((here, there)),
            lambda: there.add_(here),
            lambda: torch.where(here > 0, there, 0.0),
            lambda: torch.addmm(here, there[None], there[:, None].expand(3, 3)),
        ):
            with pytest.raises(RuntimeError, match="tensors of one device"):
                mix()
        with pytest.raises(RuntimeError, match="a generator of the device"):
            there.uniform_(generator=torch.Generator())
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()
        # A number of the CPU is an operand of everything, and a copy is one that is asked for.
        assert (there * torch.tensor(2.0)).tolist() == [2.0] * 3
        assert there.copy_(here).tolist() == [1.0] * 3


@pytest.mark.parametrize("inference", [False, True])
def test_waits_are_counted(inference: bool) -> None:
    with FakeDevice() as device, torch.inference_mode(inference):
        x = torch.ones(3, device=DEVICE)
        assert not device.waits
        waiting = (
            x.sum().item,
            x.cpu,
            x.tolist,
            lambda: float(x[0]),
            lambda: bool((x > 0).all()),
            lambda: x[x > 0],
            x.nonzero,
            lambda: torch.equal(x, x),
            lambda: torch.empty(3).copy_(x),
            lambda: x.repeat_interleave(torch.ones(3, dtype=torch.long, device=DEVICE)),
        )
        for number, wait in enumerate(waiting, start=1):
            wait()
            assert device.waits["elsewhere"] == number
        places = torch.tensor([1, 0], device=DEVICE)
        assert device.uploads == {"elsewhere": 1}
        for free in (lambda: x[places], lambda: x[1:], lambda: torch.where(x > 0, x, 0.0)):
            free()
        assert device.waits == {"elsewhere": len(waiting)}


def test_autocast_narrows_what_cuda_narrows() -> None:
    with FakeDevice(), torch.autocast(NAME, torch.bfloat16):
        x = torch.ones(4, 4, device=DEVICE)
        assert (x @ x).dtype == torch.bfloat16
        assert torch.nn.functional.linear(x, x, x[0]).dtype == torch.bfloat16
        assert (x @ x).softmax(dim=-1).dtype == torch.float32
        assert torch.nn.functional.layer_norm(x @ x, (4,)).dtype == torch.float32
        assert ((x @ x) + 1).dtype == torch.bfloat16
        assert (x.double() @ x.double()).dtype == torch.float64
