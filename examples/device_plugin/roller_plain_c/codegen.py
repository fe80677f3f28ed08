"""Code generator for C: one function for each stage, and one that calls them all.

A stage's loops are printed in their order, outermost first. For each dimension two C variables hold the start and the end of the
current tile; a tile that exceeds the enclosing one is clipped. Accumulators are an array on the stack, as large as the innermost
tile. Where reduce loops lie outside spatial ones, the accumulators are saved in the scratch memory between visits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from roller.plugin import (
    ELEMENT_BYTES,
    Affine,
    KernelSource,
    Load,
    RProgram,
    Scalar,
    StageProgram,
    Staging,
    Tensor,
    copy_depth,
    staged_touches,
)
from roller_plain_c import scalar

ENTRY = "kernel"
ALIGNMENT = 64
Bounds = tuple[tuple[str, str], ...]  # start and end of the current tile along each dimension, as C


def refusal(program: RProgram) -> tuple[str, str] | None:
    """Returns a refusal of types that C lacks; None if there are none."""
    unknown = sorted({t.dtype for t in program.expr.tensors.values()} - set(scalar.TYPES))
    return ("types", f"C has no type for {', '.join(unknown)}") if unknown else None


def generate(program: RProgram) -> KernelSource:
    """Returns the program as text; `scratch_bytes` of its launch description is the memory it needs beside its arguments."""
    expr, scratch = program.expr, Scratch()
    arrays = {t.name: f"t{number}" for number, t in enumerate(expr.tensors.values())}
    stages = [_Stage(stage, arrays, expr.tensors, scratch) for stage in program.stages]
    functions = [line for number, stage in enumerate(stages) for line in stage.function(number)]
    held = {s.stage.output.name: s.output for s in stages[:-1]}
    places = [f"    {scalar.type_name(t.dtype)} *{arrays[n]} = {scratch.take(t.elements, t.dtype)};" for n, t in held.items()]
    given = [*expr.inputs, expr.output]
    kinds = [("const " if t in expr.inputs else "") + scalar.type_name(t.dtype) for t in given]
    parameters = [f"{kind} *restrict {arrays[t.name]}" for kind, t in zip(kinds, given, strict=True)]
    calls = [f"    stage{number}({', '.join([*arrays.values(), 'scratch'])});" for number in range(len(stages))]
    entry = [f"void {ENTRY}({', '.join([*parameters, 'char *restrict scratch'])})", "{", *places, *calls, "}"]
    launch = {
        "inputs": [t.name for t in expr.inputs],
        "scratch_bytes": scratch.size,
        "alignment": ALIGNMENT,
    }
    return KernelSource("\n".join([scalar.prelude(), *functions, *entry, ""]), "c", ENTRY, launch)


@dataclass
class Scratch:
    """Memory that the runner passes to the kernel: its size, and expressions for parts of it."""

    size: int = 0

    def take(self, elements: int, dtype: str) -> str:
        """Returns a pointer to `elements` elements."""
        start = self.size
        self.size += -(-max(elements, 1) * ELEMENT_BYTES[dtype] // ALIGNMENT) * ALIGNMENT
        return f"({scalar.type_name(dtype)} *)(scratch + {start})"


@dataclass(frozen=True)
class Panel:
    """A packed panel: values of one factor along the dimensions that they depend on, with the extents of the tile at its level."""

    factor: int
    depth: int  # loops outside the copy
    dims: tuple[int, ...]
    extents: tuple[int, ...]

    def element(self, starts: list[str]) -> str:
        """Returns the value at the current point; `starts`: start of the copied tile along each dimension."""
        return f"panel{self.factor}[{_address([f'(x{d} - {starts[d]})' for d in self.dims], list(self.extents))}]"


@dataclass
class _Stage:
    """The printer of one stage."""

    program: StageProgram
    arrays: dict[str, str]
    tensors: dict[str, Tensor]
    scratch: Scratch
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    starts: dict[int, list[str]] = field(default_factory=dict)  # factor → start of its panel along each dimension

    def __post_init__(self) -> None:
        nest, loops = self.program.nest, self.program.loops
        self.nest, self.stage = nest, nest.stage
        self.variables = {axis.name: f"i{number}" for number, axis in enumerate(self.stage.axes)}
        self.steps = dict(zip(self.program.levels, self.program.tiles, strict=True))
        spatial = [number for number, lp in enumerate(loops) if not nest.dims[lp.dim].is_reduce]
        self.held = spatial[-1] + 1 if spatial else 0  # from this loop inwards the accumulators stay on the stack
        # True if reduce loops of any kind lie outside spatial ones: the printed loops run in sequence, those over units too.
        self.returns = any(nest.dims[lp.dim].is_reduce for lp in loops[: self.held])
        self.panels = [self._panel(s) for s in self.program.staged if s.kind == "panel"]

    @property
    def output(self) -> Tensor:
        """The tensor that the stage writes."""
        return self.stage.output

    def _panel(self, staging: Staging) -> Panel:
        touches = staged_touches(self.nest, staging)
        dims = tuple(d for d, touched in enumerate(touches) if touched)
        tile = self.program.level_tile(staging.level)
        return Panel(staging.operand, copy_depth(self.program, staging), dims, tuple(tile[d] for d in dims))

    def function(self, number: int) -> list[str]:
        """Returns the stage as a function of all arrays and the scratch memory."""
        types = {name: scalar.type_name(t.dtype) for name, t in self.tensors.items()}
        const = {name: "" if name == self.output.name else "const " for name in types}
        arrays = [f"{const[name]}{types[name]} *restrict {self.arrays[name]}" for name in types]
        accumulated = scalar.type_name(self.stage.body.dtype)
        for panel in self.panels:
            room = self.scratch.take(math.prod(panel.extents), self.stage.body.dtype)
            self.print(f"{accumulated} *panel{panel.factor} = {room};")
        if self.stage.reducer is not None and self.returns:
            outputs = math.prod([self.nest.extents[d] for d in self.nest.spatial])
            self.print(f"{accumulated} *partial = {self.scratch.take(outputs, self.stage.body.dtype)};")
        self.walk(0, tuple(("0", str(extent)) for extent in self.nest.extents))
        head = f"static void stage{number}({', '.join([*arrays, 'char *restrict scratch'])})"
        return [head, "{", *self.lines, "}", ""]

    # --- loops --------------------------------------------------------------------------------------------------------

    def walk(self, number: int, bounds: Bounds) -> None:
        """Prints everything from one loop inwards."""
        for panel in self.panels:
            if panel.depth == number:
                self.fill(panel, bounds)
        accumulates = self.stage.reducer is not None
        if accumulates and number == self.held:
            self.pick_up(bounds)
        if number == len(self.program.loops):
            self.compute(bounds)
        else:
            with self.loop(number, bounds) as inside:
                self.walk(number + 1, inside)
        if accumulates and number == self.held:
            self.put_down(bounds)

    @contextmanager
    def loop(self, number: int, bounds: Bounds) -> Iterator[Bounds]:
        """Prints one loop of the program, from tile to tile. An empty reduction has none: its results only get a start value."""
        entered = self.program.loops[number]
        if not entered.trips and self.nest.dims[entered.dim].is_reduce:
            yield bounds
            return
        (start, end), step = bounds[entered.dim], self.steps[entered.level][entered.dim]
        with self.block(f"for (int64_t a{number} = {start}; a{number} < {end}; a{number} += {step})"):
            self.print(f"const int64_t e{number} = a{number} + {step} < {end} ? a{number} + {step} : {end};")
            yield (*bounds[: entered.dim], (f"a{number}", f"e{number}"), *bounds[entered.dim + 1 :])

    @contextmanager
    def points(self, dims: Iterable[int], bounds: Bounds) -> Iterator[None]:
        """Prints loops over the points of the current tile along some dimensions, and sets the axes for each point."""
        dims = tuple(dims)
        if not dims:
            yield
            return
        dim, rest = dims[0], dims[1:]
        with self.block(f"for (int64_t x{dim} = {bounds[dim][0]}; x{dim} < {bounds[dim][1]}; x{dim}++)"):
            within = 1
            for axis in reversed(self.nest.dims[dim].members):
                self.print(f"const int64_t {self.variables[axis.name]} = x{dim} / {within} % {axis.extent};")
                within *= axis.extent
            with self.points(rest, bounds):
                yield

    # --- arithmetic and copies --------------------------------------------------------------------------------------------

    def fill(self, panel: Panel, bounds: Bounds) -> None:
        """Prints the copy of a factor's values into its panel."""
        starts = self.starts[panel.factor] = [start for start, _ in bounds]
        with self.points(panel.dims, bounds):
            self.print(f"{panel.element(starts)} = {self.value(self.nest.factors[panel.factor])};")

    def pick_up(self, bounds: Bounds) -> None:
        """Prints the start of the tile's accumulators: their initial values, or those saved by an earlier visit."""
        dtype, reducer = self.stage.body.dtype, self.stage.reducer
        assert reducer is not None
        room = math.prod([self.program.inner[d] for d in self.nest.spatial])
        self.print(f"{scalar.type_name(dtype)} held[{max(room, 1)}];")
        begun = scalar.identity(reducer, dtype)
        if self.returns:
            first = " && ".join([*(f"{bounds[d][0]} == 0" for d in self.nest.reduce), "1"])
            begun = f"({first}) ? {begun} : {self.partial()}"
        with self.points(self.nest.spatial, bounds):
            self.print(f"{self.accumulator(bounds)} = {begun};")

    def compute(self, bounds: Bounds) -> None:
        """Prints the innermost tile."""
        if self.stage.reducer is None:
            with self.points(self.nest.spatial, bounds):
                self.print(f"{self.result()} = {self.value(self.stage.result)};")
            return
        with self.points((*self.nest.reduce, *self.nest.spatial), bounds):
            held = self.accumulator(bounds)
            self.print(f"{held} = {scalar.combine(self.stage.reducer, held, self.body(), self.stage.body.dtype)};")

    def put_down(self, bounds: Bounds) -> None:
        """Prints the store of the results, or of the partial results so far."""
        with self.points(self.nest.spatial, bounds):
            held = self.accumulator(bounds)
            stored = f"{self.result()} = {self.value(self.stage.result, held)};"
            if self.returns:
                last = " && ".join([*(f"{bounds[d][1]} == {self.nest.extents[d]}" for d in self.nest.reduce), "1"])
                self.print(f"if ({last}) {stored}")
                self.print(f"else {self.partial()} = {held};")
            else:
                self.print(stored)

    def body(self) -> str:
        """Returns the body at the current point: a product whose factors may come from panels."""
        copied = {panel.factor: panel for panel in self.panels}
        if not copied:
            return self.value(self.stage.body)
        values = [
            copied[f].element(self.starts[f]) if f in copied else self.value(factor) for f, factor in enumerate(self.nest.factors)
        ]
        product = values[0]
        for value in values[1:]:
            product = f"({scalar.type_name(self.stage.body.dtype)})({product} * {value})"
        return product

    def value(self, node: Scalar, accumulator: str = "") -> str:
        """Returns a scalar tree at the current point."""
        return scalar.expression(node, self.read, self.place, accumulator)

    def read(self, load: Load) -> str:
        """Returns a load."""
        return scalar.element(self.tensors[load.tensor], self.arrays[load.tensor], [self.place(i) for i in load.index], load.fill)

    def result(self) -> str:
        """Returns the element of the output."""
        return scalar.element(self.output, self.arrays[self.output.name], [self.place(i) for i in self.stage.store])

    def partial(self) -> str:
        """Returns the element that saves the accumulator of the current point between visits."""
        return f"partial[{_address([f'x{d}' for d in self.nest.spatial], [self.nest.extents[d] for d in self.nest.spatial])}]"

    def accumulator(self, bounds: Bounds) -> str:
        """Returns the accumulator of the current point."""
        places = [f"(x{d} - {bounds[d][0]})" for d in self.nest.spatial]
        return f"held[{_address(places, [self.program.inner[d] for d in self.nest.spatial])}]"

    def place(self, index: Affine) -> str:
        """Returns an index at the current point; axes of extent 1 have no loop."""
        terms = [f"{c} * {self.variables[name]}" for name, c in index.terms if self.stage.extents[name] != 1]
        return f"({' + '.join([*terms, str(index.offset)])})"

    # --- text ---------------------------------------------------------------------------------------------------------

    def print(self, line: str) -> None:
        """Adds a line."""
        self.lines.append("    " * self.indent + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Puts lines in braces."""
        self.print(head + " {")
        self.indent += 1
        yield
        self.indent -= 1
        self.print("}")


def _address(places: list[str], extents: list[int]) -> str:
    """Returns the position of a point in a row-major array."""
    address = "0"
    for place, extent in zip(places, extents, strict=True):
        address = f"({address}) * {extent} + {place}"
    return address
