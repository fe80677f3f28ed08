"""The device ipu_sim: the contract of devices, and that both ways to count cycles agree."""

from __future__ import annotations

from roller.testing import DeviceContract


class TestIpuSim(DeviceContract):
    device = "ipu_sim"
    chips = ("bow", "gc200", "gc2", "c600")
