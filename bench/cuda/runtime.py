"""roller's own runtime on an NVIDIA GPU: kernels that were compiled elsewhere, called in every way that a user can call them.

python -m bench.cuda.runtime build FOLDER --chip h100     # no GPU needed
python -m bench.cuda.runtime run FOLDER                   # on the GPU: roller without TVM or a compiler; PyTorch where it is

`bench.cuda.run` times kernels through a driver of its own; this is for what it goes around: loading, arrays where they lie,
streams, threads, tensor maps and clusters of `roller.load`. Every kernel runs in a process of its own: one that hangs or destroys
the GPU's context costs nobody else anything.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import roller
from roller import ops, verify
from roller.ir.expr import TensorExpr
from roller.ops.window import Layout

SECONDS, JOBS = 120, 4  # for a kernel; kernels at a time
POINTS = 4096  # of a result, that are compared
CALLS = 20  # of each of several threads
SUFFIX = ".roller"

Arrays = Sequence[Any]
Way = Callable[[Any, Arrays], Any]  # a kernel and its arrays (NumPy): the result, as NumPy has it


def product(m: int, n: int, k: int, dtype: str = "float16", **how: Any) -> ops.SymbolicTensor:
    """A matrix product."""
    a, b = ((k, m) if how.get("transpose_a") else (m, k)), ((n, k) if how.get("transpose_b") else (k, n))
    return ops.matmul(ops.tensor(a, dtype, name="a"), ops.tensor(b, dtype, name="b"), **how)


def window(layout: Layout, stride: int) -> ops.SymbolicTensor:
    """A convolution in halves."""
    x, w = ((8, 64, 56, 56), (128, 64, 3, 3)) if layout == "NCHW" else ((8, 56, 56, 64), (3, 3, 64, 128))
    given = ops.tensor(x, "float16", name="x"), ops.tensor(w, "float16", name="w")
    return ops.conv2d(*given, padding=1, stride=stride, layout=layout)


def _rows() -> ops.SymbolicTensor:
    return ops.tensor((513, 1031), name="x")


# What differs in how kernels reach their data: boxes and clusters, lanes that carry, copies that run by themselves, parts that a
# second kernel adds up, several stages with workspaces between them.
CASES: Mapping[str, tuple[Callable[[], ops.SymbolicTensor], str]] = {
    "fp32": (lambda: product(777, 555, 333, "float32"), "ieee"),
    "fp16": (lambda: product(1024, 1024, 1024), "ieee"),
    "fp16-turned": (lambda: product(512, 768, 1024, transpose_a=True, transpose_b=True), "ieee"),
    "fp16-odd": (lambda: product(333, 555, 777), "ieee"),
    "fp16-cut": (lambda: product(256, 256, 16000), "ieee"),
    "bf16": (lambda: product(640, 384, 512, "bfloat16"), "ieee"),
    "int8": (lambda: product(512, 512, 512, "int8", transpose_b=True), "ieee"),
    "tf32": (lambda: product(1000, 1000, 1000, "float32", transpose_b=True), "tf32"),
    "fused": (lambda: ops.relu(product(300, 512, 256) + ops.tensor((512,), "float16", name="bias")), "ieee"),
    "conv-nchw": (lambda: window("NCHW", 1), "ieee"),
    "conv-nhwc": (lambda: window("NHWC", 1), "ieee"),
    "conv-nhwc-strided": (lambda: window("NHWC", 2), "ieee"),
    "chained": (lambda: ops.matmul(product(128, 256, 512), ops.tensor((256, 64), "float16", name="c")), "ieee"),
    "sum": (lambda: ops.reduce_sum(_rows(), [0]), "ieee"),
    "relu": (lambda: ops.relu(_rows()), "ieee"),
    "transpose": (lambda: ops.transpose(_rows(), (1, 0)), "ieee"),
}


# --- ways to call a kernel --------------------------------------------------------------------------------------------


def _plain(kernel: Any, arrays: Arrays) -> Any:
    return kernel(*arrays)


def _again(kernel: Any, arrays: Arrays) -> Any:
    for _ in range(3):
        kernel(*arrays)
    return kernel(*arrays)


def _into(kernel: Any, arrays: Arrays) -> Any:
    first = kernel(*arrays)
    result = np.full_like(first, 85)
    assert kernel(*arrays, out=result) is result
    return result


def _threads(kernel: Any, arrays: Arrays) -> Any:
    """Two threads at a time; what differs from the first result is what is given."""
    found, right = [kernel(*arrays)], kernel(*arrays)

    def calls() -> None:
        found.extend(kernel(*arrays) for _ in range(CALLS))

    both = [threading.Thread(target=calls) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    return next((one for one in found if not np.array_equal(one, right)), right)


HOST_WAYS: Mapping[str, Way] = {"NumPy": _plain, "NumPy, again": _again, "NumPy, out=": _into, "NumPy, two threads": _threads}


def _there(torch: Any, arrays: Arrays) -> list[Any]:
    """The arrays on the GPU; NumPy's bfloat16 is no type that torch takes."""

    def moved(array: Any) -> Any:
        if str(array.dtype) != "bfloat16":
            return torch.from_numpy(array).cuda()
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)

    return [moved(np.ascontiguousarray(array)) for array in arrays]


def _here(torch: Any, result: Any) -> Any:
    """In host memory, of a type that NumPy has."""
    return result.cpu() if result.dtype != torch.bfloat16 else result.float().cpu()


def _rows_apart(torch: Any, kernel: Any, arrays: Arrays) -> Any:
    """Every other row of arrays that are twice as long: refused as they lie, right once they lie together."""
    wide = [torch.stack((a, a.flip(0)), 1).flatten(0, 1)[::2] for a in arrays]
    try:
        kernel(*wide)
    except roller.LaunchError:
        return kernel(*(array.contiguous() for array in wide))
    raise AssertionError("rows that lie apart were taken as if they did not")


