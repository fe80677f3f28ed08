"""Inputs whose latency a core does not hide by itself: kernels request their rows ahead (software prefetch)."""

from __future__ import annotations

from dataclasses import dataclass

from roller.plugin import HardwareSpec, StageProgram, Tensor, requested_lines

HIDDEN_NS = 20.0  # latency that cores hide: on a Zen 5, prefetches of data in the L3 (10 ns) slow products down by up to 8 %
# Operations on a line, over all passes, up to which it pays: with as many rows of results as this, products of 34 MB gain 0 to 2 %
# on a Zen 5. With 64 they gain 10 to 20 %, with 512 they lose 1 to 5 %.
OPERATIONS_MOST = 256


@dataclass(frozen=True)
class Requests:
    """Which inputs a chip's kernels request ahead."""

    spec: HardwareSpec

    def __call__(self, program: StageProgram) -> tuple[str, ...]:
        """Returns the inputs of a program that its kernel requests ahead."""
        found = requested_lines(program, self.spec.levels[1].transaction_bytes, self.pays)
        return tuple(program.nest.accesses[number].tensor.name for number in found)

    def pays(self, tensor: Tensor, operations: float, passes: int) -> bool:
        """Returns whether it pays to request an input ahead (`roller.program.row_runs.requested_lines`)."""
        return tensor.nbytes > near_bytes(self.spec) and operations <= OPERATIONS_MOST / passes


def near_bytes(spec: HardwareSpec) -> float:
    """Returns the size of an input up to which a core hides the latency of reading it."""
    far = [level for level in spec.levels[1:] if not level.managed and level.latency_ns > HIDDEN_NS]
    return min((level.capacity_bytes * level.usable_fraction for level in far), default=float("inf"))
