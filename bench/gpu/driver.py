"""A driver's library through ctypes: just what loading, launching and timing kernels needs. Every return code is checked.

Drivers of different makers have the same functions under other names; what only one of them has is in `bench.cuda.driver` and
`bench.rocm.driver`.
"""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any, ClassVar

SUCCESS, NOT_READY = 0, 600
PATIENCE, SPIN_SECONDS, NAP_SECONDS = 10.0, 5e-3, 5e-4  # with what is on a stream; before naps between two looks
NAME_BYTES = 256
HANDLE, NUMBER = POINTER(c_void_p), POINTER(c_int)
SIGNATURES: Mapping[str, Sequence[Any]] = {  # of what all drivers have, by what it does
    "begin": (c_uint,),
    "version": (NUMBER,),
    "name": (c_char_p, c_int, c_int),
    "memory": (POINTER(c_size_t), c_int),
    "attribute": (NUMBER, c_int, c_int),
    "load": (HANDLE, c_char_p),
    "unload": (c_void_p,),
    "function": (HANDLE, c_void_p, c_char_p),
    "launch": (c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), c_void_p),
    "event": (HANDLE, c_uint),
    "record": (c_void_p, c_void_p),
    "elapsed": (POINTER(c_float), c_void_p, c_void_p),
    "fill": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "read": (c_void_p, c_uint64, c_size_t),
    "write": (c_uint64, c_void_p, c_size_t),
    "synchronize": (c_void_p,),
    "query": (c_void_p,),
}

Start = Callable[[int, Any], None]  # a stream, an array of pointers to a kernel's arguments


class DriverError(RuntimeError):
    """A call that the driver refused, with the name of its code. `fatal`: the process can do nothing more on the GPU."""

    def __init__(self, call: str, code: int, name: str, text: str = "", fatal: bool = False) -> None:
        super().__init__(f"{call}: {name} ({code})" + (f": {text}" if text else ""))
        self.call, self.code, self.name, self.fatal = call, code, name, fatal

    @property
    def hangs(self) -> bool:
        """True where work was given up that does not end."""
        return self.code == NOT_READY


class Driver(ABC):
    """A driver's library and one GPU, where torch's addresses and streams are good too. `DriverError` where either is missing.

    `NAMES`: the driver's functions, by what they do. `OWN`: signatures of those that only this driver has. `FATAL`: names of codes
    after which nothing else runs in this process. `CACHE`: the attribute that is the bytes of the last cache that the driver knows.
    """

    NAMES: ClassVar[Mapping[str, str]]
    OWN: ClassVar[Mapping[str, Sequence[Any]]]
    FATAL: ClassVar[frozenset[str]]
    CACHE: ClassVar[int]

    def __init__(self, library: ctypes.CDLL, ordinal: int) -> None:
        self._library, self._device = library, ordinal
        self._known: dict[str, Any] = {}
        self._images: dict[int | None, bytes] = {}

    def ask(self, what: str, *arguments: Any) -> None:
        """One call, by what it does or, where only this driver has it, by its name; `DriverError` unless it succeeds, and where the
        driver is too old to know it.
        """
        function = self._known.get(what) or self._found(what)
        code = function(*arguments)
        if code != SUCCESS:
            name, text = self._said(code)
            raise DriverError(self.NAMES.get(what, what), code, name, text, name in self.FATAL)

    def _found(self, what: str) -> Any:
        call = self.NAMES.get(what, what)
        function = getattr(self._library, call, None)
        if function is None:
            raise DriverError(call, -1, "no such function", "this driver is too old")
        function.argtypes = SIGNATURES[what] if what in self.NAMES else self.OWN[what]
        function.restype = c_int
        self._known[what] = function
        return function

    @abstractmethod
    def _said(self, code: int) -> tuple[str, str]:
        """The name of a code, and what the driver says of it."""

    # --- the GPU ------------------------------------------------------------------------------------------------------

    def attribute(self, number: int) -> int:
        """A number that the driver knows of the GPU."""
        value = c_int()
        self.ask("attribute", ctypes.byref(value), number, self._device)
        return value.value

    def describe(self) -> dict[str, Any]:
        """The GPU as results name it."""
        name, memory = ctypes.create_string_buffer(NAME_BYTES), c_size_t()
        self.ask("name", name, NAME_BYTES, self._device)
        self.ask("memory", ctypes.byref(memory), self._device)
        return {
            "gpu": name.value.decode(errors="replace").strip(),
            "memory_bytes": memory.value,
            "memory_gib": round(memory.value / 2**30, 1),
            "l2_bytes": self.attribute(self.CACHE),
        }

    def version(self) -> int:
        """The driver's version as it counts."""
        found = c_int()
        self.ask("version", ctypes.byref(found))
        return found.value

    # --- kernels ------------------------------------------------------------------------------------------------------

    def load(self, image: bytes) -> c_void_p:
        """A module of a binary."""
        module = c_void_p()
        self.ask("load", ctypes.byref(module), image)
        self._images[module.value] = image  # the driver may read it as long as the module is loaded
        return module

    def unload(self, module: c_void_p) -> None:
        """Forget a module; its kernels are gone."""
        self.ask("unload", module)
        self._images.pop(module.value, None)

    def named(self, module: c_void_p, name: str) -> c_void_p:
        """A kernel of a module."""
        function = c_void_p()
        self.ask("function", ctypes.byref(function), module, name.encode())
        return function

    @abstractmethod
    def prepared(self, module: c_void_p, described: Mapping[str, Any]) -> Start:
        """How to start a kernel of a launch description; `DriverError` where the GPU cannot."""

    def argument(self, described: Mapping[str, Any], name: str, addresses: Mapping[str, int]) -> Any:
        """The value that a kernel of a launch description takes for an argument; `KeyError` where no address is known."""
        return c_uint64(addresses[name])

    # --- memory and time ----------------------------------------------------------------------------------------------

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        """Set every byte of a range."""
        if size:
            self.ask("fill", address, byte, size, stream)

    def read(self, address: int, size: int) -> bytes:
        """What lies there, once all work before is done."""
        found = ctypes.create_string_buffer(size)
        self.ask("read", found, address, size)
        return found.raw

    def write(self, address: int, data: bytes) -> None:
        """Put bytes there; they are there when this returns."""
        if data:
            self.ask("write", address, data, len(data))

    def synchronize(self, stream: int) -> None:
        """Wait for all work of a stream; what went wrong in it is raised here, and that it does not end."""
        query, begin = self._known.get("query") or self._found("query"), time.monotonic()
        while query(stream) == NOT_READY:
            waited = time.monotonic() - begin
            if waited > PATIENCE:
                raise DriverError(self.NAMES["query"], NOT_READY, "hangs", f"not done after {PATIENCE:g} s", True)
            if waited > SPIN_SECONDS:
                time.sleep(NAP_SECONDS)
        self.ask("synchronize", stream)

    def event(self) -> c_void_p:
        """An event that keeps the time."""
        made = c_void_p()
        self.ask("event", ctypes.byref(made), 0)
        return made

    def record(self, event: c_void_p, stream: int) -> None:
        """Let an event happen when all work before it is done."""
        self.ask("record", event, stream)

    def elapsed(self, first: c_void_p, second: c_void_p) -> float:
        """Seconds between two events that have happened."""
        milliseconds = c_float()
        self.ask("elapsed", ctypes.byref(milliseconds), first, second)
        return milliseconds.value * 1e-3
