"""What programs are built for, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roller.device.plugins import Device
from roller.runtime.artifact import BuildOptions
from roller.target.hardware import HardwareSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """The context of building programs: device, chip, options, and row-major bytes of the constant inputs."""

    device: Device
    chip: HardwareSpec
    options: BuildOptions = field(default_factory=BuildOptions)
    fixed: Mapping[str, bytes] = field(default_factory=dict)
