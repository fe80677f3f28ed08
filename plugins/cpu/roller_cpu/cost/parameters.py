"""Cost parameters of host CPUs: what the machine's spec does not say."""

from __future__ import annotations

from roller.plugin import CostParameters, HardwareSpec, TensorExpr

TILE_CYCLES = 64  # filling the FMA pipes, storing the tile and a mispredicted loop exit: 60 to 70 cycles seen on 6x16 tiles
SHORT_VISIT = 128  # multiply-adds that with their loads fill a reorder buffer of 250 to 500 entries
TRIP_CYCLES = 3  # counter, compare and branch around an innermost tile, and its address arithmetic
UNIT_CYCLES = 64  # decoding a unit tile's position by divisions
SCRATCH_NS = 300  # TVM's workspace, taken and returned: seen on a product of 32 x 32 x 32
LINE_FILL_BUFFERS = 10  # misses that a core keeps in flight
READ_STREAMS = 32  # rows side by side that prefetchers follow: 24 read as fast as 6 on Zen 5, where they do not share sets
WRITE_STREAMS = 16  # rows side by side whose lines wait to be filled: those of a transposed tile are stored as fast as one
WARM = 1.0  # operators follow one another: what fits the caches was made, or used, shortly before


def cost_parameters(spec: HardwareSpec, expr: TensorExpr) -> CostParameters:
    """The model's parameters at the chip's clock."""
    return CostParameters(
        tile_overhead_ns=TILE_CYCLES / spec.clock_ghz,
        short_visit=SHORT_VISIT,
        trip_overhead_ns=TRIP_CYCLES / spec.clock_ghz,
        unit_overhead_ns=UNIT_CYCLES / spec.clock_ghz,
        scratch_overhead_ns=SCRATCH_NS,
        misses_in_flight=LINE_FILL_BUFFERS,
        read_streams=READ_STREAMS,
        write_streams=WRITE_STREAMS,
        warm=WARM,
    )
