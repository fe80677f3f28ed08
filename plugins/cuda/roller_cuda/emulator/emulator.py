"""Emulator of kernels on the CPU: the exact text for the CUDA compiler, compiled as C++ with a header that models the GPU.

It checks results on machines without a GPU; its run times mean nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
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
from roller_cuda.toolchain import launching

Array = npt.NDArray[Any]
HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-Og", "-w", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fsanitize=alignment")
CONTRACTED = ("-march=native", "-O2", "-ffp-contract=fast")  # fused multiply-adds keep all bits of their products, as on the GPU
MOST_DIMENSIONS = 5  # max dimensions of an array from which boxes are copied
BROKEN = {
    -1: "an access at an address that is no multiple of its size, or a box that starts inside a piece of a row",
    -2: "a thread ends before its results have left shared memory",
    -3: "an operand has bits that the instruction does not define",
    -4: "lanes arrive at a signal though none has seen its last phase end",
    -5: "a block writes behind the shared memory that it is launched with",
}  # the emulator's status codes; positive numbers: threads that wait
POISON = 0xFF  # content of workspaces before the first kernel: a NaN in every floating type
_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];")


class Order(NamedTuple):
    """An order of events.

    `backwards`: threads take turns from the last to the first. `eager`: asynchronous copies arrive when they start, else when a
    thread waits for them.
    """

    backwards: bool
    eager: bool


ORDERS = tuple(Order(backwards, eager) for backwards in (False, True) for eager in (False, True))


class Emulator:
    """A program's kernels, run in sequence and block by block, in each of several orders of events, which must not matter.

    `error`: 1 or -1, the sign of the error of the GPU's own functions. `contracted`: the host's compiler fuses products and sums
    where it can, which takes longer to compile; otherwise it fuses none.
    """

    def __init__(self, artifact: Artifact, orders: Sequence[Order] = ORDERS, error: int = 1, contracted: bool = False) -> None:
        self._artifact, self._orders = launching.checked(artifact), orders
        self._launch = artifact.launch
        room = max([artifact.spec.levels[-2].capacity_bytes, *(k["shared_bytes"] for k in self._launch["kernels"])])
        self._library, self._error = _library(emulated(self._launch, room), contracted), error

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Computes `out`; `roller.runtime.artifact.Runner` describes the arrays.

        `LaunchError` where orders of events give different results.
        """
        first, *others = self._orders
        self._run(inputs, out, first)
        for order in others:
            again = aligned_empty(out.shape, out.dtype)
            again.reshape(-1).view(np.uint8)[...] = POISON
            self._run(inputs, again, order)
            if not same_bits(again, out):
                raise LaunchError(f"results depend on the order of events: {order} gives others than {first}")

    def _run(self, inputs: tuple[Array, ...], out: Array, order: Order) -> None:
        ctypes.c_int.in_dll(self._library, "roller_error_sign").value = self._error
        arrays = {**inputs_of(self._artifact, inputs), self._launch["output"]: out}
        for space in self._launch["workspaces"]:
            arrays[space["name"]] = aligned_empty((max(space["elements"], 1),), numpy_dtype(space["dtype"]))
            arrays[space["name"]].view(np.uint8)[:] = POISON
        for kernel in self._launch["kernels"]:
            maps = {name: _map(found, arrays[found["tensor"]]) for name, found in kernel.get("maps", {}).items()}
            places = [address({**arrays, **maps}[name]) for name in kernel["arguments"]]
            given = (ctypes.c_void_p * len(places))(*places)
            start = getattr(self._library, f"emulate_{kernel['name']}")
            orders = int(order.backwards), int(order.eager)
            stuck = start(given, kernel["blocks"], kernel["threads"], *orders, kernel["shared_bytes"])
            if stuck < 0:
                raise LaunchError(f"kernel {kernel['name']!r}: {BROKEN[stuck]}")
            if stuck:
                raise LaunchError(f"kernel {kernel['name']!r}: {stuck} threads wait for one that never comes")

    def close(self) -> None:
        """Frees nothing: a loaded library stays loaded."""


