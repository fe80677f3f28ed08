"""Origami's side of `bench.rocm.origami`, in the interpreter that has it: asked on standard input, answers on standard output.

Origami rates the tiles that it is given. Given are powers of two, with the matrix instruction that it recommends; how many
workgroups a compute unit has room for, which it wants to be told too, follows from local memory and registers. Operands are
row-major.
"""

from __future__ import annotations

import itertools
import json
import sys
from importlib import metadata
from typing import Any

SIDES = (16, 32, 64, 128, 256)
DEPTHS = (16, 32, 64, 128, 256)
LANES = 256  # of a workgroup
REGISTERS = 512  # of a lane where it is alone
BESIDE = 96  # of them for operands and addresses: an estimate
TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def occupancy(tile: list[int], element_bytes: int, local_bytes: int) -> int:
    """Workgroups on a compute unit at a time, by local memory and by the registers of results."""
    m, n, k = tile
    by_memory = local_bytes // ((m + n) * k * element_bytes)
    by_registers = REGISTERS // (-(-m * n // LANES) + BESIDE)
    return max(1, min(by_memory, by_registers))


def problem(origami: Any, asked: dict[str, Any]) -> Any:
    """A product in its words. For it, operands with columns one after another are not transposed."""
    made, kind = origami.problem_t(), origami.string_to_datatype(TYPES[asked["dtype"]])
    made.size, made.batch = origami.dim3_t(asked["m"], asked["n"], asked["k"]), asked["batch"]
    made.a_transpose = made.b_transpose = origami.transpose_t.T
    made.a_dtype = made.b_dtype = made.c_dtype = made.d_dtype = made.mi_dtype = kind
    made.a_mx_block_size = made.b_mx_block_size = 0
    return made


def configuration(origami: Any, hardware: Any, tile: list[int], asked: dict[str, Any]) -> Any:
    """One tile as a kernel to rate."""
    made = origami.config_t()
    made.mt = origami.dim3_t(*tile)
    made.mi = hardware.get_recommended_matrix_instruction(origami.string_to_datatype(TYPES[asked["dtype"]]))
    made.occupancy = occupancy(tile, 4 if asked["dtype"] == "float32" else 2, hardware.lds_capacity)
    return made


def answer(origami: Any, hardware: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Its choice for a product, with seconds, cuts of the reduction, workgroups on a unit; and seconds of another tile."""
    what, hertz = problem(origami, asked), hardware.compute_clock_ghz * 1e9
    tiles = itertools.product(SIDES, SIDES, DEPTHS)
    best = origami.select_config(what, hardware, [configuration(origami, hardware, list(t), asked) for t in tiles])
    chosen = best.config
    shape = asked["m"], asked["n"]
    blocks = asked["batch"] * -(-shape[0] // chosen.mt.m) * -(-shape[1] // chosen.mt.n)
    chosen.reduction_strategy = origami.select_reduction(what, hardware, chosen, chosen.grid_selection)
    grid = origami.select_grid_size(what, hardware, chosen, chosen.grid_selection, hardware.N_CU)
    found = {
        "tile": [chosen.mt.m, chosen.mt.n, chosen.mt.k],
        "instruction": [chosen.mi.m, chosen.mi.n, chosen.mi.k],
        "seconds": best.latency / hertz,
        "split": -(-grid // blocks),
        "residents": chosen.occupancy,
    }
    if asked.get("tile"):
        other = configuration(origami, hardware, asked["tile"], asked)
        fits = origami.check_lds_capacity(hardware, other.mt, what.a_dtype, what.b_dtype)
        seconds = origami.compute_total_latency(what, hardware, other, hardware.N_CU) / hertz
        found["seconds_of_other"] = seconds if fits and seconds < 1e6 else None
    return found


def main() -> int:
    """Answer what is asked: chips with what is known of them, each with its products."""
    import origami  # noqa: PLC0415  (of the peer's own environment)

    asked, found = json.load(sys.stdin), []
    for chip in asked["chips"]:
        arch = getattr(origami.architecture_t, chip["arch"])
        sizes = (chip["units"], chip["local_bytes"], chip["cache_bytes"], round(chip["clock_ghz"] * 1e6))
        hardware = origami.get_hardware_for_arch(arch, *sizes)
        found.append([answer(origami, hardware, product) for product in chip["products"]])
    json.dump({"version": metadata.version("rocm-origami"), "chips": found}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
