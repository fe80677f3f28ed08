"""Kernel calls on GPUs: arrays in GPU memory are used in place and asynchronously; host arrays are copied there and back.

This part is common to all kinds of GPUs; a plugin adds its GPUs and the loading of a kernel.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from roller.errors import DeviceUnavailableError, LaunchError
from roller.runtime.arrays import Wanted, address
from roller.runtime.artifact import Artifact
from roller.runtime.gpu import Gpu
from roller.runtime.gpu_arrays import Foreign, Taken
from roller.runtime.loaded_kernel import Launch, Loaded

Array = npt.NDArray[Any]


class Gpus(Protocol):
    """The GPUs of one kind; a plugin's module may implement it."""

    def count(self) -> int:
        """Returns the number of GPUs; `DeviceUnavailableError` if there is none."""

    def gpu(self, ordinal: int) -> Gpu:
        """Returns the GPU of that number; `LaunchError` if there is none."""

    def current(self) -> Gpu:
        """Returns the calling thread's current GPU, else the first."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a kernel: names of the inputs of a call, name of the output, and every array's alignment in bytes."""

    inputs: tuple[str, ...]
    output: str
    alignment: int


class GpuRunner(ABC):
    """A kernel, loaded on every GPU that it is called for; see `roller.runtime.artifact.Runner`. It is thread-safe."""

    def __init__(self, artifact: Artifact, gpus: Gpus, foreign: Foreign) -> None:
        self._artifact, self._gpus, self._foreign = artifact, gpus, foreign
        launch = artifact.launch
        inputs = tuple(name for name in launch["inputs"] if name not in artifact.constants)
        self._named = Arguments(inputs, str(launch["output"]), int(launch["alignment"]))
        self._closed, self._loading = False, threading.Lock()
        self._on: dict[int, Loaded] = {}
        self._begin()

    @abstractmethod
    def check(self, gpu: Any) -> None:
        """Raises `DeviceUnavailableError` if the GPU cannot run the kernel."""

    @abstractmethod
    def prepare(self, module: Any, described: Mapping[str, Any], gpu: Any) -> Launch:
        """Prepares one kernel of a loaded binary: everything that its launches on that GPU have in common."""

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Computes `out` from arrays in host memory, on the calling thread's GPU, and waits for it."""
        here = self._loaded(self._gpus.current().ordinal)
        there, stream = here.gpu, here.gpu.stream
        with there.current(), ExitStack() as stack:
            places = {}
            for name, array in zip(self._named.inputs, inputs, strict=True):
                places[name] = stack.enter_context(there.room(array.nbytes, stream))
                if array.nbytes:
                    there.bring(places[name], address(array), array.nbytes, stream)
            places[self._named.output] = result = stack.enter_context(there.room(out.nbytes, stream))
            try:
                here.launch(places, stream)
                there.fetch(address(out), result, out.nbytes, stream)
            finally:  # no work may read the caller's arrays after the call
                there.finish(stream)

    def resident(self, arrays: tuple[Any, ...], out: Any, stream: Any, wanted: Sequence[Wanted]) -> Any:
        """Computes from arrays in a GPU's memory.

        `stream`: a handle, or a stream of a library. Default: the current one of the first array's library, or ours if that library
        has none.
        """
        return compute(self._foreign, self._loaded, self._named, arrays, out, stream, wanted)

    def close(self) -> None:
        """Waits for running work, and frees the kernel's resources; it is not run again."""
        with self._loading:
            self._closed = True
            while self._on:
                self._on.popitem()[1].close()

    def _begin(self) -> None:
        """Loads for the calling thread's GPU; if that cannot run the kernel, at least one other GPU must be able to."""
        first = self._gpus.current()
        others = (self._gpus.gpu(n) for n in range(self._gpus.count()) if n != first.ordinal)
        if self._runs_on(first) or not any(self._runs_on(other) for other in others):
            self._loaded(first.ordinal)

    def _runs_on(self, there: Gpu) -> bool:
        try:
            self.check(there)
        except DeviceUnavailableError:
            return False
        return True

    def _loaded(self, ordinal: int) -> Loaded:
        found = self._on.get(ordinal)
        if found is not None:
            return found
        with self._loading:
            if self._closed:
                raise LaunchError("the kernel was closed; load it again")
            if ordinal not in self._on:
                there = self._gpus.gpu(ordinal)
                self.check(there)
                self._on[ordinal] = Loaded(self._artifact, there, self.prepare)
            return self._on[ordinal]


