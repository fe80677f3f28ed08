"""Calls with arrays in a GPU's memory: nothing is copied, nobody waits, work goes where the caller's own work goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from roller.plugin import LaunchError, Wanted
from roller_cuda import driver, foreign
from roller_cuda.foreign import Taken
from roller_cuda.gpu import Gpu
from roller_cuda.loaded import Loaded


@dataclass(frozen=True, slots=True)
class Arguments:
    """Of a kernel: names of the inputs that calls bring, name of the output, bytes at whose multiples every array starts."""

    inputs: tuple[str, ...]
    output: str
    alignment: int


def compute(
    load: Callable[[int], Loaded], named: Arguments, arrays: tuple[Any, ...], out: Any, stream: Any, wanted: Sequence[Wanted]
) -> Any:
    """The result, or `out`; `NotImplemented` where no array lies on a GPU. `load` gives the kernel on the GPU of that number."""
    given = arrays if out is None else (*arrays, out)
    ordinal = _ordinal(given, wanted)
    if ordinal is None:
        return NotImplemented
    here = load(ordinal)
    gpu = here.gpu
    with gpu.current():
        used = foreign.stream_from(stream) if stream is not None else foreign.stream_of(given[0], gpu) or gpu.stream
        taken = [_taken(value, w, gpu, used, named.alignment) for value, w in zip(arrays, wanted[:-1], strict=True)]
        places = {name: one.address for name, one in zip(named.inputs, taken, strict=True)}
        result = wanted[-1]
        if out is None:
            place, finish = foreign.fresh(given[0], result, gpu, used)
            with _held(gpu, used, taken):
                _enqueue(here, {**places, named.output: place}, result, used)
            return finish()
        target = _taken(out, result, gpu, used, named.alignment, written=True)
        with _held(gpu, used, [*taken, target]):
            _into(here, places, named.output, target, taken, used)
        return out


def _ordinal(given: Sequence[Any], wanted: Sequence[Wanted]) -> int | None:
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


def _taken(value: Any, wanted: Wanted, gpu: Gpu, stream: int, alignment: int, written: bool = False) -> Taken:
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


def _enqueue(here: Loaded, places: dict[str, int], result: Wanted, stream: int) -> None:
    if 0 not in result.shape:
        here.launch(places, stream)


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
        driver.call("cuMemcpyDtoDAsync", target.address, between, target.size, stream)
