"""GPUs that are not there, for tests of how chips are measured: facts as a driver would give them, and times from known rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from roller.target.hardware import HardwareSpec
from roller_cuda.chip import calibration, nearest_chip, probes
from roller_cuda.chip.probes import Facts, Probe, Sample


def facts_of(spec: HardwareSpec, **changes: object) -> Facts:
    """What the driver would say of a shipped chip: a little memory is its own, and the bus is as wide as it may be."""
    shared, unit, rate = spec.level("shared"), spec.unit, spec.level("L2").bandwidth_gbps
    assert rate is not None
    told = {
        "name": spec.title,
        "capability": nearest_chip.capability_of(spec),
        "sms": unit.count,
        "clock_khz": round(1e6 * spec.clock_ghz),
        "memory_khz": round(1e6 * rate * 8 / 1024 / 2),
        "bus_bits": 1024,
        "memory_bytes": int(0.98 * spec.outermost.capacity_bytes),
        "l2_bytes": spec.level("L2").capacity_bytes,
        "shared_sm_bytes": shared.capacity_bytes,
        "shared_block_bytes": shared.usable_bytes,
        "shared_reserved_bytes": shared.reserved_bytes,
        "registers_sm": unit.lane_storage_bytes // 4,
        "threads_sm": unit.resident_lanes_max,
        "threads_block": unit.lanes_max,
        "blocks_sm": unit.resident_tiles_max,
        "warp": unit.lane_group,
    }
    return Facts(**{**told, **changes})  # type: ignore[arg-type]


def truth(facts: Facts, spec: HardwareSpec, share: float = 0.9) -> dict[str, float]:
    """Values by probe of a GPU that reaches a share of everything that is possible."""
    memory, clock = facts.memory_gbps, facts.clock_ghz
    return {
        "warm_up": 4000.0,
        "dram_read": share * memory,
        "dram_copy": 0.9 * share * memory,
        "l2_read": share * 64 * facts.sms * clock,
        "shared_read": share * 128 * facts.sms * clock,
        "dram_latency": 480.0,
        "l2_latency": 220.0,
        "shared_latency": 13.0,
        **{f"stride_{s}": min(s, 32) / clock for s in probes.STRIDES},
        "barrier": 15.0,
        "launch": 2.1,
        **{f"rate_{name}": share * rate for name, rate in calibration.expected(facts, spec).items()},
    }


def seconds_of(table: Sequence[Probe], values: Mapping[str, float]) -> dict[tuple[str, int, int], float]:
    """How long a launch of each probe takes where these are the values, by kernel, count and rounds."""
    found = {}
    for probe in table:
        scale = {"ns": 1e-9, "us": 1e-6}.get(probe.unit)
        seconds = 1e-9 * probe.amount / values[probe.name] if scale is None else scale * probe.amount * values[probe.name]
        if probe.name != "warm_up":  # which launches the kernel of another probe
            found[probe.launch.kernel, probe.launch.count, probe.launch.rounds] = seconds
    return found


class FakeGpu:
    """A GPU with known rates: the first timing of a probe is slow, others scatter around the truth. Tensor cores slow the clock."""

    def __init__(self, facts: Facts, values: Mapping[str, float], clock: float) -> None:
        self.facts, self._values, self._clock = facts, values, clock
        self.loaded: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing is held."""

    def load(self, cubin: bytes, data_bytes: int) -> None:
        """Remember how much room was asked for."""
        assert cubin
        self.loaded.append(data_bytes)

    def clock_under(self, name: str) -> float:
        """GHz while an instruction runs everywhere."""
        return self._clock * (0.9 if "mma" in name else 1.0)

    def samples(self, probe: Probe) -> list[Sample]:
        """Times that the true value explains."""
        value = self._values[probe.name]
        if probe.unit in {"GB/s", "GFLOP/s"}:
            seconds = 1e-9 * probe.amount / value
        else:
            seconds = value * probe.amount * {"ns": 1e-9, "us": 1e-6}[probe.unit]
        nanoseconds = round(1e9 * seconds)
        scatter = (9.0, 1.001, 0.999, 1.0, 1.3, 0.95, 1.0, 1.002)
        return [
            Sample(probe.launches * seconds * s, round(self.clock_under(probe.name) * nanoseconds), nanoseconds) for s in scatter
        ]
