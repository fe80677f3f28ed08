"""Tile instructions of x86 (AMX): what an atom's name stands for, as LLVM's intrinsics and in plain LLVM IR.

    tdpbf16ps   AMX-BF16: float32 += sum of products of bfloat16, subnormal numbers being zero
    tdpfp16ps   AMX-FP16: float32 += sum of products of float16
    tdpbssd     AMX-INT8: int32 += sum of products of int8

Sums of floats that are subnormal become zero.

A core has eight tiles of up to 16 rows of 64 bytes. One operand lies in rows of words, 16 of them along the reduction; the other
one has a row for each of these words. The instructions name tiles by number, so that no compiler assigns them. Their meaning in
plain IR is in `roller_cpu.codegen.plain_tiles`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from roller.lowering.simd.context import TileRegisters
from roller.lowering.tir.builder import Expr, Stmt
from roller.plugin import ComputeAtom

TILES, ROWS, ROW_BYTES = 8, 16, 64
INSTRUCTIONS = ("tdpbf16ps", "tdpfp16ps", "tdpbssd")


class Tiles:
    """The instructions of a kernel; it notes those that are used, of which `definitions` are needed."""

    def __init__(self) -> None:
        self._used: dict[str, list[str]] = {}

    def instructions(self) -> TileRegisters:
        """Returns the statements for the lowering."""
        return TileRegisters(self._configure, self._release, self._zero, self._load, self._store, self._multiply)

    def definitions(self) -> list[str]:
        """Returns the LLVM IR of the functions that the statements call."""
        if not self._used:
            return []
        intrinsics = [*_DECLARED, *(f"declare void @llvm.x86.{name}(i8 immarg, i8 immarg, i8 immarg)" for name in INSTRUCTIONS)]
        return [*intrinsics, *(line for lines in self._used.values() for line in lines)]

    def _call(self, name: str, body: str, arguments: str = "", *given: Expr, more: Sequence[str] = ()) -> Stmt:
        self._used[name] = [
            *more,
            f"define linkonce_odr i32 @{name}({arguments}) alwaysinline nounwind {{",
            f"  {body}",
            "  ret i32 0\n}",
        ]
        return tirx.Evaluate(tirx.call_extern("int32", name, *given))

    def _configure(self, shapes: Sequence[tuple[int, int]]) -> Stmt:
        name, data = "roller_tiles_" + "_".join(f"{rows}x{size}" for rows, size in shapes), configuration(shapes)
        literal = "".join([f"\\{byte:02X}" for byte in data])
        constant = f'@{name}_shapes = internal constant [{len(data)} x i8] c"{literal}", align 64'
        return self._call(name, f"call void @llvm.x86.ldtilecfg(ptr @{name}_shapes)", more=(constant,))

    def _release(self) -> Stmt:
        return self._call("roller_tiles_release", "call void @llvm.x86.tilerelease()")

    def _zero(self, tile: int) -> Stmt:
        return self._call(f"roller_tile_zero_{tile}", f"call void @llvm.x86.tilezero(i8 {tile})")

    def _load(self, tile: int, place: Expr, stride: int) -> Stmt:
        return self._moved("load", tile, place, stride)

    def _store(self, tile: int, place: Expr, stride: int) -> Stmt:
        return self._moved("store", tile, place, stride)

    def _moved(self, what: str, tile: int, place: Expr, stride: int) -> Stmt:
        intrinsic = {"load": "tileloadd64", "store": "tilestored64"}[what]
        body = f"call void @llvm.x86.{intrinsic}(i8 {tile}, ptr %p, i64 %s)"
        return self._call(f"roller_tile_{what}_{tile}", body, "ptr %p, i64 %s", place, tirx.IntImm("int64", stride))

    def _multiply(self, atom: ComputeAtom, results: int, rows: int, columns: int) -> Stmt:
        body = f"call void @llvm.x86.{atom.name}(i8 {results}, i8 {rows}, i8 {columns})"
        return self._call(f"roller_{atom.name}_{results}_{rows}_{columns}", body)


_DECLARED = (
    "declare void @llvm.x86.ldtilecfg(ptr)",
    "declare void @llvm.x86.tilerelease()",
    "declare void @llvm.x86.tilezero(i8 immarg)",
    "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
)


def configuration(shapes: Sequence[tuple[int, int]]) -> bytes:
    """Returns the 64 bytes that set each tile's rows and bytes of a row (palette 1 of LDTILECFG)."""
    if len(shapes) > TILES or any(not 0 < rows <= ROWS or not 0 < size <= ROW_BYTES for rows, size in shapes):
        raise ValueError(f"tiles of {shapes}: there are {TILES} of up to {ROWS} rows of {ROW_BYTES} bytes")
    sizes = b"".join(size.to_bytes(2, "little") for _, size in shapes)
    return b"\x01".ljust(16, b"\0") + sizes.ljust(32, b"\0") + bytes(rows for rows, _ in shapes).ljust(16, b"\0")
