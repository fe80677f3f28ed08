"""Three operators on this CPU: compiled, checked against NumPy in float64, timed, and compared with NumPy and the machine."""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import roller
from roller import ops, verify

POINTS = 4096  # max number of output elements that are checked
SECONDS = 1.0  # seconds of timing for each operator and side


def numpy_conv2d(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A 3x3 convolution with padding 1 as NumPy users write it: windows as a view, then one tensor product."""
    windows = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
    return np.tensordot(windows, w, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)


def cases() -> list[tuple[str, roller.SymbolicTensor, Callable[..., np.ndarray]]]:
    """Returns the cases: a name, the operator, and NumPy's way to compute it."""
    a, b = roller.tensor((1024, 1024), name="a"), roller.tensor((1024, 1024), name="b")
    x, w = roller.tensor((1, 64, 56, 56), name="x"), roller.tensor((128, 64, 3, 3), name="w")
    rows = roller.tensor((8192, 8192), name="rows")
    return [
        ("matmul 1024 x 1024 x 1024", ops.matmul(a, b), np.matmul),
        ("conv2d 64 x 56 x 56, 128 filters 3 x 3", ops.conv2d(x, w, stride=1, padding=1), numpy_conv2d),
        ("sum of the rows of 8192 x 8192", ops.reduce_sum(rows, axes=1), lambda r: r.sum(axis=1)),
    ]


def seconds_of(call: Callable[[], object]) -> float:
    """Returns the median time of a call."""
    call()
    taken: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(taken) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    time.sleep(0.05)  # threads that spin for more work go to sleep before the next measurement
    return statistics.median(taken)


def limit_seconds(kernel: roller.Kernel) -> float:
    """Returns the roofline time of this machine: all operations at its peak, or every tensor once through its memory."""
    spec = kernel.spec
    memory = spec.levels[1].bandwidth_gbps or float("inf")
    return max(kernel.expr.flops / (spec.peaks_gflops["float32"] * 1e9), kernel.expr.compulsory_bytes / (memory * 1e9))


def milliseconds(seconds: float) -> str:
    """Returns a readable time: three digits, no exponent."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def main() -> int:
    """Prints the table; returns 1 if a result is wrong."""
    console = Console(width=max(Console().width, 120))
    table = Table("operator and rProgram", header_style="italic", show_lines=True)
    for title in ("compiled in", "predicted", "measured", "of the limit", "NumPy", "NumPy : ours"):
        table.add_column(title, justify="right", no_wrap=True)
    wrong = 0
    with console.status("measuring this machine (the first time only)"):
        chip = roller.compile(ops.relu(roller.tensor((16,)))).spec
    for name, op, numpy_call in cases():
        with console.status(name):
            begin = time.perf_counter()
            kernel = roller.compile(op, device="cpu")
            compiled = time.perf_counter() - begin
            arrays = verify.random_inputs(kernel.expr)
            inputs = [arrays[t.name] for t in kernel.inputs]
            out = np.empty(kernel.output.shape, np.float32)
            try:
                verify.check(kernel.expr, arrays, kernel(*inputs, out=out), verify.sample_points(kernel.expr, POINTS))
            except roller.WrongResultError as error:
                wrong += 1
                console.print(f"[red]wrong[/red] {name}: {error}")
                continue
            ours = seconds_of(lambda kernel=kernel, inputs=inputs, out=out: kernel(*inputs, out=out))
            theirs = seconds_of(lambda call=numpy_call, inputs=inputs: call(*inputs))
        times = [milliseconds(s) for s in (compiled, kernel.estimate.seconds, ours)]
        share = f"{limit_seconds(kernel) / ours:.0%}"
        what = f"[bold]{name}[/bold]\n{escape(kernel.program.describe())}"
        table.add_row(what, *times, share, milliseconds(theirs), f"{theirs / ours:.2f}")
    console.print(f"{chip.title} ({chip.device}:{chip.chip}), float32, {chip.unit.count} threads")
    console.print(table)
    if not wrong:
        console.print("All results agree with NumPy in float64 within the rounding error that a correct kernel may make.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
