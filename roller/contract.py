"""The contract of device plugins as tests: a plugin's suite subclasses `DeviceContract` and sets its device.

    from roller.testing import DeviceContract

    class TestToy(DeviceContract):
        device = "toy"

Pytest collects the inherited tests. Tests that run kernels use the device, else the plugin's emulator; else they are skipped, with
the machine's missing requirements.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from roller import ops, verify
from roller.compiler import compile as compile_operator
from roller.compiler import compile_top, load
from roller.device.chip import load_spec
from roller.device.plugins import Device, load_device
from roller.errors import DeviceUnavailableError, RollerError
from roller.kernel import Kernel
from roller.ops import SymbolicTensor
from roller.runtime.arrays import aligned_empty, numpy_dtype
from roller.runtime.artifact import BuildOptions, Runner
from roller.target.hardware import HardwareSpec

LIGHT = "import sys; from roller.device.plugins import load_device; load_device({!r}); print('tvm' in sys.modules)"
POISON = 0xFF  # a NaN in every floating type


class DeviceContract:
    """The contract of API 1 as a test class. Set `device`; `chips` names further chips whose spec files must load."""

    device: ClassVar[str]
    chips: ClassVar[tuple[str, ...]] = ()

    def operators(self) -> Mapping[str, SymbolicTensor]:
        """Returns the operators to compile: override it to omit those that the device refuses, or to add others."""
        t = ops.tensor
        x, w = t((1, 3, 9, 11), name="x"), t((4, 3, 3, 3), name="w")
        return {
            "matmul": ops.matmul(t((33, 20), name="a"), t((20, 47), name="b")),
            "convolution": ops.relu(ops.conv2d(x, w, stride=2, padding=1) + t((4, 1, 1), name="bias")),
            "row sum": ops.reduce_sum(t((17, 130), name="x"), 1),
            "elementwise": ops.gelu(t((5, 123), name="x")) + t((123,), name="y"),
            "transpose": ops.transpose(t((19, 37), name="x")),
            "nothing to sum": ops.matmul(t((3, 0), name="a"), t((0, 5), name="b")),
        }

    # --- helpers of the tests -----------------------------------------------------------------------------------------

    def plugin(self) -> Device:
        """Returns the device with the engine's interface."""
        return load_device(self.device)

    def compiled(self, op: SymbolicTensor, **options: Any) -> Kernel:
        """Returns the operator's best kernel for the default chip."""
        return compile_operator(op, device=self.device, **options)

    def runner(self, kernel: Kernel) -> Runner:
        """Returns the kernel ready to run, here or emulated; skips the test if neither is possible."""
        lacking = self.plugin().requirements()
        if not lacking:
            return self.plugin().load_kernel(kernel.artifact)
        try:
            return self.plugin().emulate(kernel.artifact)
        except DeviceUnavailableError:
            pytest.skip(f"{self.device} cannot run here: {'; '.join(lacking)}")

    def run(self, kernel: Kernel, arrays: Mapping[str, npt.NDArray[Any]], fixed: frozenset[str] = frozenset()) -> npt.NDArray[Any]:
        """Returns the result on read-only inputs, with an output that is full of NaN before."""
        runner = self.runner(kernel)
        inputs = []
        for tensor in kernel.expr.inputs:
            if tensor.name not in fixed:
                inputs.append(aligned_empty(tensor.shape, numpy_dtype(tensor.dtype)))
                inputs[-1][...] = arrays[tensor.name]
                inputs[-1].flags.writeable = False
        output = kernel.expr.output
        out = aligned_empty(output.shape, numpy_dtype(output.dtype))
        out.view(np.uint8)[...] = POISON
        runner.run(tuple(inputs), out)
        runner.close()
        return out

    # --- the tests ----------------------------------------------------------------------------------------------------

    def test_finding_it_imports_no_compiler(self) -> None:
        """Listing devices is fast: TVM, drivers and toolchains are imported inside the hooks."""
        done = subprocess.run([sys.executable, "-c", LIGHT.format(self.device)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr

    def test_its_chips_are_its_own(self) -> None:
        """The default chip and the listed ones load, and belong to the device."""
        assert self.plugin().default_spec().device == self.device
        for chip in self.chips:
            assert load_spec(f"{self.device}:{chip}").device == self.device

    def test_what_it_lacks_is_readable(self) -> None:
        """Requirements are lines of text."""
        assert all(line.strip() == line and line for line in self.plugin().requirements())

    def test_rules_do_not_depend_on_when_they_are_asked(self) -> None:
        """Atoms, multiples and cost parameters follow from chip and expression alone."""
        plugin, spec = self.plugin(), self.plugin().default_spec()
        for name, op in self.operators().items():
            expr = ops.expression(op)
            first = plugin.rules(spec, expr), plugin.cost_parameters(spec, expr)
            plugin.rules.cache_clear()
            plugin.cost_parameters.cache_clear()
            assert (plugin.rules(spec, expr), plugin.cost_parameters(spec, expr)) == first, name

    def test_the_same_program_gives_the_same_source(self) -> None:
        """Code generation is pure."""
        plugin = self.plugin()
        for name, op in self.operators().items():
            kernel = self.compiled(op)
            first, second = (plugin.codegen(kernel.spec, kernel.program, BuildOptions()) for _ in range(2))
            assert (first.text, first.launch) == (second.text, second.launch), name

    def test_programs_built_at_once_are_those_built_one_by_one(self) -> None:
        """Hooks may be called from several threads: the same sources and launch descriptions, in the same order."""
        plugin, op = self.plugin(), self.operators()["matmul"]
        kernels = compile_top(op, device=self.device, top_k=4)
        alone = [plugin.codegen(k.spec, k.program, BuildOptions()) for k in kernels]
        assert [k.source for k in kernels] == [source.text for source in alone]
        assert kernels[0].artifact.launch == self.compiled(op, top_k=4).artifact.launch

    def test_refused_programs_are_left_out(self) -> None:
        """The device can run every program that the engine offers: refused programs are dropped."""
        for op in self.operators().values():
            kernel = self.compiled(op)
            for choice in kernel.candidates:
                assert self.plugin().refusal(kernel.spec, choice.program) is None, "a refused program is among the candidates"

    def test_results_are_right(self) -> None:
        """Every operator against the float64 reference: integers exactly where they can be, others within the derived bound."""
        for op in self.operators().values():
            kernel = self.compiled(op)
            if not kernel.expr.output.elements:
                continue
            for integer in (True, False):
                arrays = verify.random_inputs(kernel.expr, seed=1, integer=integer)
                verify.check(kernel.expr, arrays, self.run(kernel, arrays))

    def test_what_is_no_number_equals_nothing(self) -> None:
        """A NaN is unequal to everything, itself included, and neither less nor greater; so compilers may not invert comparisons.

        max and min propagate NaN.
        """
        x, y = ops.tensor((6, 35), name="x"), ops.tensor((35,), name="y")
        first = np.resize(np.array([0, 1, np.nan, -1, 1, np.nan, 2], np.float32), (6, 35))
        second = np.resize(np.array([1, np.nan, 0], np.float32), 35)
        arrays = {"x": first, "y": second}
        wanted = {
            "less": (x < y, first < second),
            "not less": (~(x < y), ~(first < second)),
            "less, or not": ((x < y) | (y <= x), (first < second) | (second <= first)),
            "unequal": (ops.not_equal(x, y), first != second),
            "greater": (ops.maximum(x, y), np.maximum(first, second)),
            "greatest": (ops.reduce_max(x, 1), first.max(1)),
            "no number": (ops.where(ops.not_equal(x, x), 0, x), np.nan_to_num(first)),
        }
        for name, (op, found) in wanted.items():
            kernel = self.compiled(op)
            result = self.run(kernel, {t.name: arrays[t.name] for t in kernel.expr.inputs})
            assert np.array_equal(result, found, equal_nan=found.dtype != np.bool_), name

    def test_constants_come_with_the_kernel(self) -> None:
        """An input given as a constant is no longer an argument."""
        op = ops.matmul(ops.tensor((9, 20), name="a"), ops.tensor((20, 24), name="b"))
        arrays = verify.random_inputs(ops.expression(op), seed=2, integer=True)
        kernel = self.compiled(op, constants={"b": arrays["b"]})
        verify.check(kernel.expr, arrays, self.run(kernel, arrays, frozenset({"b"})))

    def test_saved_kernels_run(self, tmp_path: Path) -> None:
        """An artifact that was saved and loaded gives the same result bytes."""
        kernel = self.compiled(self.operators()["matmul"])
        kernel.save(tmp_path / "kernel.roller")
        again = load(tmp_path / "kernel.roller")
        assert again.artifact == kernel.artifact
        arrays = verify.random_inputs(kernel.expr, seed=3)
        assert np.array_equal(self.run(again, arrays), self.run(kernel, arrays))

    def test_a_kernel_may_be_closed_twice(self) -> None:
        """Closing frees; closing again does nothing."""
        runner = self.runner(self.compiled(self.operators()["matmul"]))
        runner.close()
        runner.close()

    def test_foreign_and_broken_artifacts_are_refused(self) -> None:
        """A broken artifact raises one of roller's errors, not the toolchain's, and does not crash the process."""
        artifact = self.compiled(self.operators()["matmul"]).artifact
        for broken in (replace(artifact, format="of another device"), replace(artifact, data=b"")):
            with pytest.raises(RollerError):
                self.plugin().load_kernel(broken)

    def test_every_chip_gets_programs(self) -> None:
        """The default chip and the listed ones get programs and source text."""
        specs: list[HardwareSpec] = [self.plugin().default_spec(), *(load_spec(f"{self.device}:{chip}") for chip in self.chips)]
        for spec in specs:
            kernel = compile_operator(self.operators()["matmul"], device=self.device, spec=spec)
            assert kernel.candidates and kernel.source
