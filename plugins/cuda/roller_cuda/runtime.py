"""Artifacts on an NVIDIA GPU, through `cuda.core`: the cubin loaded once, arrays copied to the device and the result back.

Nothing here knows which chip it is but for the architecture that the cubin was built for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from roller.plugin import ELEMENT_BYTES, Artifact, DeviceUnavailableError, LaunchError, address
from roller_cuda import launching, toolchain

Array = npt.NDArray[Any]
STATIC_SHARED_BYTES = 48 << 10  # of shared memory that a kernel gets without asking


def problems() -> tuple[str, ...]:
    """What this machine lacks to run kernels."""
    try:
        _devices()
    except DeviceUnavailableError as error:
        return (str(error),)
    return ()


def attached() -> tuple[int, int] | None:
    """The compute capability of the first GPU; None where there is none."""
    try:
        (device, *_) = _devices()
    except DeviceUnavailableError:
        return None
    capability = device.compute_capability
    return int(capability.major), int(capability.minor)


def _devices() -> tuple[Any, ...]:
    try:
        from cuda.core import Device  # noqa: PLC0415  (an extra: the CPU device needs none of it)
    except ImportError as error:
        raise DeviceUnavailableError(f"running on a GPU needs cuda-core: {toolchain.INSTALL} ({error})") from error
    try:
        found = tuple(Device.get_all_devices())
    except (RuntimeError, OSError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise DeviceUnavailableError(f"no NVIDIA driver, or none that works: {reason}") from error
    if not found:
        raise DeviceUnavailableError("the NVIDIA driver finds no GPU")
    return found


class CudaRunner:
    """A loaded kernel on the first GPU. Arrays are NumPy's: each call copies inputs there and the result back."""

    def __init__(self, artifact: Artifact) -> None:
        self._launch = launching.checked(artifact).launch
        (self._device, *_) = _devices()
        capability = self._device.compute_capability
        wanted = str(self._launch["arch"])
        here = f"sm_{capability.major}{capability.minor}"
        if wanted.rstrip("af") != here:
            raise DeviceUnavailableError(
                f"the kernel was compiled for {wanted}, this GPU is {here}; compile it for the attached chip"
            )
        self._device.set_current()
        self._stream = self._device.create_stream()
        self._constants = {name: self._placed(array) for name, array in launching.constants_of(artifact).items()}
        self._kernels = [self._kernel(artifact.data, kernel) for kernel in self._launch["kernels"]]
        self._spaces = {s["name"]: self._room(s["elements"] * ELEMENT_BYTES[s["dtype"]]) for s in self._launch["workspaces"]}

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Compute `out`; arrays as `roller.kernel.Runner` says."""
        self._device.set_current()
        moving = [name for name in self._launch["inputs"] if name not in self._constants]
        places = {**self._constants, **self._spaces}
        for name, array in zip(moving, inputs, strict=True):
            places[name] = self._placed(array)
        places[self._launch["output"]] = result = self._room(out.nbytes)
        for kernel, config, names in self._kernels:
            self._started(kernel, config, [places[name] for name in names])
        self._copied(address(out), int(result.handle), out.nbytes, back=True)
        self._stream.sync()

    def close(self) -> None:
        """Free the memory that the kernel holds."""
        self._constants, self._spaces, self._kernels = {}, {}, []

    # --- what the driver does -----------------------------------------------------------------------------------------

    def _kernel(self, cubin: bytes, described: Mapping[str, Any]) -> tuple[Any, Any, list[str]]:
        from cuda.bindings import driver  # noqa: PLC0415
        from cuda.core import LaunchConfig, ObjectCode  # noqa: PLC0415

        kernel = ObjectCode.from_cubin(cubin).get_kernel(described["name"])
        shared = int(described["shared_bytes"])
        if shared > STATIC_SHARED_BYTES:
            wanted = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked_status(driver.cuKernelSetAttribute(wanted, shared, kernel.handle, self._device.device_id))
        config = LaunchConfig(grid=described["blocks"], block=described["threads"], shmem_size=shared)
        return kernel, config, list(described["arguments"])

    def _started(self, kernel: Any, config: Any, arguments: list[Any]) -> None:
        from cuda.core import launch  # noqa: PLC0415

        try:
            launch(self._stream, config, kernel, *arguments)
        except RuntimeError as error:
            raise LaunchError(f"the driver refused the launch: {error}") from error

    def _room(self, size: int) -> Any:
        return self._device.allocate(max(size, 1), stream=self._stream)

    def _placed(self, array: Array) -> Any:
        """Values on the device."""
        room = self._room(array.nbytes)
        self._copied(int(room.handle), address(array), array.nbytes, back=False)
        return room

    def _copied(self, target: int, source: int, size: int, back: bool) -> None:
        from cuda.bindings import driver  # noqa: PLC0415

        if size:
            copy = driver.cuMemcpyDtoHAsync if back else driver.cuMemcpyHtoDAsync
            _checked_status(copy(target, source, size, int(self._stream.handle)))


def _checked_status(answer: tuple[Any, ...]) -> None:
    if int(answer[0]):
        raise LaunchError(f"the CUDA driver says {answer[0].name}")
