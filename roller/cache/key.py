"""Keys of cached kernels: everything that the result of a compilation depends on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from roller.cache import sources
from roller.device.chip import SpecLike, resolve
from roller.device.plugins import Device, load_device
from roller.ir import serialization
from roller.ir.expr import TensorExpr
from roller.runtime.artifact import BuildOptions
from roller.target.hardware import HardwareSpec
from roller.target.subset import limited

SCHEMA = 1
COMPILER = ("apache-tvm", "apache-tvm-ffi")
SHORT = 60  # characters of two values that are shown
WORDS = {"title", "sources"}  # fields of a spec that no result depends on


@dataclass(frozen=True)
class Key:
    """What a kernel depends on, as plain values by topic. `persistent`: enough is known for other processes to use the kernel."""

    parts: Mapping[str, Any]
    persistent: bool

    @cached_property
    def digest(self) -> str:
        """The key as 64 hexadecimal digits."""
        return hashlib.sha256(_canonical(self.parts).encode()).hexdigest()


def key_of(plugin: Device, spec: HardwareSpec, expr: TensorExpr, options: BuildOptions, top_k: int, measure: bool) -> Key:
    """Returns the key of a compilation; `expr` holds the permissions of `precision=` and `math=`.

    Values of constants are no part of it: they are packed when a kernel is loaded. A kernel that was chosen by measuring is of the
    machine that measured.
    """
    shared = _parts(plugin, spec)
    parts = {
        **shared,
        "expr": serialization.expr_to_json(expr),
        "options": {
            "top_k": top_k,
            "threads": options.threads,
            "constants": list(options.constants),
            "debug": options.debug,
            "language": options.language,
        },
        "measured_on": _machine(plugin) if measure else None,
    }
    return Key(parts, shared["toolchain"] is not None and None not in shared["code"].values())


def _parts(plugin: Device, spec: HardwareSpec) -> dict[str, Any]:
    """Returns what all keys of a chip have in common."""
    return {
        "schema": SCHEMA,
        "code": {"roller": sources.digest("roller"), plugin.name: sources.digest(plugin.package)},
        "compiler": _versions(),
        "toolchain": plugin.toolchain(spec),
        "spec": numbers(spec),
    }


@lru_cache(64)
def numbers(spec: HardwareSpec) -> dict[str, Any]:
    """Returns what kernels depend on in a spec: everything but texts about it."""
    return spec.model_dump(mode="json", exclude=WORDS)


@lru_cache(1)
def _versions() -> dict[str, str | None]:
    return {package: _version(package) for package in COMPILER}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine(plugin: Device) -> dict[str, Any]:
    """Returns what tells this machine from others: its name, processors and the attached chip."""
    return {"name": platform.node(), "processors": os.cpu_count(), "chip": numbers(plugin.default_spec())}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=dict)


def now_of(chip: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts that a key would have now for the chip of that name, and the same operator and options.

    `RollerError` if its device is not installed, or no such chip is known.
    """
    plugin, spec = resolve(*_where(chip))
    parts = _parts(plugin, limited(spec, kept["options"]["threads"]))
    return {**kept, **parts, "measured_on": _machine(plugin) if kept["measured_on"] else None}


def _where(chip: str) -> tuple[str, SpecLike | None]:
    """Returns the device and the chip's name; the attached chip where the name is its own."""
    device, _, name = chip.partition(":")
    return (device, None) if load_device(device).default_spec().chip == name else (chip, None)


def differences(kept: Mapping[str, Any], now: Mapping[str, Any], inside: str = "") -> list[str]:
    """Returns the paths of the values in which two keys differ, with both values, such as "spec.clock_ghz: 4.1, now 4.2"."""
    found = []
    for name in [*kept, *(n for n in now if n not in kept)]:
        before, after = _named(kept.get(name)), _named(now.get(name))
        where = f"{inside}.{name}" if inside else str(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, where)
        elif _canonical(before) != _canonical(after):
            texts = _canonical(before), _canonical(after)
            found.append(f"{where}: {texts[0]}, now {texts[1]}" if len("".join(texts)) < SHORT else f"{where} changed")
    return found


def _named(value: Any) -> Any:
    """Returns a list of tables as one table, by their names."""
    if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        return {item["name"]: item for item in value}
    return value