def emulated(launch: Mapping[str, Any], shared_bytes: int) -> str:
    """Returns the C++ text: the unchanged kernels, and a function for each that launches it."""
    tail = []
    for kernel in launch["kernels"]:
        name, lanes, room = kernel["name"], "{threads, 1, 1}", f"{shared_bytes}, told"
        maps, together = kernel.get("maps", {}), kernel.get("cluster", 1)
        passed = ", ".join(_passed(n, argument in maps) for n, argument in enumerate(kernel["arguments"]))
        tail += [
            f"static void call_{name}(void **given) {{ {name}({passed}); }}",
            'extern "C" __attribute__((visibility("default")))',
            f"int emulate_{name}(void **given, int blocks, int threads, int backwards, int eager, int told) {{",
            f"    return emulator::launch(call_{name}, given, blocks, {together}, {lanes}, {room}, backwards, eager);",
            "}",
        ]
    # A block's shared memory is an address, not a declaration.
    placed = _SHARED.sub(r"\1 *\2 = reinterpret_cast<\1 *>(emulator::shared);", str(launch["text"]))
    return "\n".join(['#include "emulator.h"', placed, *tail, ""])


def _passed(number: int, described: bool) -> str:
    """Returns an argument of a kernel: an array, or the description of one, which is passed by value."""
    return f"*static_cast<const RollerTensorMap *>(given[{number}])" if described else f"emulator::Pointer{{given[{number}]}}"


def _map(described: Mapping[str, Any], array: Array) -> Array:
    """Returns the description of an array in the format of `emulated_hopper.h`."""
    rank = len(described["extents"])
    rows = [described["extents"], (0, *described["strides_bytes"]), described["box"], described["steps"]]
    fields = [address(array), rank, array.itemsize, described["swizzle_bytes"], described["dtype"] == "tfloat32"]
    return np.array([*fields, *(n for row in rows for n in (*row, *[0] * (MOST_DIMENSIONS - rank)))], np.int64)


@cache
def _library(text: str, contracted: bool) -> ctypes.CDLL:
    """Compiles and loads the text, with the code shared by all kernels; the file is deleted, the loaded code stays."""
    compiler = host_compiler("the emulator needs")
    shared, options = _shared(tuple(compiler))
    with tempfile.TemporaryDirectory(prefix="roller-cuda-") as folder:
        source, library = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        source.write_text(text, encoding="utf-8")
        chosen = CONTRACTED if contracted else options
        call = [*compiler, *FLAGS, *chosen, "-I", str(HERE), "-shared", "-o", str(library), str(source), str(shared)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LaunchError(f"the emulator's compiler refused the kernel: {done.stderr.strip()[:2000]}")
        return ctypes.CDLL(str(library))


@cache
def _shared(compiler: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """Returns the files shared by all kernels, compiled once and cached for other processes.

    These are the object that each kernel is linked with, and options for GCC's precompiled header. GCC itself detects a header that
    no longer fits.
    """
    program = shutil.which(compiler[0]) or compiler[0]
    texts = [path.read_text(encoding="utf-8") for path in sorted([*HERE.glob("em*.h"), HERE / "emulator.cpp"])]
    stamp = str(Path(program).stat().st_mtime_ns) if Path(program).is_file() else ""
    said = "\0".join([*texts, *FLAGS, *compiler, program, stamp])
    folder = cache_dir() / "cuda-emulator" / hashlib.sha256(said.encode()).hexdigest()[:20]
    shared = _compiled(compiler, folder / "emulator.o", "-c", str(HERE / "emulator.cpp"))
    if "g++" not in Path(program).name.replace("clang++", ""):
        return shared, ()
    parsed = _compiled(compiler, folder / "emulator.h.gch", "-x", "c++-header", str(HERE / "emulator.h"))
    return shared, ("-I", str(parsed.parent))


def _compiled(compiler: tuple[str, ...], kept: Path, *what: str) -> Path:
    """Returns a file from the cache, or compiles it; only for this process where the cache cannot be written."""
    if kept.is_file():
        return kept
    made = Path(_own().name) / kept.name
    done = subprocess.run([*compiler, *FLAGS, "-o", str(made), *what], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"the emulator's compiler refused what kernels share: {done.stderr.strip()[:2000]}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, made.read_bytes())
    except OSError:
        return made
    made.unlink()
    return kept


@cache
def _own() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="roller-cuda-")
