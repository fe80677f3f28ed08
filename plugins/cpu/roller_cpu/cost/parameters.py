"""Cost parameters of host CPUs that the machine's spec does not hold."""

from __future__ import annotations

from roller.plugin import ELEMENT_BYTES, CostParameters, HardwareSpec, Tensor, TensorExpr
from roller_cpu.cost.requests import Requests

TILE_CYCLES = 16  # filling the FMA pipes, storing the tile, leaving its loop: 5 to 20 cycles on Zen 5, 16 on Emerald Rapids
SHORT_VISIT = 64  # multiply-adds in flight at the end of a visit: with their loads they fill much of a reorder buffer
TRIP_CYCLES = 3  # counter, compare and branch around an innermost tile, and its address arithmetic
UNIT_CYCLES = 64  # decoding a unit tile's position by divisions
SCRATCH_NS = 300  # allocating and freeing TVM's workspace: seen on a product of 32 x 32 x 32
LINE_FILL_BUFFERS = 10  # misses that a core keeps in flight
# Parallel rows that prefetchers follow: 64 read as fast as 8 on a Zen 5, if they share no sets. A Zen 4 follows fewer, but 32
# changed 8 of 54 choices there, and those took 1.06 times as long (`bench.cpu.beside`).
READ_STREAMS = 64
# Parallel rows whose lines are partly filled. On a Zen 5, transposed tiles of 64 rows are stored as fast as those of 16. 32 ranks
# the stored programs of both families better than 16, and than 64.
WRITE_STREAMS = 32
STREAM_FACTOR = 1.0  # outputs larger than this many last-level caches are stored past them: a cached store first reads its line
# Rows of 4 KiB and more, a power of two apart, on a Zen 5: runs of 64 and of 128 B take 4.8 to 5.1 ns, of 256 B 5.7 ns (45 GB/s).
STREAMED_RUN = 256
LEAST_STREAMED = 16  # bytes of the narrowest vector with such a store (movntps)
SUPERWORDS = 4  # from so many neighbours on, LLVM's vectoriser gains: seen in kernels for Zen 5 and Emerald Rapids
WARM = 1.0  # operators run back to back: data that fits the caches was produced, or used, shortly before


def cost_parameters(spec: HardwareSpec, expr: TensorExpr) -> CostParameters:
    """Returns the model's parameters at the chip's clock."""
    return CostParameters(
        tile_overhead_ns=TILE_CYCLES / spec.clock_ghz,
        short_visit=SHORT_VISIT,
        registers=registers(spec),
        skips_padding=True,
        trip_overhead_ns=TRIP_CYCLES / spec.clock_ghz,
        unit_overhead_ns=UNIT_CYCLES / spec.clock_ghz,
        scratch_overhead_ns=SCRATCH_NS,
        misses_in_flight=LINE_FILL_BUFFERS,
        read_streams=READ_STREAMS,
        write_streams=WRITE_STREAMS,
        superwords=SUPERWORDS,
        write_allocate=True,
        past_run_bytes=STREAMED_RUN,
        prefetched=Requests(spec),
        past_caches=frozenset({expr.output.name} if past_caches(spec, expr.output) else ()),
        warm=WARM,
    )


def past_caches(spec: HardwareSpec, output: Tensor) -> bool:
    """True for an output whose whole lines are stored past the caches, as none of them holds it."""
    largest = max((level.capacity_bytes for level in spec.levels[1:]), default=0)
    foreign = "llvm_triple" in spec.options  # the fence is an x86 instruction
    lanes = int(spec.options.get("vector_bytes", 16)) // max(4, ELEMENT_BYTES[output.dtype])  # narrower types compute in 32 bits
    able = output.dtype != "bool" and lanes * ELEMENT_BYTES[output.dtype] >= LEAST_STREAMED  # bool: LLVM's vectors of single bits
    return able and not foreign and output.nbytes > STREAM_FACTOR * largest


def registers(spec: HardwareSpec) -> int:
    """Returns the vector registers of a core."""
    level = spec.levels[-1]
    return level.capacity_bytes // max(level.transaction_bytes, 1)
