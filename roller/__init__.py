"""roller: compiles tensor operators to fast kernels by construction instead of search.

import roller
from roller import ops

a, b = roller.tensor((1024, 512)), roller.tensor((512, 2048))
kernel = roller.compile(ops.relu(ops.matmul(a, b)))
c = kernel(a_array, b_array)
"""

from importlib.metadata import PackageNotFoundError, version

from roller import ops
from roller.chip import load_spec, specs
from roller.compiled import Kernel
from roller.compiler import compile, compile_top, load
from roller.devices import device_names as devices
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
    SpecError,
    UnknownDeviceError,
    WrongResultError,
)
from roller.estimate import Estimate
from roller.hardware import HardwareSpec
from roller.ops import SymbolicTensor, tensor
from roller.program import RProgram
from roller.rating import enumerate_programs, rate

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
    "SpecError",
    "SymbolicTensor",
    "UnknownDeviceError",
    "WrongResultError",
    "__version__",
    "compile",
    "compile_top",
    "devices",
    "enumerate_programs",
    "load",
    "load_spec",
    "ops",
    "rate",
    "specs",
    "tensor",
]
