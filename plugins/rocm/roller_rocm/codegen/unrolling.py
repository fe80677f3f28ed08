"""Loop unrolling, decided here: LLVM would unroll loops of known length until registers spill.

A loop's length passes through a function that is opaque to LLVM (`roller_trips` in `helpers.ll`). A loop's name holds its unroll
factor if it has one (`roller.lowering.simt.stage_kernel`).
"""

from __future__ import annotations

import re
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from roller.lowering.tir.builder import Expr, Stmt, bind, index, sequence, variable

SHORT = 8  # max steps of an unnamed loop that LLVM may unroll: copies, which are then in flight together
REPEATED = re.compile(r"unroll(\d+)_")


def unrolled(body: Stmt) -> Stmt:
    """Returns the statement with its loops unrolled by the factors in their names, and no further."""
    match body:
        case tirx.SeqStmt():
            return tirx.SeqStmt([unrolled(part) for part in body.seq])
        case tirx.IfThenElse():
            other = None if body.else_case is None else unrolled(body.else_case)
            return tirx.IfThenElse(body.condition, unrolled(body.then_case), other)
        case tirx.AttrStmt():
            return tirx.AttrStmt(body.node, body.attr_key, body.value, unrolled(body.body))
        case tirx.For():
            return _loop(body, unrolled(body.body))
        case _:
            return body


def _loop(loop: Any, body: Stmt) -> Stmt:
    """Returns a loop around its transformed body."""
    known = loop.kind == ForKind.SERIAL and isinstance(loop.extent, tirx.IntImm)
    found = REPEATED.match(loop.loop_var.name)
    if not known or not int(loop.extent) or (found is None and int(loop.extent) <= SHORT and not _loops(body)):
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)
    trips = int(loop.extent)
    times = min(int(found.group(1)), trips) if found else 1
    whole, rest = divmod(trips, times)
    if times == 1:
        return tirx.For(loop.loop_var, index(0), _hidden(trips), ForKind.SERIAL, body)
    if whole == 1 and not rest:
        return _steps(loop, index(0), trips, body)
    outer = variable(f"{loop.loop_var.name}_outer")
    main = tirx.For(outer, index(0), _hidden(whole), ForKind.SERIAL, _steps(loop, outer * index(times), times, body))
    return sequence([main, _steps(loop, index(whole * times), rest, body) if rest else None])


def _loops(body: Stmt) -> bool:
    """True if a statement contains a loop."""
    match body:
        case tirx.SeqStmt():
            return any(_loops(part) for part in body.seq)
        case tirx.IfThenElse():
            return _loops(body.then_case) or (body.else_case is not None and _loops(body.else_case))
        case tirx.AttrStmt():
            return _loops(body.body)
        case _:
            return isinstance(body, tirx.For)


def _steps(loop: Any, start: Expr, times: int, body: Stmt) -> Stmt:
    """Returns unrolled steps of a loop, `times` of them from `start` on."""
    step = variable(f"{loop.loop_var.name}_step")
    return tirx.For(step, index(0), index(times), ForKind.UNROLLED, bind(loop.loop_var, start + step, body))


def _hidden(trips: int) -> Expr:
    return tirx.call_extern("int32", "roller_trips", index(trips))