# --- arrays in GPU memory --------------------------------------------------------------------------------------------------


def compute(
    foreign: Foreign,
    load: Callable[[int], Loaded],
    named: Arguments,
    arrays: tuple[Any, ...],
    out: Any,
    stream: Any,
    wanted: Sequence[Wanted],
) -> Any:
    """Computes the result, or `out`; `NotImplemented` if no array is on a GPU. `load` returns the kernel on the GPU of a number."""
    given = arrays if out is None else (*arrays, out)
    ordinal = _ordinal(foreign, given, wanted)
    if ordinal is None:
        return NotImplemented
    here = load(ordinal)
    gpu = here.gpu
    with gpu.current():
        told = foreign.stream_of(given[0], gpu) if stream is None else foreign.stream_from(stream)
        used = gpu.stream if told is None else told
        taken = [_taken(foreign, value, w, gpu, used, named.alignment) for value, w in zip(arrays, wanted[:-1], strict=True)]
        places = {name: one.address for name, one in zip(named.inputs, taken, strict=True)}
        result = wanted[-1]
        if out is None:
            place, finish = foreign.fresh(given[0], result, gpu, used)
            with _held(gpu, used, taken):
                if 0 not in result.shape:
                    here.launch({**places, named.output: place}, used)
            return finish()
        target = _taken(foreign, out, result, gpu, used, named.alignment, written=True)
        with _held(gpu, used, [*taken, target]):
            _into(here, places, named.output, target, taken, used)
        return out


def _ordinal(foreign: Foreign, given: Sequence[Any], wanted: Sequence[Wanted]) -> int | None:
    """Returns the one GPU that holds all arrays; None if none is on a GPU. `LaunchError` if they are in different places."""
    ordinals = [foreign.ordinal_of(value) for value in given]
    first = ordinals[0] if ordinals else None
    if ordinals.count(first) == len(ordinals):
        return first
    names = [w.name for w in wanted]  # the output's is the last, and may be left out
    where = [f"{name} {'in host memory' if n is None else f'on GPU {n}'}" for name, n in zip(names, ordinals, strict=False)]
    raise LaunchError(
        f"the arrays lie apart: {', '.join(where)}; bring them to one place first (torch: x.to(y.device), CuPy: cupy.asarray(x))"
    )


def _taken(foreign: Foreign, value: Any, wanted: Wanted, gpu: Gpu, stream: int, alignment: int, written: bool = False) -> Taken:
    taken = foreign.take(value, wanted, gpu, stream, written)
    if taken.address % alignment and 0 not in wanted.shape:
        raise LaunchError(
            f"{wanted.name}: the array starts at {taken.address:#x}, the kernel needs a multiple of {alignment} bytes; "
            f"copy it first (torch: {wanted.name}.clone())"
        )
    return taken


@contextmanager
def _held(gpu: Gpu, stream: int, arrays: Sequence[Taken]) -> Iterator[None]:
    """Keeps arrays of libraries without this stream alive until the work enqueued inside is done.

    Their memory would be reused too early otherwise. If one of several launches fails, that work consists of the launches before
    it.
    """
    strangers = [one.holder for one in arrays if one.stream != stream]
    try:
        yield
    finally:
        if strangers:
            gpu.hold(stream, strangers)


def _into(here: Loaded, places: dict[str, int], output: str, target: Taken, inputs: Sequence[Taken], stream: int) -> None:
    """Writes to the caller's array: directly if it overlaps no input, else through temporary memory."""
    if not target.size:
        return
    end = target.address + target.size
    if not any(target.address < one.address + one.size and one.address < end for one in inputs):
        here.launch({**places, output: target.address}, stream)
        return
    with here.gpu.room(target.size, stream) as between:
        here.launch({**places, output: between}, stream)
        here.gpu.move(target.address, between, target.size, stream)
