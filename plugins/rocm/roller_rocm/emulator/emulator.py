"""Emulator of kernels on the CPU: runs LLVM's assembly instruction by instruction, one workgroup at a time.

It checks results and waits on machines without a GPU; its run times mean nothing. `docs/rocm.md` lists its coverage and its gaps.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roller.plugin import (
    Artifact,
    LaunchError,
    address,
    aligned_empty,
    cache_dir,
    host_compiler,
    inputs_of,
    numpy_dtype,
    same_bits,
    write_atomic,
)
from roller_rocm.emulator import counting, decoding
from roller_rocm.emulator.counting import Counts
from roller_rocm.toolchain import assembly, launching
from roller_rocm.toolchain.assembly import AsmKernel

Array = npt.NDArray[Any]
HERE = Path(__file__).parent
FLAGS = "-std=c++20 -O1 -ftree-vectorize -march=native -ffp-contract=off -fno-math-errno -fno-strict-aliasing -w -shared -fPIC"
POISON = 0xFF  # content of workspaces before the first kernel: a NaN in every floating type
MOST_STEPS = 1 << 25  # max instructions of all waves of a kernel: ten seconds or so
WORDS = 1000  # max characters of a fault's message


class Order(NamedTuple):
    """An order of events.

    `backwards`: workgroups and their waves take turns from the last to the first. `eager`: loads and stores happen when they start,
    else when a wave waits for them. Unwritten memory holds other bits in each direction.
    """

    backwards: bool
    eager: bool


ORDERS = tuple(Order(backwards, eager) for backwards in (False, True) for eager in (False, True))


class _Launch(ctypes.Structure):
    _fields_ = (
        *[(name, ctypes.c_int32) for name in ("blocks", "threads", "lanes", "kernarg_scalar", "block_scalar", "lds_bytes")],
        *[(name, ctypes.c_int32) for name in ("scratch_bytes", "line_bytes", "separate_stores", "backwards", "lazy")],
        *[(name, ctypes.c_int32) for name in ("vectors", "accumulators")],
        ("poison", ctypes.c_uint32),
        ("steps", ctypes.c_int64),
    )


class Emulator:
    """A program's kernels, run in sequence and workgroup by workgroup, in several orders of events, which must not matter."""

    def __init__(self, artifact: Artifact, orders: Sequence[Order] = ORDERS) -> None:
        self._artifact, self._orders = launching.checked(artifact), orders
        self._launch = artifact.launch
        self._library = _library()
        listing = assembly.parsed(str(self._launch["assembly"]))
        self._kernels = {k["name"]: self._decoded(listing.kernels[k["name"]]) for k in self._launch["kernels"]}
        self._line_bytes = artifact.spec.levels[-3].transaction_bytes
        self._counts: dict[str, Counts] = {}

    def _decoded(self, kernel: AsmKernel) -> tuple[AsmKernel, decoding.Decoded]:
        denormals = [kernel.directives.get(f"float_denorm_mode_{bits}") for bits in ("32", "16_64")]
        if denormals != [3, 3]:
            raise LaunchError(f"kernel {kernel.name!r} flushes denormals, which the emulator does not model")
        return kernel, decoding.decoded(kernel, _opcode, keeps_high=self._generation >= 10)

    @property
    def _generation(self) -> int:
        """10 for gfx1030, 9 for gfx90a."""
        return int(str(self._launch["arch"]).removeprefix("gfx")[:-2], 16 if len(str(self._launch["arch"])) < 7 else 10)

    def counts(self) -> Mapping[str, Counts]:
        """Returns the counts of each kernel, by its name, in the first order of the last run."""
        return dict(self._counts)

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Computes `out`; `roller.runtime.artifact.Runner` describes the arrays.

        `LaunchError` on a fault, and where orders of events give different results.
        """
        first, *others = self._orders
        self._run(inputs, out, first, counting_too=True)
        for order in others:
            again = aligned_empty(out.shape, out.dtype)
            again.reshape(-1).view(np.uint8)[...] = POISON
            self._run(inputs, again, order, counting_too=False)
            if not same_bits(again, out):
                raise LaunchError(f"results depend on the order of events: {order} gives others than {first}")

    def _run(self, inputs: tuple[Array, ...], out: Array, order: Order, counting_too: bool) -> None:
        arrays = inputs_of(self._artifact, inputs)
        fixed = set(arrays)
        arrays[self._launch["output"]] = out
        for space in self._launch["workspaces"]:
            arrays[space["name"]] = aligned_empty((max(space["elements"], 1),), numpy_dtype(space["dtype"]))
            arrays[space["name"]].view(np.uint8)[:] = POISON
        for kernel in self._launch["kernels"]:
            given = [(arrays[name], name not in fixed) for name in kernel["arguments"]]
            code = self._kernels[kernel["name"]][1]
            counters = np.zeros((len(code.instructions), len(counting.COUNTERS)), np.int64) if counting_too else None
            self._start(kernel, given, order, counters)
            if counters is not None:
                self._counts[kernel["name"]] = counting.counted(self._kernels[kernel["name"]][0], counters)

    def _start(self, kernel: Mapping[str, Any], given: Sequence[tuple[Array, bool]], order: Order, counters: Array | None) -> None:
        """Runs one kernel."""
        described, code = self._kernels[kernel["name"]]
        # The first array holds the arguments: addresses in the emulator's numbering.
        places = np.array([(number + 2) << 40 for number in range(len(given))], np.uint64)
        regions = [(places, False), *given]
        data = (ctypes.c_void_p * len(regions))(*(address(array) for array, _ in regions))
        sizes = np.array([array.nbytes for array, _ in regions], np.int64)
        writable = np.array([written for _, written in regions], np.int32)
        words, where = ctypes.create_string_buffer(WORDS), (ctypes.c_int32 * 3)()
        launch = self._described(kernel, described, code, order)
        count = len(code.instructions)
        numbers = None if counters is None else ctypes.c_void_p(address(counters))
        rest = (ctypes.c_void_p(address(sizes)), ctypes.c_void_p(address(writable)), numbers, words, WORDS, where)
        if self._library.run_kernel(code.table, count, ctypes.byref(launch), len(regions), data, *rest):
            at = code.instructions[min(max(where[2], 0), count - 1)]
            place = f"kernel {kernel['name']!r}, line {at.line}: {at.text!r}"
            raise LaunchError(f"{place}: {words.value.decode()} (workgroup {where[0]}, wave {where[1]}, {order})")

    def _described(self, kernel: Mapping[str, Any], described: AsmKernel, code: decoding.Decoded, order: Order) -> _Launch:
        says = described.directives
        if any(says.get(f"user_sgpr_{name}", 0) for name in ("dispatch_ptr", "queue_ptr", "dispatch_id")):
            raise LaunchError(f"kernel {kernel['name']!r} reads its dispatch packet, which the emulator does not model")
        lanes = 32 if says.get("wavefront_size32") else 64
        scalar = 4 * says.get("user_sgpr_private_segment_buffer", 0)
        return _Launch(
            blocks=kernel["blocks"],
            threads=kernel["threads"],
            lanes=lanes,
            kernarg_scalar=scalar,
            block_scalar=says["user_sgpr_count"],
            lds_bytes=says["group_segment_fixed_size"],
            scratch_bytes=says["private_segment_fixed_size"],
            line_bytes=self._line_bytes,
            separate_stores=self._generation >= 10,
            backwards=order.backwards,
            lazy=not order.eager,
            vectors=code.vectors,
            accumulators=code.accumulators,
            poison=0x7FFF7FFF if order.backwards else 0xFFFFFFFF,
            steps=MOST_STEPS,
        )

    def close(self) -> None:
        """Frees nothing: a loaded library stays loaded."""


@cache
def _opcode(name: str) -> int:
    """Returns the number of an instruction, negative where the emulator has none."""
    return int(_library().opcode_of(name.encode()))


@cache
def _library() -> ctypes.CDLL:
    """Compiles and loads the emulator, once for a process; the compiled file is cached for the next one."""
    command = [*host_compiler("the emulator needs"), *FLAGS.split()]
    kept = cache_dir() / "rocm-emulator" / f"{_digest(command)}.so"
    if not kept.is_file():
        _compile(command, kept)
    loaded = ctypes.CDLL(str(kept))
    if loaded.bytes_of_instruction() != decoding.RECORD.size:
        raise LaunchError("the emulator's compiler lays out instructions otherwise than the emulator")
    return loaded


def _compile(command: Sequence[str], kept: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="roller-rocm-") as folder:
        source, library = Path(folder) / "emulator.cpp", Path(folder) / "emulator.so"
        source.write_text('#include "emulator.h"\n', encoding="utf-8")
        call = [*command, "-I", str(HERE), "-o", str(library), str(source)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LaunchError(f"the emulator's compiler refused it: {done.stderr.strip()[:2000]}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, library.read_bytes())


def _digest(command: Sequence[str]) -> str:
    """Returns a digest of the library's inputs: its text, the command, and the processor that this machine reports."""
    said = Path("/proc/cpuinfo")
    processor = [line for line in said.read_text().splitlines() if line.startswith("flags")][:1] if said.is_file() else []
    texts = [path.read_text(encoding="utf-8") for path in sorted(HERE.glob("em*.h"))]
    return hashlib.sha256("\0".join([*texts, *command, platform.machine(), *processor]).encode()).hexdigest()[:20]
