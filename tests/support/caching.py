"""What tests of the kernel cache share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import roller
from roller import ops
from roller.cache import key
from roller.device.plugins import Device
from roller.plugin import hookimpl
from roller.runtime.artifact import BuildOptions
from toy_plugin import Toy, toy_spec

PLACE = "kernels"


def product(m: int = 24, name: str = "a") -> Any:
    return ops.relu(ops.matmul(roller.tensor((m, 40), name=name), roller.tensor((40, 32), name="b")))


class Settled(Toy):
    """A device whose toolchain is known, and never changes."""

    @hookimpl
    def roller_toolchain(self) -> dict[str, str]:
        return {"tool": "1"}


def kept(where: Path) -> list[Path]:
    return sorted(where.glob("*.kernel")) if where.exists() else []


def key_with(plugin: Any = None, spec: Any = None, expr: Any = None, measure: bool = False, **options: Any) -> key.Key:
    device = Device("toy", plugin or Settled())
    top_k = options.pop("top_k", 10)
    return key.key_of(device, spec or toy_spec(), expr or ops.expression(product()), BuildOptions(**options), top_k, measure)
