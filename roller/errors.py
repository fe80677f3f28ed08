"""The errors that roller raises on purpose, as one tree.

RollerError
├── ExpressionError (ValueError)      not an operator roller can tile
├── SettingError (ValueError)         an environment variable has a value that roller does not take
├── SpecError (ValueError)            a hardware spec is missing, unreadable or contradicts itself
├── PluginError                       something is wrong with a device plugin
│   ├── UnknownDeviceError            no plugin of that name is installed
│   ├── PluginLoadError               the plugin's module does not import
│   ├── PluginApiError                the plugin has another API version, or lacks a required hook
│   └── HookError                     a hook raised, or returned the wrong thing
├── ConstructionError                 nothing fits: refusals counted by rule
├── CodegenError                      no source, or the toolchain refused it
└── KernelError (RuntimeError)        a built kernel cannot be run
    ├── DeviceUnavailableError        the machine has no such device
    ├── LaunchError                   the device or its driver refused the launch
    └── WrongResultError              the kernel ran, and its result is wrong
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "CodegenError",
    "ConstructionError",
    "DeviceUnavailableError",
    "ExpressionError",
    "HookError",
    "KernelError",
    "LaunchError",
    "PluginApiError",
    "PluginError",
    "PluginLoadError",
    "RollerError",
    "SettingError",
    "SpecError",
    "UnknownDeviceError",
    "WrongResultError",
]


def _rebuild(cls: type[RollerError], args: tuple[Any, ...], state: dict[str, Any]) -> RollerError:
    """Rebuilds a pickled error without calling its constructor, whose arguments differ by class."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class RollerError(Exception):
    """The root of the tree, raised only through its subclasses: `except RollerError` catches all of them.

    Every subclass survives pickling, because errors are sent from worker processes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ExpressionError(RollerError, ValueError):
    """Raised for an expression that is not an operator roller can tile (shape, dtype, access that is not affine)."""


class SettingError(RollerError, ValueError):
    """An environment variable has a value that roller does not take."""


class SpecError(RollerError, ValueError):
    """Raised when a hardware spec is missing, unreadable, unknown or contradicts itself.

    The message is one line, and begins with the file and the dotted field if they are known.
    """

    def __init__(self, message: str, file: str | Path | None = None, field: str | None = None) -> None:
        self.file = None if file is None else str(file)
        self.field = field
        super().__init__(": ".join(part for part in (self.file, field, message) if part))


class PluginError(RollerError):
    """Raised when a device plugin cannot be used, mostly as one of its subclasses; `device` is its name."""

    def __init__(self, message: str, device: str | None = None) -> None:
        self.device = device
        super().__init__(message)


class UnknownDeviceError(PluginError):
    """Raised when no plugin of that name is installed; `available` lists those that are."""

    def __init__(self, device: str, available: Sequence[str] = (), hint: str = "") -> None:
        self.available = tuple(available)
        installed = ", ".join(self.available) or "none"
        super().__init__(f"no device plugin named {device!r}{hint}; installed: {installed}", device)


class PluginLoadError(PluginError):
    """Raised when a plugin's entry point does not import."""


class PluginApiError(PluginError):
    """Raised when a plugin has another API version or lacks a required hook."""


class HookError(PluginError):
    """Raised when a plugin's hook raises, or returns what its contract forbids; `hook` names it."""

    def __init__(self, message: str, device: str | None = None, hook: str | None = None) -> None:
        self.hook = hook
        super().__init__(message, device)


class ConstructionError(RollerError):
    """Raised when no program fits the chip; `refusals` counts the tiles refused, by rule."""

    def __init__(self, message: str, refusals: Mapping[str, int] | None = None) -> None:
        self.refusals: dict[str, int] = dict(refusals or {})
        ordered = sorted(self.refusals.items(), key=lambda item: (-item[1], item[0]))
        counts = ", ".join(f"{rule}: {count}" for rule, count in ordered)
        super().__init__(f"{message} (refused by {counts})" if counts else message)


class CodegenError(RollerError):
    """Raised when no source can be generated for a program, or the toolchain refused it; `output` is the toolchain's output."""

    def __init__(self, message: str, output: str | None = None) -> None:
        self.output = output
        super().__init__(f"{message}\n{output}" if output else message)


class KernelError(RollerError, RuntimeError):
    """Raised when a built kernel cannot be loaded, saved or run; subclasses are more specific."""


class DeviceUnavailableError(KernelError):
    """Raised when a kernel is loaded on a machine that has no such device, driver or run-time library."""


class LaunchError(KernelError):
    """Raised when the device or its driver refuses a launch, or the arguments do not fit the kernel."""


class WrongResultError(KernelError):
    """Raised when a verified kernel's result is wrong: `index` is the worst element, `error` its absolute error."""

    def __init__(self, message: str, index: tuple[int, ...] | None = None, error: float | None = None) -> None:
        self.index = index
        self.error = error
        where = "" if index is None else f" at {index}"
        amount = "" if error is None else f" by {error:.3g}"
        super().__init__(f"{message}{where}{amount}")