def torch_ways(torch: Any) -> Mapping[str, Way]:
    """With arrays of torch where they lie on the GPU."""
    there, here = partial(_there, torch), partial(_here, torch)

    def into(kernel: Any, arrays: Arrays) -> Any:
        given = there(arrays)
        result = torch.full_like(kernel(*given), 85)
        kernel(*given, out=result)
        return here(result).numpy()

    def side(kernel: Any, arrays: Arrays) -> Any:
        """Behind work of another stream that makes its input, and before work on it that reads its result."""
        given, stream = there(arrays), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            first = given[0].clone()
            result = kernel(first, *given[1:]).clone()
        torch.cuda.current_stream().wait_stream(stream)
        return here(result).numpy()

    def asked(kernel: Any, arrays: Arrays) -> Any:
        given, stream = there(arrays), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        result = kernel(*given, stream=stream)
        stream.synchronize()
        return here(result).numpy()

    def often(kernel: Any, arrays: Arrays) -> Any:
        given = there(arrays)
        result = torch.zeros_like(kernel(*given))
        torch.cuda.synchronize()
        for _ in range(CALLS):
            kernel(*given, out=result)
        return here(result).numpy()

    return {
        "torch": lambda kernel, arrays: here(kernel(*there(arrays))).numpy(),
        "torch, out=": into,
        "torch, on a stream": side,
        "torch, stream=": asked,
        "torch, rows apart": lambda kernel, arrays: here(_rows_apart(torch, kernel, there(arrays))).numpy(),
        "torch, many calls in a row": often,
    }


# --- what comes of it -------------------------------------------------------------------------------------------------


def outcomes(kernel: Any, expr: TensorExpr, ways: Mapping[str, Way]) -> Iterator[tuple[str, str]]:
    """For each way, with whole numbers and with others, what was wrong; nothing where all was right."""
    points = verify.sample_points(expr, POINTS) if expr.output.elements > POINTS else None
    for integer in (True, False):
        arrays = verify.random_inputs(expr, 5, integer=integer)
        expected = verify.Expected.of(expr, arrays, points)
        for name, way in ways.items():
            try:
                expected.check(way(kernel, list(arrays.values())))
            except (roller.RollerError, RuntimeError, ValueError, TypeError, AssertionError) as error:
                yield name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            else:
                yield name, ""


def one(path: Path) -> int:
    """A kernel in all ways; 1 if any of them was wrong."""
    kernel, ways = roller.load(path), dict(HOST_WAYS)
    try:
        import torch  # noqa: PLC0415  (where it is not, that is no reason not to check the rest)

        ways |= torch_ways(torch) if torch.cuda.is_available() else {}
    except ImportError as error:
        print(f"{path.stem}: without torch: {error}", flush=True)
    wrong = 0
    for way, reason in outcomes(kernel, kernel.expr, ways):
        wrong += bool(reason)
        print(f"{path.stem}: {way}: {reason or 'right'}", flush=True)
    return int(wrong > 0)


def run(folder: Path, seconds: float, jobs: int) -> int:
    """All kernels of a folder, each in a process of its own, so many at a time; 1 if any was wrong or did not end, 2 where there
    are none.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        print(f"{folder} holds no kernels: `python -m bench.cuda.runtime build {folder}` makes them", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(jobs) as pool:
        statuses = list(pool.map(partial(_apart, seconds=seconds), paths))
    troubled = [path.stem for path, status in zip(paths, statuses, strict=True) if status]
    print(
        f"{len(paths) - len(troubled)} of {len(paths)} kernels are right in every way"
        + (f"; not {', '.join(troubled)}" if troubled else "")
    )
    return int(bool(troubled))


def _apart(path: Path, seconds: float) -> int:
    """The exit status of a process for one kernel."""
    try:
        return subprocess.run(
            [sys.executable, "-m", "bench.cuda.runtime", "one", str(path)], timeout=seconds, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{path.stem}: not done after {seconds:g} s", flush=True)
        return -1


def build(folder: Path, chip: str, names: Sequence[str] = ()) -> int:
    """Compile the kernels for a chip."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or CASES:
        made, precision = CASES[name]
        kernel = roller.compile(made(), device=f"cuda:{chip}", precision=precision)
        kernel.save(folder / f"{name}{SUFFIX}")
        print(f"{name}: {kernel.candidates[0].program.describe()}", flush=True)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m bench.cuda.runtime", description="roller's runtime on an NVIDIA GPU.")
    commands = made.add_subparsers(dest="command", required=True)
    for name, text in (("build", "compile the kernels: no GPU needed"), ("run", "call them on this GPU"), ("one", "one of them")):
        commands.add_parser(name, help=text).add_argument("path", type=Path, help="a folder, or one file of it")
    commands.choices["build"].add_argument("--chip", default="h100", help="for which chip (h100)")
    commands.choices["build"].add_argument("--cases", default="", help=f"some of {', '.join(CASES)}")
    commands.choices["run"].add_argument("--seconds", type=float, default=SECONDS, help=f"for each kernel ({SECONDS})")
    commands.choices["run"].add_argument("--jobs", type=int, default=JOBS, help=f"kernels at a time ({JOBS})")
    given = made.parse_args(words)
    if given.command == "build":
        return build(given.path, given.chip, [name for name in given.cases.split(",") if name])
    return run(given.path, given.seconds, given.jobs) if given.command == "run" else one(given.path)


if __name__ == "__main__":
    sys.exit(main())
