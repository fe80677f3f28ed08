"""Generator of Poplar C++ from a manifest alone, for owners of the SDK: a host program and its codelets.

The interface is that of Poplar SDK 3.x as public code shows it (graphcore/poplibs, graphcore/examples, UoB-HPC/ipu-hpc-cookbook,
graphcore-research/tessellate-ipu): `Graph::addVariable`, `setTileMapping`, `addComputeSet`, `addVertex` with connections,
`setInitialValue`, `setPerfEstimate`, `createHostWrite`, `createHostRead`, `program::Sequence`, `Copy`, `Execute`, `Engine`,
`MultiVertex::compute(unsigned)` with `numWorkers()`, fields `Input | Output | InOut<Vector<T, VectorLayout::SPAN, alignment,
interleaved>>`, `[[poplar::constraint("elem(*a) != elem(*b)")]]`. It was never compiled with the SDK.

A buffer is one variable with a row for each of its tiles. An exchange is one copy of slices, from which Poplar derives the
exchange. A group of vertices is a loop over its tiles. Poplar chooses addresses itself: the manifest's are not passed on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from roller_ipu_sim.chip.machine import Machine
from roller_ipu_sim.manifest.affine import Nest, Row, fewer, total
from roller_ipu_sim.manifest.models import BYTES, Manifest, Send, Step, TensorHome, TileSet, Vertex, VertexGroup, tiles_in
from roller_ipu_sim.poplar.codelets import Codelet, Codelets, Use, origin_member
from roller_ipu_sim.simulator.counting import vertex_cycles

__all__ = ["PoplarProgram", "generate", "host_files"]

TYPES = {
    "float32": "FLOAT", "float16": "HALF", "bfloat16": "UNSIGNED_SHORT", "int32": "INT", "int16": "SHORT", "int8": "SIGNED_CHAR",
    "uint8": "UNSIGNED_CHAR", "bool": "BOOL",
}  # fmt: skip
HEAD = """\
// Host program for {chip}, {tiles} tiles, Poplar SDK 3.x. Made by roller, never compiled with the SDK; codelets.cpp belongs to it.
// Reads and writes arrays in the folder that its first argument names: {files}.
"""


@dataclass(frozen=True, slots=True)
class PoplarProgram:
    """The two texts, and the codelets of the second one with their fields."""

    host: str
    codelets: str
    classes: tuple[Codelet, ...]


def generate(manifest: Manifest, machine: Machine | None = None) -> PoplarProgram:
    """Returns the program of a checked manifest.

    With a machine, vertices carry its simulated cycles as estimates, which Poplar's own model adds up. Operands in its interleaved
    memory then request such memory.
    """
    buffers = {b.name: b for b in manifest.buffers}
    codelets = Codelets(buffers, None if machine is None else machine.memory.region0_bytes)
    cycles = None if machine is None else partial(vertex_cycles, machine, buffers)
    host = _Host(manifest, codelets, cycles)
    return PoplarProgram(host.text(), codelets.text(), tuple(codelets.known.values()))


def host_files(manifest: Manifest) -> dict[str, str]:
    """Returns for each tensor that is not intermediate the file that the host program reads or writes."""
    homes = [t for t in manifest.tensors if t.role != "intermediate"]
    names = _identifiers(t.name for t in homes)
    return {home.name: f"{names[home.name]}.bin" for home in homes}


def _identifiers(names: Iterable[str]) -> dict[str, str]:
    """Returns distinct C++ names for distinct names."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        choice, number = plain, 1
        while choice in taken:
            number += 1
            choice = f"{plain}_{number}"
        taken.add(choice)
        found[name] = choice
    return found


@cache
def _prelude() -> str:
    return (Path(__file__).parent / "poplar_prelude.hpp").read_text(encoding="utf-8")


def _list(values: Iterable[object]) -> str:
    return "{" + ", ".join(str(value) for value in values) + "}"


def _literal(text: str) -> str:
    """Returns a C++ string literal."""
    return json.dumps(re.sub(r"[^ -~]", "?", text))


