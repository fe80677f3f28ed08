"""roller: compiles tensor operators to fast kernels by construction instead of search.

import roller
from roller import ops

a, b = roller.tensor((1024, 512)), roller.tensor((512, 2048))
kernel = roller.compile(ops.relu(ops.matmul(a, b)))
c = kernel(a_array, b_array)
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from roller import ops
from roller.compiler import compile, compile_top, load
from roller.device.chip import load_spec, specs
from roller.device.plugins import device_names as devices
from roller.errors import (
    CodegenError,
    ConstructionError,
    DeviceUnavailableError,
    ExpressionError,
    HookError,
    KernelError,
    LaunchError,
    PluginApiError,
    PluginError,
    PluginLoadError,
    RollerError,
    SettingError,
    SpecError,
    UnknownDeviceError,
    WrongResultError,
)
from roller.kernel import Kernel
from roller.ops import SymbolicTensor, tensor
from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram
from roller.target.hardware import HardwareSpec

if TYPE_CHECKING:
    from roller.study import construct, enumerate_programs, rate

try:
    __version__ = version("roller-compiler")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "CodegenError",
    "ConstructionError",
    "DeviceUnavailableError",
    "Estimate",
    "ExpressionError",
    "HardwareSpec",
    "HookError",
    "Kernel",
    "KernelError",
    "LaunchError",
    "PluginApiError",
    "PluginError",
    "PluginLoadError",
    "RProgram",
    "RollerError",
    "SettingError",
    "SpecError",
    "SymbolicTensor",
    "UnknownDeviceError",
    "WrongResultError",
    "__version__",
    "compile",
    "compile_top",
    "construct",
    "devices",
    "enumerate_programs",
    "load",
    "load_spec",
    "ops",
    "rate",
    "specs",
    "tensor",
]


def __getattr__(name: str) -> Any:
    """Imports what few programs use when it is first used: it needs the whole search."""
    if name in ("construct", "enumerate_programs", "rate"):
        return getattr(import_module("roller.study"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names: packages of the implementation are importable, and no part of the interface."""
    return sorted(__all__)
