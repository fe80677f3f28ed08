"""Thirty faults, ten each in the core, the GPU paths and the simulated IPU, that the tests must notice.

    python tests/project/seeded_faults.py                 each fault against the test files that stand beside it
    python tests/project/seeded_faults.py --whole         each against all of `make test`: hours
    python tests/project/seeded_faults.py --only 3 --only 17     some of them

A fault is one exchange of text in a copy of the working tree. Exit code 1 where one is not noticed, which is a gap in the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
PLUGINS = ("plugins/cpu", "plugins/cuda", "plugins/ipu_sim", "plugins/rocm")
LIMIT_SECONDS = 900  # of a run that is no whole one: a fault that makes something wait for ever is noticed, too
NOTHING_FAILED = (0, 4, 5)  # pytest: all passed, was called wrongly, or found no test; what ends it by a signal is noticed
CUDA, ROCM, IPU = "plugins/cuda/roller_cuda", "plugins/rocm/roller_rocm", "plugins/ipu_sim/roller_ipu_sim"


@dataclass(frozen=True)
class Fault:
    """What is exchanged for what in a file, where it stands exactly once; and the tests, of files in `tests`, that notice first."""

    what: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]


FAULTS = (
    # The core.
    Fault(
        "boxes reach a step too far",
        "roller/program/footprint.py",
        "reach += c * (extent - 1)",
        "reach += c * extent",
        ("test_footprint",),
    ),
    Fault(
        "runs end where rows are full",
        "roller/program/footprint.py",
        "if extent != bound:",
        "if extent == bound:",
        ("test_footprint",),
    ),
    Fault(
        "rows are padded to the same bank",
        "roller/layout/banks.py",
        "return (period - row % period + width * math.ceil(inner_row / width)) % period",
        "return (period - row % period) % period",
        ("test_banks",),
    ),
    Fault(
        "the last word of a piece is not counted",
        "roller/layout/banks.py",
        "-(-(s + piece * element_bytes) // banks.width_bytes)",
        "(s + piece * element_bytes) // banks.width_bytes",
        ("test_banks",),
    ),
    Fault(
        "windows are a value short",
        "roller/ir/sliding_windows.py",
        "return 1 + sum([step",
        "return sum([step",
        ("test_sliding_windows",),
    ),
    Fault(
        "NaN equals itself",
        "roller/lowering/tir/arithmetic.py",
        "return tirx.bitwise_and(left <= right, left >= right)",
        "return tirx.EQ(left, right)",
        ("test_numerics", "test_cpu_numerics"),
    ),
    Fault(
        "the negative of 0 is 0",
        "roller/lowering/tir/arithmetic.py",
        "return like(-1.0, value) * value",
        "return like(0.0, value) - value",
        ("test_numerics", "test_cpu_numerics"),
    ),
    Fault(
        "what is read again is kept by every cache",
        "roller/cost/traffic.py",
        "times *= max(trips - (trips - 1) * survives, _copies(loop, units))",
        "times *= _copies(loop, units)",
        ("test_traffic", "test_properties_model"),
    ),
    Fault(
        "any innermost tile fits",
        "roller/search/funnel/lattice.py",
        "return np.broadcast_to(needed <= space.fit.lane_bytes(space.spec.levels[last], space.atom), inner.shape[1:])",
        "return np.broadcast_to(needed >= 0, inner.shape[1:])",
        ("test_properties_search",),
    ),
    Fault(
        "float64 becomes bfloat16 by two roundings",
        "roller/runtime/arrays.py",
        "((near.view(np.uint32) - beyond) | lost)",
        "near.view(np.uint32)",
        ("test_numerics::test_narrowing_rounds_once", "test_numerics::test_narrowing_whole_numbers_rounds_once"),
    ),
    # GPU paths.
    Fault("a coefficient of erf", f"{CUDA}/codegen/functions.cuh", "0.12837912f", "0.12827912f", ("test_cuda_functions",)),
    Fault(
        "the last of four whole numbers is another's",
        f"{CUDA}/codegen/integers.cuh",
        "roller_wrapped_##of(a.w, b.w)",
        "roller_wrapped_##of(a.z, b.w)",
        ("test_cuda_vectors",),
    ),
    Fault(
        "results of warp groups change places",
        f"{CUDA}/codegen/hopper.py",
        "{number // 2 % 2} * up",
        "{number % 2} * up",
        ("test_cuda_hopper",),
    ),
    Fault(
        "phases of signals do not turn",
        "roller/lowering/specialised/producer_consumer.py",
        "turned = tirx.bitwise_xor(load(self.phase, 0), index(1))",
        "turned = tirx.bitwise_xor(load(self.phase, 0), index(0))",
        ("test_cuda_hopper",),
    ),
    Fault(
        "pieces stay in their places",
        "roller/lowering/specialised/swizzle.py",
        "return tirx.bitwise_xor(at, changed_places(at, self.width * self.element_bytes, self.element_bytes))",
        "return at",
        ("test_cuda_hopper", "test_cuda_tf32"),
    ),
    Fault(
        "ragged ends are not rounded up in boxes",
        "roller/lowering/specialised/bulk_copies.py",
        "return [-(-box // step) for box, step",
        "return [box // step for box, step",
        ("test_cuda_hopper",),
    ),
    Fault(
        "shared memory is handed out to the byte",
        f"{CUDA}/toolchain/occupancy.py",
        "return -(-shared_bytes // SHARED_GRANULE) * SHARED_GRANULE + spec.levels[-2].reserved_bytes",
        "return shared_bytes + spec.levels[-2].reserved_bytes",
        ("test_cuda_registers::test_blocks_on_a_multiprocessor",),
    ),
    Fault(
        "results of a lane lie side by side",
        "roller/lowering/simt/matrix_atoms.py",
        "atom * self.extent(role) + places[place])",
        "atom * self.extent(role) + place)",
        ("test_cuda_matrix",),
    ),
    Fault(
        "waits cover what they do not", f"{ROCM}/toolchain/waits.py", "if behind < left}", "if behind > left}", ("test_rocm_waits",)
    ),
    Fault(
        "later accesses are not counted",
        f"{ROCM}/toolchain/waits.py",
        "{write: min(behind + 1, MOST)",
        "{write: min(behind, MOST)",
        ("test_rocm_waits",),
    ),
    # The simulated IPU.
    Fault(
        "two rows are in flight",
        f"{IPU}/chip/cycles.py",
        "max(0, rows - 3)",
        "max(0, rows - 2)",
        ("test_ipu_cost", "test_ipu_machine"),
    ),
    Fault(
        "the quickest worker decides",
        f"{IPU}/chip/cycles.py",
        "return max(machine.workers * max(taken)",
        "return max(machine.workers * min(taken)",
        ("test_ipu_machine", "test_ipu_cost"),
    ),
    Fault(
        "no bus is paired",
        f"{IPU}/chip/cycles.py",
        "rate = 2 if about.bus_pairing else 1",
        "rate = 1",
        ("test_ipu_machine", "test_ipu_cost"),
    ),
    Fault(
        "copies are rounded down",
        f"{IPU}/chip/cycles.py",
        "_up(nbytes, machine.copying.bytes_per_cycle)",
        "nbytes // machine.copying.bytes_per_cycle",
        ("test_ipu_machine", "test_ipu_cost"),
    ),
    Fault(
        "one buffer is counted",
        f"{IPU}/manifest/memory.py",
        "held[numbers(buffer.tiles)] += buffer.nbytes",
        "held[numbers(buffer.tiles)] = buffer.nbytes",
        ("test_ipu_manifest", "test_ipu_sim", "test_ipu_heap"),
    ),
    Fault(
        "buffers may share memory at the end of one's life",
        f"{IPU}/manifest/memory.py",
        "(later[:, 0] <= buffer.live[1])",
        "(later[:, 0] < buffer.live[1])",
        ("test_ipu_manifest", "test_ipu_heap", "test_ipu_sim"),
    ),
    Fault(
        "the first row of a part is lost",
        f"{IPU}/manifest/layout.py",
        "if first < head * inner:",
        "if first > head * inner:",
        ("test_ipu_execute", "test_ipu_sim"),
    ),
    Fault(
        "whole rows begin a row early",
        f"{IPU}/manifest/layout.py",
        "head, tail = -(-first // inner), last // inner",
        "head, tail = first // inner, last // inner",
        ("test_ipu_execute", "test_ipu_sim"),
    ),
    Fault(
        "max loses NaN",
        f"{IPU}/simulator/values.py",
        "np.where((a >= b) | np.isnan(a), a, b)",
        "np.where(a >= b, a, b)",
        ("test_ipu_execute", "test_numerics"),
    ),
    Fault(
        "floats are rounded to whole numbers",
        f"{IPU}/simulator/values.py",
        "2.0**63, np.trunc(exact), 0.0)",
        "2.0**63, np.round(exact), 0.0)",
        ("test_numerics::test_floats_become_whole_numbers_towards_zero",),
    ),
)


def place(test: str) -> str:
    """What pytest calls a file of tests, or one test of it (`file::test`)."""
    name, apart, one = test.partition("::")
    (path,) = (ROOT / "tests").glob(f"*/{name}.py")
    return f"{path.relative_to(ROOT).as_posix()}{apart}{one}"


def copied(into: Path) -> None:
    """The working tree's files that git knows or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)


