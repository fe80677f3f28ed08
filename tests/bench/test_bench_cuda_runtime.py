"""The check of roller's runtime on a GPU, without one: what it calls right and wrong, and what it says where it cannot run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import roller
from bench.cuda import runtime
from emulating import needs_compiler
from fake_gpu import Gpus
from roller import ops
from roller.testing import expression


def small() -> ops.SymbolicTensor:
    return ops.relu(ops.matmul(ops.tensor((9, 40), name="a"), ops.tensor((40, 24), name="b")))


def test_a_right_kernel_is_right_in_every_way() -> None:
    kernel = roller.compile(small(), device="cpu")
    found = list(runtime.outcomes(kernel, kernel.expr, runtime.HOST_WAYS))
    assert [name for name, _ in found] == [*runtime.HOST_WAYS] * 2
    assert not any(reason for _, reason in found), found


class Faulty:
    """A kernel that is right but for one thing."""

    def __init__(self, fault: str) -> None:
        self.kernel, self.fault, self.calls = roller.compile(small(), device="cpu"), fault, 0

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        self.calls += 1
        result = self.kernel(*arrays)
        if self.fault == "wrong" or (self.fault == "later" and self.calls > 1):
            result[-1, -1] += 1
        if self.fault == "refuses":
            raise roller.LaunchError("no")
        if out is None:
            return result
        if self.fault != "forgets":
            out[...] = result
        return out


@pytest.mark.parametrize(
    ("fault", "ways"),
    [
        ("wrong", {*runtime.HOST_WAYS}),
        ("refuses", {*runtime.HOST_WAYS}),
        ("forgets", {"NumPy, out="}),
        ("later", {*runtime.HOST_WAYS} - {"NumPy"}),
    ],
)
def test_faults_are_named_with_the_way_that_shows_them(fault: str, ways: set[str]) -> None:
    expr, kernel = expression(small()), Faulty(fault)
    first = [next(runtime.outcomes(kernel, expr, {"NumPy": runtime.HOST_WAYS["NumPy"]}))] if fault == "later" else []
    assert not any(reason for _, reason in first)
    rest = {name: way for name, way in runtime.HOST_WAYS.items() if fault != "later" or name != "NumPy"}
    assert {name for name, reason in runtime.outcomes(kernel, expr, rest) if reason} == ways


class Lying:
    """As much of torch, and of a tensor of it, as rows that lie apart take."""

    def __init__(self, array: Any) -> None:
        self.array, self.dtype = array, array.dtype

    def __getitem__(self, at: Any) -> Lying:
        return Lying(self.array[at])

    def flip(self, dim: int) -> Lying:
        return Lying(np.flip(self.array, dim))

    def flatten(self, first: int, _last: int) -> Lying:
        shape = self.array.shape
        return Lying(self.array.reshape(*shape[:first], shape[first] * shape[first + 1], *shape[first + 2 :]))

    def contiguous(self) -> Lying:
        return Lying(np.ascontiguousarray(self.array))

    def cpu(self) -> Lying:
        return self

    def numpy(self) -> Any:
        return self.array


@pytest.mark.parametrize("refuses", [True, False])
def test_rows_that_lie_apart_are_to_be_refused(refuses: bool) -> None:
    class Torch:
        bfloat16 = "bfloat16"

        @staticmethod
        def from_numpy(array: Any) -> Any:
            return SimpleNamespace(cuda=lambda: Lying(array))

        @staticmethod
        def stack(both: Any, dim: int) -> Lying:
            return Lying(np.stack([one.array for one in both], dim))

    kernel = roller.compile(small(), device="cpu")

    def called(*given: Lying) -> Lying:
        if refuses and not all(one.array.flags.c_contiguous for one in given):
            raise roller.LaunchError("not contiguous")
        return Lying(kernel(*(one.array for one in given)))

    ways = {"torch, rows apart": runtime.torch_ways(Torch)["torch, rows apart"]}
    reasons = [reason for _, reason in runtime.outcomes(called, kernel.expr, ways)]
    assert all(reason == "" if refuses else "taken as if they did not" in reason for reason in reasons) and len(reasons) == 2


@needs_compiler
def test_kernels_are_built_here_and_called_there(gpus: Gpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the stand-in for the driver, where the kernel's own text runs."""
    assert runtime.main(["build", str(tmp_path), "--chip", "a100", "--cases", "transpose"]) == 0
    path = tmp_path / "transpose.roller"
    gpus.plan(roller.load(path).artifact)
    capsys.readouterr()
    assert runtime.main(["one", str(path)]) == 0
    assert "transpose: NumPy, two threads: right" in capsys.readouterr().out


@needs_compiler
def test_what_cannot_run_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert runtime.main(["run", str(tmp_path)]) == 2
    assert "bench.cuda.runtime build" in capfd.readouterr().err
    runtime.build(tmp_path, "a100", ["relu"])
    assert runtime.main(["run", str(tmp_path)]) == 1
    assert "0 of 1 kernels are right in every way; not relu" in capfd.readouterr().out
    assert runtime.main(["run", str(tmp_path), "--seconds", "0.01"]) == 1
    assert "not done after 0.01 s" in capfd.readouterr().out


def test_all_cases_are_operators() -> None:
    for name, (made, precision) in runtime.CASES.items():
        assert expression(made()).output.elements > 0 and precision in ("ieee", "tf32"), name
