"""Calls of kernels on GPUs: arrays in a GPU's memory are used where they lie, and nobody waits; those of the host travel there.

What is the same for all kinds of GPUs; a plugin brings its GPUs and how a kernel is loaded on one.
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
from roller.runtime.foreign import Foreign, Taken
from roller.runtime.gpu import Gpu
from roller.runtime.loaded import Launch, Loaded

Array = npt.NDArray[Any]


class Gpus(Protocol):
    """Those of one kind; a plugin's module may be it."""

    def count(self) -> int:
        """How many there are; `DeviceUnavailableError` where there is none."""

    def gpu(self, ordinal: int) -> Gpu:
        """The one of that number; `LaunchError` where there is none."""

    def current(self) -> Gpu:
        """The one that the calling thread uses, else the first."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Of a kernel: names of the inputs that calls bring, name of the output, bytes at whose multiples every array starts."""

    inputs: tuple[str, ...]
    output: str
    alignment: int


class GpuRunner(ABC):
    """A kernel, loaded on every GPU that it is called for; see `roller.runtime.artifact.Runner`. Threads may call it at the same
    time.
    """

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
        """`DeviceUnavailableError` where the GPU cannot run the kernel."""

    @abstractmethod
    def prepare(self, module: Any, described: Mapping[str, Any], gpu: Any) -> Launch:
        """One of its kernels, of a binary that the driver holds, with everything that launches on that GPU have in common."""

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Compute `out` from arrays in host memory, on the calling thread's GPU, and wait for it."""
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
            finally:  # nothing may still read the caller's arrays
                there.finish(stream)

    def resident(self, arrays: tuple[Any, ...], out: Any, stream: Any, wanted: Sequence[Wanted]) -> Any:
        """Compute from arrays in a GPU's memory. `stream`: a handle, or a stream of a library; left out, the current one of the
        first array's library, and one of ours where that has none.
        """
        return compute(self._foreign, self._loaded, self._named, arrays, out, stream, wanted)

    def close(self) -> None:
        """Wait for what runs, and free what the kernel holds; it is not run again."""
        with self._loading:
            self._closed = True
            while self._on:
                self._on.popitem()[1].close()

    def _begin(self) -> None:
        """Load for the calling thread's GPU; where that cannot run the kernel, one of the others has to be able to."""
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


# --- arrays that lie there already -----------------------------------------------------------------------------------------


def compute(
    foreign: Foreign,
    load: Callable[[int], Loaded],
    named: Arguments,
    arrays: tuple[Any, ...],
    out: Any,
    stream: Any,
    wanted: Sequence[Wanted],
) -> Any:
    """The result, or `out`; `NotImplemented` where no array lies on a GPU. `load` gives the kernel on the GPU of that number."""
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
    """The one GPU that all arrays lie on; None where none lies on any. `LaunchError` where they are apart."""
    ordinals = [foreign.ordinal_of(value) for value in given]
    first = ordinals[0] if ordinals else None
    if ordinals.count(first) == len(ordinals):
        return first
    names = [w.name for w in wanted]  # the output's is the last, which may be left out
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
    """Arrays of libraries that know nothing of the stream live until the work enqueued inside is done: their memory would be handed
    out again too early. Where one of several launches fails, that work is those before it.
    """
    strangers = [one.holder for one in arrays if one.stream != stream]
    try:
        yield
    finally:
        if strangers:
            gpu.hold(stream, strangers)


def _into(here: Loaded, places: dict[str, int], output: str, target: Taken, inputs: Sequence[Taken], stream: int) -> None:
    """Write to the caller's array: directly where it overlaps no input, else by way of other memory."""
    if not target.size:
        return
    end = target.address + target.size
    if not any(target.address < one.address + one.size and one.address < end for one in inputs):
        here.launch({**places, output: target.address}, stream)
        return
    with here.gpu.room(target.size, stream) as between:
        here.launch({**places, output: between}, stream)
        here.gpu.move(target.address, between, target.size, stream)
