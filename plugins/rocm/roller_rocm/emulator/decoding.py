"""Decoder of assembly into a table of instructions for the emulator's C++ (`emulated_machine.h`)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from roller.plugin import LaunchError
from roller_rocm.toolchain import mnemonics
from roller_rocm.toolchain.assembly import AsmInstruction, AsmKernel
from roller_rocm.toolchain.mnemonics import Meaning

ABSENT, VECTOR, SCALAR, INTEGER, REAL, NOTHING = range(6)
NEG, ABS, HIGH, HIGH_OF_HIGH, NEG_OF_HIGH, SIGNED = 1, 2, 4, 8, 16, 32
SPECIAL, KEEPS_HIGH, PAIRED, CLAMP = 1, 2, 4, 8
WHOLE = 6  # select value of a whole word
ACCUMULATION = 256  # number of the first accumulation register
OPERANDS = 8  # max operands of an instruction
RECORD = struct.Struct("=25i4x" + OPERANDS * "6iqd")

_NAMED = {"vcc": (106, 2), "vcc_lo": (106, 1), "vcc_hi": (107, 1), "exec": (126, 2), "exec_lo": (126, 1), "exec_hi": (127, 1)}
_NAMED |= {"m0": (124, 1), "flat_scratch": (102, 2), "flat_scratch_lo": (102, 1), "flat_scratch_hi": (103, 1)}
_REGISTER = re.compile(r"([vsa])(?:(\d+)|\[(\d+):(\d+)\])(\.[lh])?$")
_INTEGER = re.compile(r"-?(0x[0-9a-f]+|\d+)$", re.IGNORECASE)
_MODIFIER = re.compile(r"\b([a-z]\w*):(\[[^\]]*\]|[\w-]+)")
_FLAG = re.compile(
    r"\b(clamp|glc|slc|dlc|sc0|sc1|nt|gds|offen|row_mirror|row_half_mirror)\b|wave_(?:shl|shr|rol|ror)(?::1)?",
)
_COMMA = re.compile(r",\s*(?![^\[(]*[\])])")
_COUNTER = re.compile(r"(vmcnt|lgkmcnt|expcnt|vscnt)\((\d+)\)")
_SELECTS = {"BYTE_0": 0, "BYTE_1": 1, "BYTE_2": 2, "BYTE_3": 3, "WORD_0": 4, "WORD_1": 5, "DWORD": WHOLE}
_UNUSED = {"UNUSED_PAD": 0, "UNUSED_SEXT": 1, "UNUSED_PRESERVE": 2}
_LANES = (  # as `emulated_machine.h` numbers them, from 1
    *("quad_perm", "row_shl", "row_shr", "row_ror", "wave_shl", "wave_rol", "wave_shr", "wave_ror", "row_mirror"),
    *("row_half_mirror", "row_bcast15", "row_bcast31", "row_share", "row_xmask", "dpp8"),
)
_SILENT = (  # instructions whose operands the emulator ignores
    *("s_nop", "s_clause", "s_delay_alu", "s_setprio", "s_sleep", "s_waitcnt_depctr", "s_sendmsg", "s_code_end"),
    *("s_inst_prefetch", "s_set_inst_prefetch_distance"),
)
_KNOWN = {
    *("offset", "offset0", "offset1", "op_sel", "op_sel_hi", "neg_lo", "neg_hi", "dst_sel", "dst_unused", "src0_sel", "src1_sel"),
    *("row_mask", "bank_mask", "bound_ctrl", "fi", "mul", "div", "row_bcast", *_LANES),
}
# Spellings of operand modifiers.
_CHANGED = (("sext(", ")", SIGNED), ("-", "", NEG), ("neg(", ")", NEG), ("|", "|", ABS), ("abs(", ")", ABS))


class Operand(NamedTuple):
    """A register or a constant, with its modifiers."""

    kind: int
    register: int = 0
    words: int = 0
    mods: int = 0
    select: int = WHOLE
    integer: int = 0
    real: float = 0.0


class Decoded(NamedTuple):
    """A kernel's instructions in the emulator's form, with the max numbers of registers that they name."""

    table: bytes
    instructions: tuple[AsmInstruction, ...]
    vectors: int
    accumulators: int


def decoded(kernel: AsmKernel, opcodes: Callable[[str], int], keeps_high: bool) -> Decoded:
    """Returns the table of a kernel.

    `opcodes`: number of an instruction, negative where the emulator has none. `keeps_high`: 16-bit results leave the upper half of
    their register unchanged (gfx10 and later).
    """
    records, most = [], [1, 0]
    for instruction in kernel.instructions:
        try:
            records.append(_record(instruction, kernel.labels, opcodes, keeps_high, most))
        except (ValueError, KeyError, IndexError) as error:
            said = error.args[0] if error.args else error
            raise LaunchError(f"kernel {kernel.name!r}, line {instruction.line}: {instruction.text!r}: {said}") from error
    room = kernel.directives.get("accum_offset") or kernel.directives.get("next_free_vgpr", ACCUMULATION)
    if most[0] > room:
        raise LaunchError(f"kernel {kernel.name!r} uses v{most[0] - 1}, but takes {room} vector registers")
    return Decoded(b"".join(records), kernel.instructions, *most)


def _record(
    instruction: AsmInstruction, labels: Mapping[str, int], opcodes: Callable[[str], int], keeps_high: bool, most: list[int]
) -> bytes:
    means = mnemonics.meaning(instruction.name)
    name = mnemonics.plain(instruction.name)
    jumps = name.startswith(("s_branch", "s_cbranch"))
    given = _parsed("" if jumps or name in _SILENT or means.name == "s_waitcnt" else instruction.operands)
    modifiers, operands = given.modifiers, list(given.operands)
    target = labels[instruction.operands] if jumps else -1
    saturating = opcodes(f"{name}_clamp") if "clamp" in given.flags else -1  # for integers; others clamp their result
    opcode = opcodes(means.name) if saturating < 0 else saturating
    if opcode < 0:
        raise ValueError("the emulator does not support this instruction")
    if name.startswith("v_cmpx") and len(operands) == 2:
        operands.insert(0, Operand(NOTHING))
    operands = _modified(name, operands, modifiers)
    for operand in operands:
        if operand.kind == VECTOR:
            file = operand.register >= ACCUMULATION
            most[file] = max(most[file], operand.register % ACCUMULATION + operand.words)
    flags = _flags(instruction, name, given, keeps_high) & (~CLAMP if saturating >= 0 else -1)
    offsets = [int(modifiers.get(key, "0"), 0) * means.scale for key in ("offset0", "offset1")]
    if "offset" in modifiers:
        offsets[0] = int(modifiers["offset"], 0)
    row = [opcode, len(operands), flags, target, *_waits(instruction, name, means), *offsets, means.width, means.extra]
    row += [*_lane_controls(given), _SELECTS[modifiers.get("dst_sel", "DWORD")], _UNUSED[modifiers.get("dst_unused", "UNUSED_PAD")]]
    row += [{"": 0, "mul:2": 1, "mul:4": 2, "div:2": 3}[_output_scale(modifiers)], *means.shape, means.unit]
    padded = operands + [Operand(ABSENT)] * (OPERANDS - len(operands))
    fields = [f for o in padded for f in (o.kind, o.register, o.words, o.mods, o.select, 0, o.integer, o.real)]
    return RECORD.pack(*row, *fields)


class _Given(NamedTuple):
    operands: tuple[Operand, ...]
    modifiers: dict[str, str]
    flags: frozenset[str]


@lru_cache(maxsize=20000)
def _parsed(text: str) -> _Given:
    modifiers = dict(_MODIFIER.findall(text))
    unknown = [key for key, value in modifiers.items() if key not in _KNOWN and value != "0"]
    if unknown:
        raise ValueError(f"the emulator does not support {unknown[0]}:{modifiers[unknown[0]]}")
    bare = _MODIFIER.sub("", text)
    flags = frozenset(found.group().partition(":")[0] for found in _FLAG.finditer(bare))
    bare = _FLAG.sub("", bare).strip()
    return _Given(tuple(_operand(part.strip()) for part in _COMMA.split(bare)) if bare else (), modifiers, flags)


@lru_cache(maxsize=20000)
def _operand(text: str) -> Operand:
    mods = 0
    for opening, closing, meant in _CHANGED:
        if text.startswith(opening) and text.endswith(closing) and not (opening == "-" and text[1:2].isdigit()):
            text, mods = text[len(opening) : len(text) - len(closing)], mods | meant
    if found := _REGISTER.match(text):
        file, one, first, last, half = found.groups()
        index, words = (int(one), 1) if one else (int(first), int(last) - int(first) + 1)
        if file == "s":
            return Operand(SCALAR, index, words, mods)
        return Operand(VECTOR, index + (ACCUMULATION if file == "a" else 0), words, mods | (HIGH if half == ".h" else 0))
    if text in _NAMED:
        return Operand(SCALAR, *_NAMED[text], mods)
    if text in ("off", "null"):
        return Operand(NOTHING)
    text = text.removeprefix("lit(").removeprefix("lit64(").removesuffix(")")
    if _INTEGER.match(text):
        return Operand(INTEGER, mods=mods, integer=_wrapped(int(text, 0)))
    return Operand(REAL, mods=mods, real=float(text))


def _wrapped(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _modified(name: str, operands: list[Operand], modifiers: Mapping[str, str]) -> list[Operand]:
    """Returns the operands with the modifiers of the instruction."""
    pairs = name.startswith(("v_pk_", "v_dot", "v_wmma"))
    if name.startswith(("s_movk", "s_cmovk", "s_addk", "s_mulk")) or (name.startswith("s_cmpk") and name.endswith("i32")):
        last = operands[-1]
        operands[-1] = last._replace(integer=(last.integer & 0xFFFF ^ 0x8000) - 0x8000)
    for key, meant, default in (
        ("op_sel", HIGH, 0),
        ("op_sel_hi", HIGH_OF_HIGH, int(pairs)),
        ("neg_lo", NEG, 0),
        ("neg_hi", NEG_OF_HIGH if pairs else ABS, 0),
    ):
        chosen = [int(n) for n in modifiers[key].strip("[]").split(",")] if key in modifiers else [default] * (len(operands) - 1)
        for place, bit in enumerate(chosen):
            at = place + 1 if place + 1 < len(operands) else 0  # one more than there are sources: the result
            if bit and at < len(operands):
                operands[at] = operands[at]._replace(mods=operands[at].mods | meant)
    first = 2 if "_co_" in name else 1  # a carry comes before the sources
    for key, at in (("src0_sel", first), ("src1_sel", first + 1)):
        if key in modifiers:
            operands[at] = operands[at]._replace(select=_SELECTS[modifiers[key]])
    return operands


def _flags(instruction: AsmInstruction, name: str, given: _Given, keeps_high: bool) -> int:
    special = bool(_lane_controls(given)[0]) or any(key in given.modifiers for key in ("src0_sel", "src1_sel", "dst_sel"))
    kept = keeps_high or (mnemonics.KEEPING.fullmatch(name) is not None and "dst_sel" not in given.modifiers)
    return (
        (SPECIAL if special else 0)
        | (KEEPS_HIGH if kept else 0)
        | (PAIRED if instruction.paired else 0)
        | (CLAMP if "clamp" in given.flags else 0)
    )


def _output_scale(modifiers: Mapping[str, str]) -> str:
    return next((f"{key}:{modifiers[key]}" for key in ("mul", "div") if key in modifiers), "")


def _lane_controls(given: _Given) -> Sequence[int]:
    """Returns the data-parallel primitive (DPP) of an instruction.

    Which one, its argument, the rows and banks that write, whether lanes without a source read zero, and whether inactive lanes are
    read.
    """
    modifiers = given.modifiers
    which = next((key for key in (*given.flags, *modifiers) if key in _LANES), "row_bcast" + modifiers.get("row_bcast", ""))
    if which not in _LANES:
        return (0, 0, 0, 0, 0, 0)
    value = modifiers.get(which, "0")
    if value.startswith("["):
        bits = 2 if which == "quad_perm" else 3
        argument = sum(int(n) << bits * place for place, n in enumerate(value.strip("[]").split(",")))
    else:
        argument = int(value, 0)
    masks = [int(modifiers.get(key, "0xf"), 0) for key in ("row_mask", "bank_mask")]
    return (_LANES.index(which) + 1, argument, *masks, "bound_ctrl" in modifiers, modifiers.get("fi", "0") == "1")


def _waits(instruction: AsmInstruction, name: str, means: Meaning) -> tuple[int, int, int]:
    """Returns how many accesses may stay in flight: of vector memory, of local and scalar memory, of stores; -1: any number."""
    if means.name != "s_waitcnt":
        return -1, -1, -1
    left = {key: int(value) for key, value in _COUNTER.findall(instruction.operands)}
    if name != "s_waitcnt":
        left[name.removeprefix("s_waitcnt_")] = int(instruction.operands.rpartition(",")[2], 0)
    elif instruction.operands.strip() == "0":
        left = {"vmcnt": 0, "lgkmcnt": 0}
    if not left:
        raise ValueError("the emulator does not support this wait")
    return left.get("vmcnt", -1), left.get("lgkmcnt", -1), left.get("vscnt", -1)
