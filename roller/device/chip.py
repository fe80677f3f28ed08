"""The chip that a caller names: device strings, spec files, and the catalogue with the plugins' own entries."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from roller.device.plugins import Device, device_names, is_device, load_device
from roller.errors import PluginError, SpecError, UnknownDeviceError
from roller.storage import spec_dir
from roller.target import catalog
from roller.target.catalog import SpecEntry
from roller.target.hardware import HardwareSpec

DEFAULT = "cpu"  # the device where neither a device nor a spec is named
SpecLike = HardwareSpec | str | os.PathLike[str]


def resolve(device: str | None, spec: SpecLike | None = None) -> tuple[Device, HardwareSpec]:
    """Returns the plugin and the chip of "name" (the attached chip, else the plugin's default), "name:chip", or "name" and a spec.

    None for the device: that of the spec, else "cpu".
    `UnknownDeviceError` and the other plugin errors; `SpecError` if the chip is unknown, named twice, or another device's.
    """
    if spec is not None and not isinstance(spec, HardwareSpec):
        file, spec = os.fspath(_path(spec)), catalog.load_spec(_path(spec))
    else:
        file = None
    if device is None:
        device = DEFAULT if spec is None else spec.device
    name, colon, chip = _named(device).partition(":")
    meant = [f"{e.device}:{e.chip}" for e in specs() if e.chip == name.lower()] if not is_device(name) else []
    if meant:
        raise UnknownDeviceError(name, device_names(), f" (did you mean {' or '.join(repr(m) for m in meant)}?)")
    plugin = load_device(name)
    if spec is None:
        if not colon:
            return plugin, plugin.default_spec()
        return plugin, catalog.find_spec(name, chip, _folders(plugin))
    if colon:
        raise SpecError(f"device={device!r} names a chip and spec= gives one; leave one of them away")
    if spec.device != name:
        raise SpecError(f"describes a chip of device {spec.device!r}, not of {name!r}; say device={spec.device!r}", file, "device")
    return plugin, spec


def specs(device: str | None = None) -> tuple[SpecEntry, ...]:
    """Returns the chips with spec files, of one device or of all, sorted: shipped, the user's own, and the plugins'."""
    folders = [spec_dir()]
    for name in device_names() if device is None else (device,):
        try:
            folders += load_device(name).spec_dirs()
        except PluginError:  # a device without (a working) plugin still has its spec files
            continue
    return catalog.list_specs(device, folders)


def load_spec(chip: SpecLike) -> HardwareSpec:
    """Returns the spec of a chip: its name ("zen5"), device and name ("cpu:zen5"), or a path (with a folder or ".toml").

    `SpecError` if there is none, several devices have a chip of that name, or the file cannot be read.
    """
    if isinstance(chip, HardwareSpec):
        return chip
    if not isinstance(chip, str) or chip.endswith(".toml") or os.sep in chip:
        return catalog.load_spec(_path(chip))
    device, _, name = chip.rpartition(":")
    found = [e for e in specs(device or None) if e.chip == name]
    if len(found) > 1:
        raise SpecError(f"several chips are called {name!r}: {', '.join(f'{e.device}:{e.chip}' for e in found)}; name the device")
    if not found:
        known = [f"{e.device}:{e.chip}" for e in specs(device or None)]
        close = get_close_matches(name.lower(), [k.partition(":")[2] for k in known], n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise SpecError(f"no spec of chip {chip!r}{hint}; there is: {', '.join(known) or 'none'}")
    return catalog.load_spec(found[0].path)


def _named(device: Any) -> str:
    """Returns the name of a device in any case; `torch.device` objects, and strings such as "name:0", name it by type.

    A kernel runs on the GPU that holds its arrays, so a number is refused with this advice.
    """
    kind, index = getattr(device, "type", None), getattr(device, "index", None)
    if isinstance(kind, str) and not isinstance(device, str):
        device = kind if index is None else f"{kind}:{index}"
    if not isinstance(device, str):
        raise UnknownDeviceError(str(device), device_names())
    name, colon, chip = device.partition(":")
    known = name if is_device(name) else name.lower()
    if chip.isdecimal() and is_device(known) and all(entry.chip != chip for entry in specs(known)):
        raise SpecError(
            f"{device!r} names one of several {known} devices by its number; say device={known!r}: kernels run where their "
            "arrays are"
        )
    return known + colon + chip if is_device(known) else device


def _path(spec: str | os.PathLike[str]) -> Path:
    try:
        return Path(spec)
    except TypeError:
        raise SpecError(f"a spec is a HardwareSpec or the path of its file, not a {type(spec).__name__}") from None


def _folders(plugin: Device) -> list[Path]:
    return [spec_dir(), *plugin.spec_dirs()]
