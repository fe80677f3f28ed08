"""The compiled kernel as a Python object: callable, with its program, estimate, source and machine code."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.device.plugins import Contained, Device, hook_error, load_device
from roller.errors import ExpressionError, KernelError, LaunchError, RollerError
from roller.ir import serialization
from roller.ir.expr import Tensor, TensorExpr
from roller.program.estimate import Estimate
from roller.program.record import Choice, estimate_from_json, program_from_json
from roller.program.rprogram import RProgram
from roller.runtime.arrays import (
    ALIGNMENT,
    Array,
    Kind,
    Wanted,
    admit,
    admit_output,
    aligned_empty,
    as_kind,
    is_ready,
    numpy_dtype,
    overlaps,
    ready,
)
from roller.runtime.artifact import Artifact, BuildOptions, Profile, Runner
from roller.target.hardware import HardwareSpec

if TYPE_CHECKING:
    from roller.explain.report import Explanation

Candidates = tuple[Choice, ...] | Callable[[], tuple[Choice, ...]] | None  # best first, or how to read them


class Kernel:
    """A compiled operator. Call it with arrays in the order of `inputs`, or by name; it returns the result.

    Arrays of NumPy, torch and JAX (and others with DLPack) in host memory are used in place. Nothing is converted. Only arrays that
    are not contiguous, or not aligned as the kernel requires, are copied. The result is of the first argument's kind. `out=` is
    written in place and returned. The first call, or `load()`, loads the binary.

    If the device has its own memory and its plugin accepts arrays there, those are used in place; then all arrays of a call must be
    there. The work is enqueued on `stream=`, else on the current stream of their library, and the call is asynchronous.
    """

    def __init__(self, artifact: Artifact, expr: TensorExpr, device: Device, candidates: Candidates = None) -> None:
        self._artifact, self._expr, self._device, self._candidates = artifact, expr, device, candidates
        self._inputs = tuple(t for t in expr.inputs if t.name not in artifact.constants)
        self._wanted = tuple(_wanted(t, t.name) for t in self._inputs)
        self._result = _wanted(expr.output, "out")
        self._runner: Contained | None = None
        self._shortcut: Callable[[tuple[Any, ...], Any], object] | None = None
        self._resident: Callable[[tuple[Any, ...], Any, Any, tuple[Wanted, ...]], Any] | None = None
        self._loading = threading.Lock()
        self._alignment = _alignment(artifact)

    def __repr__(self) -> str:
        arguments = ", ".join(map(str, self._wanted))
        return f"<Kernel ({arguments}) -> {self._result.dtype.name} {self._result.shape} for {self.spec.device}:{self.spec.chip}>"

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **named: Any) -> Any:
        """Computes the operator. `LaunchError` if an array does not fit, `DeviceUnavailableError` without the device."""
        if named:
            arrays = self._bound(arrays, named)
        if stream is not None:
            if any(wanted.name == "stream" for wanted in self._wanted):
                return self(*self._bound(arrays, {"stream": stream}), out=out)
            return self._call(arrays if len(arrays) == len(self._wanted) else self._bound(arrays, named), out, stream)
        if self._shortcut is not None and (out is not None or set(map(type, arrays)) == {np.ndarray}):
            result = aligned_empty(self._result.shape, self._result.dtype) if out is None else out
            if self._by_shortcut(arrays, result):
                return result
        return self._call(arrays if len(arrays) == len(self._wanted) else self._bound(arrays, named), out)

    def _by_shortcut(self, inputs: tuple[Any, ...], out: Any) -> bool:
        """Computes by the device's shortcut; False if there is none, an array has another form than required, or arrays overlap."""
        if self._shortcut is None:
            return False
        try:
            return bool(self._shortcut(inputs, out))
        except RollerError:
            raise
        except Exception as error:
            raise hook_error(self._device.name, "shortcut", error) from error

    def _call(self, arrays: tuple[Any, ...], out: Any, stream: Any = None) -> Any:
        """Checks every array, copies those that are not ready, and runs the kernel."""
        runner = self._runner or self._loaded()
        if self._resident is not None:
            there = self._resident(arrays, out, stream, (*self._wanted, self._result))
            if there is not NotImplemented:
                return there
        if stream is not None:
            raise LaunchError("stream= goes with arrays in the device's own memory; a call with others waits for its result")
        inputs: list[Array] = []
        kind: Kind | None = None
        alignment = self._alignment
        for value, wanted in zip(arrays, self._wanted, strict=True):
            if type(value) is np.ndarray and value.dtype == wanted.dtype and value.shape == wanted.shape:
                array, own = value, "numpy"
            else:
                array, own = admit(value, wanted)
            flags = array.flags
            if alignment or not (flags.c_contiguous and flags.aligned):
                array = ready(array, alignment or array.itemsize)
            kind = kind or own  # type: ignore[assignment]
            inputs.append(array)
        if out is not None:
            return self._into(out, tuple(inputs), runner)
        result = aligned_empty(self._result.shape, self._result.dtype)
        if result.size and not self._by_shortcut(tuple(inputs), result):
            runner.run(tuple(inputs), result)
        return result if kind is None or kind == "numpy" else as_kind(result, kind)

    def _into(self, out: Any, inputs: tuple[Array, ...], runner: Runner) -> Any:
        """Writes to the caller's array: directly if it is ready and overlaps no input, else through a temporary one."""
        wanted = self._result
        plain = type(out) is np.ndarray and out.dtype == wanted.dtype and out.shape == wanted.shape and out.flags.carray
        target = out if plain else admit_output(out, wanted)[0]
        if self._by_shortcut(inputs, target):
            return out
        direct = (plain and not self._alignment) or is_ready(target, self._alignment or target.itemsize)
        result = target if direct and not overlaps(target, inputs) else aligned_empty(target.shape, target.dtype)
        if target.size:
            runner.run(inputs, result)
        if result is not target:
            target[...] = result
        return out

    def _bound(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments in order, bound as Python binds them."""
        names = [w.name for w in self._wanted]
        listed = ", ".join(map(str, self._wanted)) or "none"
        if len(arrays) > len(names):
            raise LaunchError(f"{len(arrays)} arrays given, {len(names)} expected ({listed})")
        values = dict(zip(names, arrays, strict=False))
        for name, value in named.items():
            if name not in names:
                fixed = "; it was fixed when the kernel was compiled" if name in self._artifact.constants else ""
                raise LaunchError(f"no input is called {name!r}{fixed}; inputs: {listed}")
            if name in values:
                raise LaunchError(f"{name}: given by position and by name")
            values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            raise LaunchError(f"no array for {', '.join(missing)}; inputs: {listed}")
        return tuple(values[name] for name in names)

    def _loaded(self) -> Contained:
        with self._loading:
            if self._runner is None:
                self._runner = self._device.load_kernel(self._artifact)
                self._shortcut = getattr(self._runner, "shortcut", None)
                self._resident = getattr(self._runner, "resident", None)
            return self._runner

    def load(self) -> Kernel:
        """Loads the binary now and returns the kernel; `DeviceUnavailableError` if this machine has no such device."""
        self._loaded()
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the kernel to a file that `roller.load` reads, atomically."""
        self._artifact.save(path)

    def __reduce__(self) -> tuple[Callable[[bytes], Kernel], tuple[bytes]]:
        """Pickles and copies the kernel as `save` writes it; the copy loads a binary of its own."""
        return _unpickled, (self._artifact.to_bytes(),)

    def explain(self, why_not: Mapping[str, int] | None = None) -> Explanation:
        """Returns the explanation of the program: print it, or use `.to_dict()`.

        `why_not`: a unit tile such as {"m": 256, "n": 128}: which rule excludes it, or which terms make it slower.
        """
        from roller.explain.report import explain  # noqa: PLC0415  (reports need the whole model, calls do not)

        parameters = self._device.cost_parameters(self.spec, self._expr)
        return explain(self.program, self.spec, parameters, self.candidates, self.rules, self._artifact.known_resources, why_not)

    def profile(self) -> Profile:
        """Returns the device's profile of a call without making it: print its `text()`, or use `to_dict()` or `html()`.

        Loads the binary. `KernelError` if the device has no profile.
        """
        return self._loaded().profile()

    @property
    def rules(self) -> Any:
        """The alignment rules of the construction."""
        return self._device.rules(self.spec, self._expr)

    @property
    def artifact(self) -> Artifact:
        """The built kernel: bytes, launch description, resources."""
        return self._artifact

    @property
    def expr(self) -> TensorExpr:
        """The tensor expression after fusion, as the kernel computes it."""
        return self._expr

    @property
    def spec(self) -> HardwareSpec:
        """The chip that the kernel is for."""
        return self._artifact.spec

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors of a call, in order, without constants."""
        return self._inputs

    @property
    def output(self) -> Tensor:
        """The result's tensor."""
        return self._expr.output

    @cached_property
    def program(self) -> RProgram:
        """The chosen rProgram."""
        if isinstance(self._candidates, tuple):
            return self._candidates[0].program
        return program_from_json(self._artifact.program, self._expr)

    @cached_property
    def estimate(self) -> Estimate:
        """The prediction for the chosen program."""
        return estimate_from_json(self._artifact.estimate)

    @cached_property
    def candidates(self) -> tuple[Choice, ...]:
        """The programs considered, best first; of a loaded kernel only its own."""
        if self._candidates is None:
            return (Choice(self.program, self.estimate),)
        return self._candidates if isinstance(self._candidates, tuple) else self._candidates()

    @property
    def source(self) -> str:
        """The kernel's source text."""
        return self._artifact.source

    def source_in(self, language: str) -> str:
        """Returns the same program as source text in another language, for other toolchains, generated now.

        The device determines the languages; `KernelError` for a language that it does not have.
        """
        options = BuildOptions(constants=tuple(self._artifact.constants), language=language)
        return source_of(self._device, self.spec, self.program, options)

    @cached_property
    def assembly(self) -> str:
        """The machine code as text; `KernelError` if the device cannot show it."""
        text = self._device.assembly(self._artifact)
        if text is None:
            raise KernelError(f"the {self._device.name} device cannot show assembly")
        return text


def source_of(device: Device, spec: HardwareSpec, program: RProgram, options: BuildOptions) -> str:
    """Returns a program as source text; `KernelError` if the device does not write the language that the options name."""
    found = device.codegen(spec, program, options)
    if options.language not in (None, found.language):
        raise KernelError(f"the {device.name} device writes {found.language}, not {options.language}")
    return found.text


def _wanted(tensor: Tensor, name: str) -> Wanted:
    return Wanted(name, tensor.shape, numpy_dtype(tensor.dtype))


def _alignment(artifact: Artifact) -> int:
    """Returns the alignment of a kernel's arrays in bytes; 0 if that of their elements is enough."""
    wanted = artifact.launch.get("alignment", ALIGNMENT)
    return 0 if wanted == "element" else int(wanted)


def restored(artifact: Artifact, where: str = "artifact") -> Kernel:
    """Returns the kernel of an artifact; `KernelError`, with the place that it came from, if its expression cannot be read."""
    try:
        expr = serialization.expr_from_json(artifact.expr)
    except ExpressionError as error:
        raise KernelError(f"{where}: its expression cannot be read: {error}; compile the operator again") from error
    return Kernel(artifact, expr, load_device(artifact.device))


def _unpickled(raw: bytes) -> Kernel:
    return restored(Artifact.from_bytes(raw))
