"""The device that a caller names, in the forms that callers use, and the known chip that stands in for an unknown one."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from roller.device.attached import like_attached
from roller.device.chip import resolve
from roller.errors import DeviceUnavailableError, SpecError
from roller.target.catalog import find_spec, list_specs, shipped_specs


@pytest.mark.parametrize("device", ["CPU:x86-64-v3", "Cpu:x86-64-v3"])
def test_devices_are_named_in_any_case(device: str) -> None:
    assert resolve(device)[1] == resolve("cpu:x86-64-v3")[1]


def test_objects_name_a_device_by_their_type() -> None:
    """As `torch.device` has it."""
    cuda = SimpleNamespace(type="cuda", index=None)
    assert resolve(cuda, find_spec("cuda", "h100"))[1].chip == "h100"  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cuda:0", "CUDA:1", "cpu:0", SimpleNamespace(type="rocm", index=2)])
def test_a_number_of_a_gpu_is_answered_with_advice(device: Any) -> None:
    with pytest.raises(SpecError, match=r"by its number; say device='(cuda|cpu|rocm)'"):
        resolve(device)


def test_a_chip_without_differences_needs_no_warning() -> None:
    h100 = find_spec("cuda", "h100")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert like_attached("cuda", "a100", lambda: h100, lambda _: (), "measure it") is h100


def test_differences_come_with_advice_and_no_likeness_with_the_default() -> None:
    h100 = find_spec("cuda", "h100")
    with pytest.warns(UserWarning, match=r"h100 is the nearest. The GPU has 7 SMs, 8 GB. .* chosen for h100: measure it"):
        assert like_attached("cuda", "a100", lambda: h100, lambda _: ("7 SMs", "8 GB"), "measure it") is h100

    def none() -> Any:
        raise DeviceUnavailableError("no chip is like it")

    with pytest.warns(UserWarning, match="no chip is like it; kernels are compiled for a100, and the attached GPU cannot run them"):
        assert like_attached("cuda", "a100", none, lambda _: (), "measure it") == find_spec("cuda", "a100")


@pytest.mark.parametrize("device", ["cpu", "cuda", "rocm", "ipu_sim"])
def test_shipped_specs_are_all_of_a_device(device: str) -> None:
    assert [spec.chip for spec in shipped_specs(device)] == [entry.chip for entry in list_specs(device)]
