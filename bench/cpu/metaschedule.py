"""Our first choice against a search: TVM's MetaSchedule with 64 trials, in the same run. python -m bench.cpu.metaschedule

Needs the packages xgboost, cloudpickle and tornado. The search gets the operator as TVM expresses it, with weights at call
time, and all cores for building; ours gets the same. Both kernels are timed in turns; their results must agree.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import tvm
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms

from bench.common import harness, peers, report
from bench.common.harness import Array, Case, Side
from roller import SymbolicTensor, ops

Shapes = dict[str, tuple[int, ...]]

TRIALS, QUICK_TRIALS, SEED = 64, 4, 0
BUILD_TIMEOUT = 120.0  # seconds; the default of 30 is short on a busy machine
CONV = (256, 14, 256, 3)  # input channels, height and width, output channels, kernel
SIZE = 1024


def matmul_te() -> list[Any]:
    """C = A·B as TVM writes it."""
    a, b = te.placeholder((SIZE, SIZE), name="a"), te.placeholder((SIZE, SIZE), name="b")
    k = te.reduce_axis((0, SIZE), name="k")
    return [a, b, te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")]


def conv_te() -> list[Any]:
    """A convolution of TVM's operator library."""
    channels, size, filters, kernel = CONV
    x, w = te.placeholder((1, channels, size, size), name="x"), te.placeholder((filters, channels, kernel, kernel), name="w")
    return [x, w, topi.nn.conv2d_nchw(x, w, 1, kernel // 2, 1)]


def built(module: Any, target: Any, _: Any) -> Any:
    """MetaSchedule's own build function without its imports, for which every worker would need half a minute."""
    return tvm.driver.build(tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=target)


def searched(expression: list[Any], options: argparse.Namespace) -> tuple[Any, float, float]:
    """The best function found, and the seconds that the search and the final build took."""
    import_module("tvm.s_tir.tensor_intrin")  # takes a minute, which is not to count as searching
    begin = time.perf_counter()
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": options.threads})
    module = tvm.IRModule({"main": te.create_prim_func(expression).with_attr("global_symbol", "main")})
    trials = QUICK_TRIALS if options.quick else TRIALS
    evaluator = ms.runner.EvaluatorConfig(number=3, repeat=1, min_repeat_ms=20)
    with tempfile.TemporaryDirectory() as folder:
        database = ms.tune_tir(
            module,
            target,
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=trials,
            cost_model="xgb",
            builder=ms.builder.LocalBuilder(f_build=built, timeout_sec=BUILD_TIMEOUT),
            runner=ms.runner.LocalRunner(evaluator_config=evaluator),
            seed=SEED,
        )
        schedule = ms.tir_integration.compile_tir(database, module, target)
    if schedule is None:
        raise RuntimeError("the search found no kernel that runs")
    search_s = time.perf_counter() - begin
    best = tvm.compile(schedule.mod, target=target)
    return best["main"], search_s, time.perf_counter() - begin - search_s


def side_of(expression: list[Any], inputs: list[Array], out: Array, options: argparse.Namespace) -> Side:
    """MetaSchedule's kernel on the same memory."""
    function, search_s, build_s = searched(expression, options)
    arguments = [tvm.runtime.from_dlpack(array) for array in (*inputs, out)]
    return Side(
        "MetaSchedule", lambda: function(*arguments), lambda _: out, (out,), about={"search_s": search_s, "build_s": build_s}
    )


def build(
    options: argparse.Namespace,
    shapes: Shapes,
    op: Callable[..., SymbolicTensor],
    expression: Callable[[], list[Any]],
) -> list[Side]:
    """The search's kernel and ours."""
    given = peers.arrays(**shapes)
    made = op(*(ops.tensor(a.shape, name=n) for n, a in given.items()))
    theirs = side_of(expression(), list(given.values()), peers.empty(made.shape), options)
    mine = peers.ours(made, given, options)
    search, compiling = theirs.about["search_s"], mine.about["compile_s"]
    print(f"search {search:.1f} s, ours {compiling:.2f} s: {search / compiling:.0f} times less", file=sys.stderr)
    return [theirs, mine]


def cases() -> Iterator[Case]:
    """A product and a convolution."""
    channels, size, filters, kernel = CONV
    square: Shapes = {"a": (SIZE, SIZE), "b": (SIZE, SIZE)}
    images: Shapes = {"x": (1, channels, size, size), "w": (filters, channels, kernel, kernel)}

    product = partial(build, shapes=square, op=ops.matmul, expression=matmul_te)
    convolution = partial(build, shapes=images, op=partial(ops.conv2d, padding=kernel // 2), expression=conv_te)
    yield Case(f"GEMM {SIZE}", "search", product, flops=2.0 * SIZE**3, depth=SIZE)
    depth = channels * kernel**2
    yield Case(
        f"conv {channels}x{size}x{size} -> {filters} k{kernel}",
        "search",
        convolution,
        flops=2.0 * filters * size**2 * depth,
        depth=depth,
    )


def main() -> int:
    """Search, compile, time; then say what each cost."""
    return report.run("metaschedule", cases(), harness.start(__doc__ or ""))


if __name__ == "__main__":
    sys.exit(main())