@dataclass
class _Host:
    """The printer of the host program."""

    manifest: Manifest
    codelets: Codelets
    cycles: Callable[[Vertex], int] | None
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    tables: int = 0

    def __post_init__(self) -> None:
        names = _identifiers(b.name for b in self.manifest.buffers)
        self.names = {name: f"b_{plain}" for name, plain in names.items()}

    def text(self) -> str:
        """Returns the file."""
        files = host_files(self.manifest)
        listed = ", ".join(f"{files[t.name]} ({t.role}, {t.dtype})" for t in self.manifest.tensors if t.name in files)
        head = HEAD.format(chip=_literal(self.manifest.chip)[1:-1], tiles=self.manifest.tiles, files=listed)
        for buffer in self.manifest.buffers:
            made = f"graph, {TYPES[buffer.dtype]}, {buffer.elements}, {self._tiles(buffer.tiles)}, {_literal(buffer.name)}"
            self.print(f"const Buffer {self.names[buffer.name]}({made});")
        for home in self.manifest.tensors:
            if home.name in files:
                self.tensor(home, files[home.name])
        for number, step in enumerate(self.manifest.steps):
            self.step(number, step)
        unused = "" if any("program" in line for line in self.lines) else "[[maybe_unused]] "
        build = f"static void build(Graph &graph, {unused}Sequence &program, std::vector<HostArray> &arrays) {{"
        main = [f"int main(int argc, char **argv) {{ return run(argc, argv, {self.manifest.tiles}, build); }}", ""]
        return "\n".join([head + _prelude(), build, *self.lines, "}", "", *main])

    # --- parts of the program -----------------------------------------------------------------------------------------

    def tensor(self, home: TensorHome, file: str) -> None:
        """Prints an array of the host and the placements of its parts."""
        layout = _list(_list((dim, divisor, modulus or 0)) for dim, divisor, modulus in home.layout)
        read = "false" if home.role == "output" else "true"
        given = (_literal(file), read, BYTES[home.dtype], _list(home.shape), layout, _list(home.stored))
        self.print(f"arrays.emplace_back(HostArray{_list(given)}); // {_literal(home.name)[1:-1]}")
        groups: dict[tuple[str, tuple[int, ...], int, tuple[int, ...] | None], list[Nest]] = {}
        for part in home.placements:
            key = (part.buffer, part.shape, part.elements, part.strides)
            loops = [(count, (tile, offset, first, *start)) for count, tile, offset, start, first in part.loops]
            groups.setdefault(key, []).append(Nest((part.tile, part.offset, part.first, *part.start), tuple(loops)))
        for (buffer, shape, count, strides), alike in groups.items():
            for columns in self._each(alike):
                tile, offset, first, *start = columns
                where = f"{self.names[buffer]}, {tile}, {offset}, {_list(start)}, {_list(shape)}"
                how = f"{first}, {count}" if strides is None else _list(strides)
                self.print(f"arrays.back().place({where}, {how});")

    def step(self, number: int, step: Step) -> None:
        """Prints a compute set, or an exchange."""
        self.print(f"{{ // {number}: {_literal(step.name)[1:-1]}")
        self.indent += 1
        if step.exchange:
            self._exchange(step.exchange)
        if step.compute:
            self.print(f"const ComputeSet set = graph.addComputeSet({_literal(step.name)});")
            for group in step.compute:
                self._group(group)
            self.print("program.add(Execute(set));")
        self.indent -= 1
        self.print("}")

    def _group(self, group: VertexGroup) -> None:
        use: Use = self.codelets.use(group)
        tiles = list(tiles_in(group.tiles))
        rows = [(tile, *(values[n] for values in group.origins.values())) for n, tile in enumerate(tiles)]
        for tile, *origins in self._each([Nest(row) for row in rows]):
            connected = ", ".join(
                f'{{"{name}", {self.names[buffer]}.part(tile, {low}, {high - low})}}' for name, buffer, low, high in use.connections
            )
            self.print(f"const unsigned tile = {tile};")
            self.print(f'auto vertex = graph.addVertex(set, "{use.codelet.name}", {{{connected}}});')
            for name, value in zip(group.origins, origins, strict=True):
                self.print(f'graph.setInitialValue(vertex["{origin_member(name)}"], int({value}));')
            self.print("graph.setTileMapping(vertex, tile);")
            if self.cycles is not None:
                self.print(f"graph.setPerfEstimate(vertex, {self.cycles(group.vertex)});")

    def _exchange(self, sends: Sequence[Send]) -> None:
        by_type: dict[str, list[Send]] = {}
        for send in sends:
            by_type.setdefault(self.codelets.dtype(send.buffer), []).append(send)
        for dtype, alike in by_type.items():
            name = f"exchange_{TYPES[dtype].lower()}"
            self.print(f"Exchange {name};")
            groups: dict[tuple[object, ...], list[Send]] = {}
            for send in alike:
                groups.setdefault(_pattern(send), []).append(send)
            for group in groups.values():
                self._sends(name, group)
            self.print(f"{name}.add_to(program);")

    def _sends(self, exchange: str, sends: Sequence[Send]) -> None:
        one = sends[0]
        for tile, offset, to_offset, *firsts in self._each([_family(send) for send in sends]):
            receivers = _list(_list((first, *part[1:])) for first, part in zip(firsts, one.to.tiles, strict=True))
            shape = f"{_list(one.shape)}, {_list(one.strides)}, {_list(one.to_strides)}"
            source = f"{self.names[one.buffer]}, {tile}, {offset}"
            others = ", true" if one.others else ""
            self.print(f"{exchange}.send({source}, {self.names[one.to.buffer]}, {receivers}, {to_offset}, {shape}{others});")

    # --- text ---------------------------------------------------------------------------------------------------------

    def print(self, line: str) -> None:
        """Adds a line."""
        self.lines.append("  " * self.indent + line)

    def _tiles(self, tiles: TileSet) -> str:
        return _list(_list(part) for part in tiles)

    def _each(self, given: Sequence[Nest]) -> Iterator[tuple[str, ...]]:
        """Yields C++ text of each column inside loops over all rows; lines printed between two results are inside the loops."""
        loose: list[Row] = []
        for nest in [*fewer(given), None]:
            if nest is not None and not nest.loops:
                loose.append(nest.first)
                continue
            if loose:
                yield from self._listed(loose)
                loose = []
            if nest is not None:
                with self._looped(nest) as columns:
                    yield columns

    @contextmanager
    def _looped(self, nest: Nest) -> Iterator[tuple[str, ...]]:
        variables = [f"i{number}" for number in range(len(nest.loops))]
        for (count, _), name in zip(nest.loops, variables, strict=True):
            self.print(f"for (unsigned {name} = 0; {name} < {count}; ++{name}) {{")
            self.indent += 1
        yield tuple(
            total(first, [(step[column], name) for (_, step), name in zip(nest.loops, variables, strict=True)])
            for column, first in enumerate(nest.first)
        )
        for _ in variables:
            self.indent -= 1
            self.print("}")

    def _listed(self, rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
        """Prints rows without order as a table, and yields the text of their columns."""
        if len(rows) == 1:
            self.print("{")
            columns = tuple(str(value) for value in rows[0])
        else:
            self.tables += 1
            table = ", ".join(_list(row) for row in rows)
            kind = "int" if min(map(min, rows)) < 0 else "unsigned"
            self.print(f"static const {kind} table{self.tables}[][{len(rows[0])}] = {{{table}}};")
            self.print(f"for (const auto &row : table{self.tables}) {{")
            columns = tuple(f"row[{column}]" for column in range(len(rows[0])))
        self.indent += 1
        yield columns
        self.indent -= 1
        self.print("}")


def _family(send: Send) -> Nest:
    """Returns the sender, its offset, that of the receivers, and the starts of their ranges."""
    ranges = len(send.to.tiles)
    loops = [(count, (tile, offset, to_offset, *[to_tile] * ranges)) for count, tile, offset, to_tile, to_offset in send.loops]
    return Nest((send.tile, send.offset, send.to.offset, *[first for first, _, _ in send.to.tiles]), tuple(loops))


def _pattern(send: Send) -> tuple[object, ...]:
    """Returns the properties that all sends of one loop share."""
    receivers = tuple(part[1:] for part in send.to.tiles)
    return (send.buffer, send.to.buffer, send.shape, send.strides, send.to_strides, receivers, send.others)
