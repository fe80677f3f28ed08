"""Vertices of a manifest as codelets: one C++ class for every different vertex, printed once for all tiles that run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from roller.plugin import CodegenError
from roller_ipu_sim.manifest.affine import total
from roller_ipu_sim.manifest.models import Amp, Buffer, Copy, Fill, Map, Reduce, Ref, Vertex, VertexGroup, View, nodes
from roller_ipu_sim.poplar.fields import Access, Deal, Field, dealt, fields_of
from roller_ipu_sim.poplar.scalars import ELEMENT_TYPES, Node, Printer, combined, constant, converted, helpers, identity

__all__ = ["Codelet", "Codelets", "Use", "origin_member"]

HEAD = """\
// Codelets of the program in host.cpp. Made by roller; compile with popc, or let Graph::addCodelets do it.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include <poplar/HalfFloat.hpp>
#include <poplar/Vertex.hpp>

using namespace poplar;

#ifdef __IPU__
using Exact = float; // the tile has no double
#else
using Exact = double;
#endif
"""
AMP_NOTE = """\
  // Plain C++, which runs on any target. On an IPU this is what poplin's vertices do on the AMP,
  // from {blocks} of 16 x {grain} weights (output channels outermost): {vertex}."""


@dataclass(frozen=True, slots=True)
class Codelet:
    """One class: its name, the fields that tensors are connected to, and the members that hold a number for each tile."""

    name: str
    fields: tuple[Field, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """A group's use of a codelet: field → buffer, first element, one behind the last."""

    codelet: Codelet
    connections: tuple[tuple[str, str, int, int], ...]


@dataclass
class Codelets:
    """The codelets that a program needs so far. `interleaved_from`: the first address of interleaved memory, None if unknown."""

    buffers: Mapping[str, Buffer]
    interleaved_from: int | None = None
    known: dict[tuple[str, str], Codelet] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def use(self, group: VertexGroup) -> Use:
        """Returns the codelet of a group, printed if there is no equal one yet."""
        vertex = group.vertex
        body = _Body(self, vertex, tuple(group.origins))
        key = (vertex.kind, body.text())
        if key not in self.known:
            number = self.counts[vertex.kind] = self.counts.get(vertex.kind, 0) + 1
            self.known[key] = Codelet(
                f"{vertex.kind.capitalize()}{number}", body.fields, tuple(origin_member(n) for n in group.origins)
            )
        codelet = self.known[key]
        return Use(codelet, tuple((f.name, f.buffer, f.low, f.high) for f in body.fields))

    def text(self) -> str:
        """Returns the file."""
        parts = [HEAD, helpers(self.used)]
        for (_, body), codelet in self.known.items():
            parts.append(body.replace("@", codelet.name))
        return "\n".join(part for part in parts if part)

    def dtype(self, buffer: str) -> str:
        """Returns a buffer's element type."""
        return self.buffers[buffer].dtype

    def interleaved(self, ref: Ref) -> bool:
        """Returns True if a position lies in interleaved memory."""
        return self.interleaved_from is not None and self.buffers[ref.buffer].address >= self.interleaved_from


class _Body:
    """The printer of a codelet's class; "@" is a placeholder for its name."""

    def __init__(self, codelets: Codelets, vertex: Vertex, origins: Sequence[str]) -> None:
        self.codelets, self.vertex, self.origins = codelets, vertex, origins
        self.lines: list[str] = []
        self.indent = 2
        self.note: list[str] = []
        self.constraints: list[str] = []
        self.accesses: tuple[Access, ...] = ()
        self.by_access: dict[str, Field] = {}
        match vertex:
            case Amp():
                self.amp(vertex)
            case Map():
                self.map(vertex)
            case Reduce():
                self.reduce(vertex)
            case Fill():
                self.fill(vertex)
            case Copy():
                self.copy(vertex)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, in order of first use."""
        return tuple(dict.fromkeys(self.by_access[a.name] for a in self.accesses))

    def text(self) -> str:
        """Returns the class."""
        attribute = f"[[poplar::constraint({', '.join(self.constraints)})]] " if self.constraints else ""
        members = [f"  {f.declaration}" for f in self.fields] + [f"  int {origin_member(name)};" for name in self.origins]
        head = [
            f"class {attribute}@ : public MultiVertex {{",
            "public:",
            *self.note,
            *members,
            "",
            "  bool compute(unsigned worker) {",
        ]
        return "\n".join([*head, *self.lines, "    return true;", "  }", "};", ""])

    # --- pieces -------------------------------------------------------------------------------------------------------

    def touch(self, *accesses: Access) -> None:
        """Declares the vertex's accesses."""
        self.accesses = accesses
        self.by_access = fields_of(accesses)

    def access(self, name: str, ref: Ref | View, extents: Sequence[int], strides: Sequence[int], **more: bool) -> Access:
        """Returns an operand."""
        return Access(name, ref.buffer, self.codelets.dtype(ref.buffer), ref.offset, tuple(extents), tuple(strides), **more)

    def read(self, access: Access, variables: Sequence[str]) -> tuple[str, str]:
        """Returns an element's value and type."""
        text = self.by_access[access.name].element(access, variables)
        if access.dtype == "bfloat16":
            text = f"bfloat::stored({text})"
            self.codelets.used.add("bfloat16")
        return text, access.dtype

    def store(self, access: Access, variables: Sequence[str], value: str, dtype: str) -> None:
        """Prints the store of a value to an element, converted to its type."""
        text, used = converted(value, dtype, access.dtype)
        self.codelets.used |= used
        bits = ".bits" if access.dtype == "bfloat16" else ""
        self.print(f"{self.by_access[access.name].element(access, variables)} = {text}{bits};")

    def print(self, line: str) -> None:
        """Adds a line."""
        self.lines.append("  " * self.indent + line)

    @contextmanager
    def loop(self, variable: str, extent: int, deal: Deal | None = None) -> Iterator[None]:
        """Prints a loop around the following lines; none for an extent of 1. With `deal` workers take the indices in turn."""
        if extent == 1:
            yield
            return
        if deal is None:
            head = [f"for (int {variable} = 0; {variable} < {extent}; ++{variable}) {{"]
        elif deal.chunk == 1:
            head = [f"for (int {variable} = int(worker); {variable} < {extent}; {variable} += int(numWorkers())) {{"]
        else:  # whole words
            first, chunk = f"{variable}_first", deal.chunk
            last = f"{first} + {chunk} < {extent} ? {first} + {chunk} : {extent}"
            head = [
                f"for (int {first} = {chunk} * int(worker); {first} < {extent}; {first} += {chunk} * int(numWorkers())) {{",
                f"const int {variable}_end = {last};",
                f"for (int {variable} = {first}; {variable} < {variable}_end; ++{variable}) {{",
            ]
        for line in head:
            self.print(line)
            self.indent += line.endswith("{")
        yield
        for line in head:
            if line.endswith("{"):
                self.indent -= 1
                self.print("}")

    @contextmanager
    def loops(self, variables: Sequence[str], extents: Sequence[int], deal: Deal | None = None) -> Iterator[None]:
        """Prints loops around the following lines, outermost first."""
        if deal is not None and deal.loop is None:
            self.print("if (worker != 0) // one worker for all: others would store to the same words of memory")
            self.print("  return true;")
            deal = None
        if not variables:
            yield
            return
        mine = deal if deal is not None and deal.loop == 0 else None
        rest = Deal(deal.loop - 1, deal.chunk) if deal is not None and deal.loop else None
        with self.loop(variables[0], extents[0], mine), self.loops(variables[1:], extents[1:], rest):
            yield

    # --- kinds of vertices --------------------------------------------------------------------------------------------

    def amp(self, vertex: Amp) -> None:
        """Prints a product, result by result: grains summed exactly, then added in the accumulator's type."""
        loops, acc = vertex.loops, ELEMENT_TYPES[vertex.acc_dtype]
        extents = [lp.extent for lp in loops]
        names = [f"{lp.role}{number}" for number, lp in enumerate(loops)]
        a = self.access("a", vertex.a, extents, [lp.a for lp in loops])
        w = self.access("w", vertex.w, extents, [lp.w for lp in loops], interleaved=self.codelets.interleaved(vertex.w))
        out = self.access("out", vertex.out, extents, [lp.out for lp in loops], reads=not vertex.zero, writes=True)
        self.touch(a, w, out)
        results = [n for n, lp in enumerate(loops) if lp.role != "k"]
        blocks = [n for n, lp in enumerate(loops[:-1]) if lp.role == "k"]
        deal = dealt(out, [n for n in results if loops[n].role == "m"] or results)
        self.constraints = [f'"elem(*{x}) != elem(*{y})"' for x, y in self._different("a", "w", "out")]
        nx1 = (
            f"poplin::ConvPartialnx1 with taps {' x '.join(map(str, vertex.taps))}" if vertex.taps else "poplin::ConvPartial1x1Out"
        )
        blocked = "the same blocks" if loops[-2].w == extents[-1] else "weights packed into blocks"
        self.note = AMP_NOTE.format(vertex=nx1, grain=extents[-1], blocks=blocked).splitlines()
        place = Deal(None if deal.loop is None else results.index(deal.loop), deal.chunk)
        with self.loops([names[n] for n in results], [extents[n] for n in results], place):
            start = constant(0, vertex.acc_dtype) if vertex.zero else self.read(out, names)[0]
            self.print(f"{acc} sum = {start};")
            with self.loops([names[n] for n in blocks], [extents[n] for n in blocks]):
                self.print("Exact grain = 0;")
                with self.loop(names[-1], extents[-1]):
                    left, right = self.read(a, names)[0], self.read(w, names)[0]
                    self.print(f"grain += Exact(float({left})) * Exact(float({right}));")
                self.print(f"sum = {acc}(Exact(float(sum)) + grain);")
            self.store(out, names, "sum", vertex.acc_dtype)

    def _different(self, *names: str) -> list[tuple[str, str]]:
        """Returns pairs of operands with loads and stores in one cycle: they should lie in different memory elements."""
        fields = list(dict.fromkeys(self.by_access[name].name for name in names))
        return [(x, y) for n, x in enumerate(fields) for y in fields[n + 1 :]]

    def map(self, vertex: Map) -> None:
        """Prints elementwise work, with or without a fold."""
        kept = len(vertex.loops) - vertex.reduce
        names = [f"i{number}" for number in range(len(vertex.loops))]
        views = [(f"x{n}", view, vertex.loops) for n, view in enumerate(vertex.loads)]
        views += [(f"e{n}", view, vertex.loops) for n, view in enumerate(vertex.epilogue_loads)]
        loads = {name: self.access(name, view, extents[: len(view.strides)], view.strides) for name, view, extents in views}
        out = self.access("out", vertex.out, vertex.loops[:kept], vertex.out.strides, reads=vertex.accumulate, writes=True)
        self.touch(*loads.values(), out)
        index = partial(self._index, names, vertex.loops)
        body = Printer(lambda n: self.read(loads[f"x{n}"], names), index)
        value, dtype = body.value(vertex.body)
        with self.loops(names[:kept], vertex.loops[:kept], dealt(out, range(kept))):
            if vertex.epilogue is None or ("result",) in nodes(vertex.epilogue):
                value = self._folded(vertex, body, value, dtype, names)
            if vertex.epilogue is not None:
                tail = Printer(lambda n: self.read(loads[f"e{n}"], names[:kept]), index, (value, dtype), prefix="u")
                value, dtype = tail.value(vertex.epilogue)
                self._statements(tail, [])
            self.store(out, names[:kept], value, dtype)

    def _folded(self, vertex: Map, body: Printer, value: str, dtype: str, names: Sequence[str]) -> str:
        """Prints the body at one result's points, and returns the fold over them; without a reducer the body itself."""
        if vertex.reducer is None:
            self._statements(body, [])
            return value
        kept = len(vertex.loops) - vertex.reduce
        out = self.accesses[-1]
        start = self.read(out, names[:kept])[0] if vertex.accumulate else identity(vertex.reducer, dtype)
        self.print(f"{ELEMENT_TYPES[dtype]} folded = {start};")
        with self.loops(names[kept:], vertex.loops[kept:]):
            step, used = combined(vertex.reducer, dtype, "folded", value)
            self._statements(body, [f"folded = {step};"])
            self.codelets.used |= used
        return "folded"

    def _statements(self, printer: Printer, more: Iterable[str]) -> None:
        self.codelets.used |= printer.used
        for line in [*printer.statements, *more]:
            self.print(line)

    def _index(self, names: Sequence[str], loops: Sequence[int], node: Node) -> str:
        _, loop, scale, origin = node
        if origin is not None and origin not in self.origins:
            raise CodegenError(f"a tree uses the origin {origin!r}, which its group of vertices does not have")
        terms = [(scale if loops[loop] > 1 else 0, names[loop])] + ([(1, origin_member(origin))] if origin is not None else [])
        return f"({total(0, terms)})"

    def reduce(self, vertex: Reduce) -> None:
        """Prints the addition of partial results, in their order."""
        acc, parts_type = vertex.acc_dtype, self.codelets.dtype(vertex.parts.buffer)
        parts = self.access("parts", vertex.parts, (vertex.outputs, vertex.partials), (1, vertex.step))
        out = self.access("out", vertex.out, (vertex.outputs,), (1,), reads=False, writes=True)
        self.touch(parts, out)
        with self.loops(["i"], [vertex.outputs], dealt(out, [0])):
            self.print(f"{ELEMENT_TYPES[acc]} sum = {identity('sum', acc)};")
            with self.loop("p", vertex.partials):
                value, used = converted(self.read(parts, ["i", "p"])[0], parts_type, acc)
                step, more = combined("sum", acc, "sum", value)
                self.codelets.used |= used | more
                self.print(f"sum = {step};")
            self.store(out, ["i"], "sum", acc)

    def fill(self, vertex: Fill) -> None:
        """Prints a fill with one value."""
        out = self.access("out", vertex.to, (vertex.elements,), (1,), reads=False, writes=True)
        self.touch(out)
        with self.loops(["i"], [vertex.elements], dealt(out, [0])):
            self.codelets.used.add(out.dtype)
            self.store(out, ["i"], constant(vertex.value, out.dtype), out.dtype)

    def copy(self, vertex: Copy) -> None:
        """Prints a copy inside a tile, which keeps all bits."""
        x = self.access("x", vertex.source, (vertex.elements,), (1,))
        out = self.access("out", vertex.to, (vertex.elements,), (1,), reads=False, writes=True)
        self.touch(x, out)
        with self.loops(["i"], [vertex.elements], dealt(out, [0])):
            self.print(f"{self.by_access['out'].element(out, ['i'])} = {self.by_access['x'].element(x, ['i'])};")


def origin_member(name: str) -> str:
    """Returns the class member that holds a number for each tile."""
    return "origin_" + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" if c != "_" else c for c in name)
