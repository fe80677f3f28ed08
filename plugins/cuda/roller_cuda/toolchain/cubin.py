"""Contents of cubins: registers, stack and static shared memory of kernels, and the addresses of their functions.

A cubin is an ELF file. Beside the code, sections `.nv.info` hold attributes: a byte for the form, one for the attribute, two for a
value or for the length of the data that follows. The meaning of attributes is taken from the output of the toolkit's own
`nvdisasm`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roller.plugin import CodegenError

REGISTERS, FRAME, THREADS_MAX = 0x2F, 0x11, 0x05  # EIATTR_REGCOUNT, EIATTR_FRAME_SIZE, EIATTR_MAX_THREADS
SIZED = 4  # the form of attributes whose two bytes are a length
FUNCTION, GLOBAL_TEXT = 2, ".text."
FLAGS_AT = 0x30  # of an ELF header: e_flags, which name the architecture twice
ARCHITECTURE = 0x00FF00FF
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True, slots=True)
class BinaryKernel:
    """One kernel of a cubin.

    `registers`: of each thread; `stack_bytes`: local memory of each thread, spills included; `shared_bytes`: static, without what a
    launch adds; `inside`: functions in the kernel's section beside itself, such as the toolkit's division, by name with first
    address and the one after the last.
    """

    name: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    threads_max: int | None
    code_bytes: int
    inside: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    info: int
    link: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    kind: int
    section: int
    at: int
    size: int


def kernels(data: bytes) -> dict[str, BinaryKernel]:
    """Returns the kernels of a cubin by name; `CodegenError` where the bytes are no cubin."""
    try:
        sections = _sections(data)
        symbols = _symbols(data, sections)
        return {s.name.removeprefix(GLOBAL_TEXT): _kernel(data, s, sections, symbols) for s in sections if _is_code(s)}
    except (struct.error, IndexError, KeyError, ValueError, OverflowError) as error:
        raise CodegenError(f"not an intact cubin: {error}") from error


def code_of(data: bytes, kernel: str) -> bytes:
    """Returns the machine code of one kernel; `KeyError` where there is none of that name."""
    found = {s.name: s for s in _sections(data) if _is_code(s)}[GLOBAL_TEXT + kernel]
    return data[found.offset : found.offset + found.size]


def resources(data: bytes) -> dict[str, int]:
    """Returns "<kernel>.registers", "<kernel>.stack_bytes" and "<kernel>.static_shared_bytes" of each kernel, from the cubin."""
    found = {}
    for name, kernel in kernels(data).items():
        found[f"{name}.registers"] = kernel.registers
        found[f"{name}.stack_bytes"] = kernel.stack_bytes
        found[f"{name}.static_shared_bytes"] = kernel.shared_bytes
    return found


def architecture(data: bytes) -> int:
    """Returns the compute capability that a cubin is for, as 80 for 8.0."""
    return int(struct.unpack_from("<I", data, FLAGS_AT)[0]) & 0xFF


def said_to_be(data: bytes, capability: int) -> bytes:
    """Returns the cubin under another compute capability, for tools that dropped its own but still decode its instructions."""
    (flags,) = struct.unpack_from("<I", data, FLAGS_AT)
    changed = (flags & ~ARCHITECTURE) | capability << 16 | capability
    return data[:FLAGS_AT] + struct.pack("<I", changed) + data[FLAGS_AT + 4 :]


def _is_code(section: _Section) -> bool:
    return section.name.startswith(GLOBAL_TEXT) and section.size > 0


def _sections(data: bytes) -> list[_Section]:
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no ELF file of 64 bits")
    _, _, _, _, _, _, start, _, _, _, _, size, count, names = _HEADER.unpack_from(data)
    raw = [_SECTION.unpack_from(data, start + n * size) for n in range(count)]
    text = raw[names][4]
    return [_Section(_string(data, text + r[0]), r[1], r[4], r[5], r[7], r[6]) for r in raw]


def _symbols(data: bytes, sections: list[_Section]) -> list[_Symbol]:
    table = next((s for s in sections if s.name == ".symtab"), None)
    if table is None:
        raise ValueError("no symbols")
    text = sections[table.link].offset
    raw = [_SYMBOL.unpack_from(data, table.offset + n) for n in range(0, table.size, _SYMBOL.size)]
    return [_Symbol(_string(data, text + r[0]), r[1] & 0xF, r[3], r[4], r[5]) for r in raw]


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _kernel(data: bytes, code: _Section, sections: list[_Section], symbols: list[_Symbol]) -> BinaryKernel:
    name, number = code.name.removeprefix(GLOBAL_TEXT), sections.index(code)
    own = [s.name if s.kind == FUNCTION else "" for s in symbols].index(name)
    everywhere = [(a, p) for s in sections if s.name == ".nv.info" for a, p in _attributes(data, s)]
    here = dict(pair for s in sections if s.name == f".nv.info.{name}" for pair in _attributes(data, s))
    of_symbol = {a: struct.unpack("<2I", p)[1] for a, p in everywhere if len(p) == 8 and struct.unpack("<2I", p)[0] == own}
    inside = {
        s.name: (s.at, s.at + s.size) for s in symbols if s.section == number and s.kind == FUNCTION and s.name != name and s.size
    }
    shared = sum(s.size for s in sections if re.fullmatch(rf"\.nv\.shared\.{re.escape(name)}", s.name))
    limit = here.get(THREADS_MAX)
    threads = None if limit is None else struct.unpack("<3I", limit)[0]
    return BinaryKernel(name, of_symbol[REGISTERS], of_symbol.get(FRAME, 0), shared, threads, code.size, inside)


def _attributes(data: bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    at, end = section.offset, section.offset + section.size
    while at < end:
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == SIZED:
            yield attribute, data[at : at + value]
            at += value