def noticed(fault: Fault, tree: Path, whole: bool) -> tuple[bool, str]:
    """Whether the tests fail with a fault in a tree, which is as it was afterwards; and the first that did."""
    file = tree / fault.path
    text = file.read_text(encoding="utf-8")
    assert text.count(fault.before) == 1, f"{fault.path}: {fault.before!r} stands there {text.count(fault.before)} times"
    file.write_text(text.replace(fault.before, fault.after), encoding="utf-8")
    chosen = [] if whole else [place(test) for test in fault.tests]
    call = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", "not long", *chosen]
    where = os.pathsep.join([str(tree), *(str(tree / plugin) for plugin in PLUGINS)])
    try:
        done = subprocess.run(
            call,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": where},
            capture_output=True,
            text=True,
            timeout=None if whole else LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True, "something waits for ever"
    finally:
        file.write_text(text, encoding="utf-8")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode not in NOTHING_FAILED, failed[0].partition(" - ")[0].partition("::")[
        2
    ] if failed else f"exit code {done.returncode}"


def main(
    whole: Annotated[bool, typer.Option("--whole", help="All of `make test` against each fault, not the files beside it.")] = False,
    only: Annotated[list[int] | None, typer.Option(min=1, max=len(FAULTS), help="The number of a fault; may be repeated.")] = None,
) -> None:
    """Seed faults one after another, and say which the tests notice."""
    numbers = only or range(1, len(FAULTS) + 1)
    table, missed = Table("#", "fault", "file", "noticed by", "seconds"), 0
    with tempfile.TemporaryDirectory(prefix="roller-faults-") as folder:
        copied(Path(folder))
        for number in numbers:
            fault, begin = FAULTS[number - 1], time.monotonic()
            found, by = noticed(fault, Path(folder), whole)
            missed += not found
            table.add_row(
                str(number), fault.what, fault.path, by if found else f"NOT NOTICED ({by})", f"{time.monotonic() - begin:.0f}"
            )
            print(f"{number}: {'noticed by' if found else 'NOT NOTICED,'} {by}", file=sys.stderr, flush=True)
    Console(width=160, markup=False).print(table)
    raise typer.Exit(1 if missed else 0)


if __name__ == "__main__":
    typer.run(main)
