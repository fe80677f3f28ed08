"""Object files to images: machine code in its final layout, which a loader copies, binds to addresses and protects.

An image has three segments, each of whole pages: code (executable), constants (read only, once bound) and data (writable). Code
finds everything in the image by its distance, so only two things depend on where the image lies: slots for addresses of imported
functions, and words that hold addresses of the image's own places. What links here is what LLVM writes for x86-64 as
position-independent code.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from roller.plugin import CodegenError

PAGE = 4096  # bytes; x86-64 has no smaller pages
RUNTIME = "__TVMBackend"  # variables with addresses of functions of TVM's runtime; the function's name follows the underscores
_WRITE, _ALLOC, _EXECUTE = 0x1, 0x2, 0x4  # flags of sections
_UNWINDING = ".eh_frame"  # kernels throw nothing
# Types of relocations: a 64-bit address, 32-bit distances to a place, to a function, and to a slot with an address.
_ADDRESS, _DISTANCE, _FUNCTION, _SLOTS = 1, 2, 4, (9, 41, 42)
_JUMP = b"\xff\x25"  # jmp *distance(%rip)


@dataclass(frozen=True, slots=True)
class Image:
    """Machine code and its layout: `segments` are bytes of code, constants and data; `content` ends where only zeros follow.

    Offsets from the image's begin: `exports` by function; `imports`, slots by the name of a function; `addresses`, pairs of a word
    and the place whose address it holds.
    """

    content: bytes
    segments: tuple[int, int, int]
    exports: Mapping[str, int]
    imports: Mapping[str, tuple[int, ...]]
    addresses: tuple[tuple[int, int], ...]

    def layout(self) -> dict[str, Any]:
        """Returns everything but the content as plain values, with its checksum."""
        return {
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "segments": list(self.segments),
            "exports": dict(self.exports),
            "imports": {name: list(slots) for name, slots in self.imports.items()},
            "addresses": [list(pair) for pair in self.addresses],
        }


def link(obj: bytes, exported: tuple[str, ...]) -> Image:
    """Returns the image of an x86-64 object file; `CodegenError` for anything that an image cannot hold."""
    return _Linker(ELFFile(io.BytesIO(obj)), exported).image()


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


@dataclass
class _Linker:
    """One object file on its way into an image."""

    elf: Any
    exported: tuple[str, ...]
    content: bytearray = field(default_factory=bytearray)
    places: dict[int, int] = field(default_factory=dict)  # offsets of sections by their number
    segments: list[int] = field(default_factory=list)
    slots: dict[Any, int] = field(default_factory=dict)  # by an imported name, or by the offset whose address the slot holds
    stubs: dict[str, int] = field(default_factory=dict)  # code that jumps to an imported function
    imports: dict[str, list[int]] = field(default_factory=dict)
    addresses: list[tuple[int, int]] = field(default_factory=list)

    def image(self) -> Image:
        sections = [(n, s) for n, s in enumerate(self.elf.iter_sections()) if s["sh_flags"] & _ALLOC and s.name != _UNWINDING]
        flags = [(n, s, s["sh_flags"] & (_WRITE | _EXECUTE)) for n, s in sections]
        if any(f == _WRITE | _EXECUTE for _, _, f in flags):
            raise CodegenError("the kernel's machine code has a section that is writable and executable")
        wanted = list(self._relocations())
        self._place([(n, s) for n, s, f in flags if f == _EXECUTE])
        self._stub(wanted)
        self._end()
        self._place([(n, s) for n, s, f in flags if not f])
        self._slot(wanted)
        self._end()
        self._place([(n, s) for n, s, f in flags if f == _WRITE])
        self._end()
        for section, relocation, symbol in wanted:
            self._apply(section, relocation, symbol)
        for symbol in self._symbols():
            if symbol.name.startswith(RUNTIME) and symbol["st_shndx"] in self.places:
                self.imports.setdefault(symbol.name.lstrip("_"), []).append(self._offset(symbol))
        return self._made()

    def _made(self) -> Image:
        defined = {s.name: self._offset(s) for s in self._symbols() if s["st_shndx"] in self.places}
        missing = [name for name in self.exported if name not in defined]
        if missing:
            raise CodegenError(f"the kernel's machine code has no function {', '.join(missing)}")
        return Image(
            bytes(self.content).rstrip(b"\0"),
            (self.segments[0], self.segments[1], self.segments[2]),
            {name: defined[name] for name in self.exported},
            {name: tuple(slots) for name, slots in sorted(self.imports.items())},
            tuple(sorted(self.addresses)),
        )

    def _symbols(self) -> Iterator[Any]:
        yield from self.elf.get_section_by_name(".symtab").iter_symbols()

    def _relocations(self) -> Iterator[tuple[int, Any, Any]]:
        """Yields the relocations of sections that the image holds: section, relocation, symbol."""
        symbols = self.elf.get_section_by_name(".symtab")
        for section in self.elf.iter_sections():
            if isinstance(section, RelocationSection):
                target = self.elf.get_section(section["sh_info"])
                if target["sh_flags"] & _ALLOC and target.name != _UNWINDING:
                    for relocation in section.iter_relocations():
                        yield section["sh_info"], relocation, symbols.get_symbol(relocation["r_info_sym"])

    def _place(self, sections: list[tuple[int, Any]]) -> None:
        for number, section in sections:
            self.content += bytes(-len(self.content) % max(section["sh_addralign"], 1))
            self.places[number] = len(self.content)
            empty = section["sh_type"] == "SHT_NOBITS"
            self.content += bytes(section["sh_size"]) if empty else section.data()

    def _end(self) -> None:
        self.content += bytes(-len(self.content) % PAGE)
        self.segments.append(len(self.content) - sum(self.segments))

    def _stub(self, wanted: list[tuple[int, Any, Any]]) -> None:
        """Makes room for a jump to each imported function: it may lie further away than a call reaches."""
        for _, relocation, symbol in wanted:
            if relocation["r_info_type"] == _FUNCTION and _imported(symbol) and symbol.name not in self.stubs:
                self.content += bytes(-len(self.content) % 8)
                self.stubs[symbol.name] = len(self.content)
                self.content += bytes(8)

    def _slot(self, wanted: list[tuple[int, Any, Any]]) -> None:
        """Makes room for the addresses that code reads from slots, and writes the stubs' jumps."""
        self.content += bytes(-len(self.content) % 8)
        read = [s for _, r, s in wanted if r["r_info_type"] in _SLOTS or s.name in self.stubs]
        for symbol in read:
            key = self._key(symbol)
            if key not in self.slots:
                self.slots[key] = len(self.content)
                self.content += bytes(8)
                if isinstance(key, str):
                    self.imports.setdefault(key, []).append(self.slots[key])
        for name, stub in self.stubs.items():
            self.content[stub : stub + 6] = _JUMP + struct.pack("<i", self.slots[name] - (stub + 6))

    def _key(self, symbol: Any) -> Any:
        """Returns what a slot is for: the name of an imported function, or a symbol of this object."""
        return symbol.name if _imported(symbol) else (symbol["st_shndx"], symbol["st_value"])

    def _offset(self, symbol: Any) -> int:
        section = symbol["st_shndx"]
        if section not in self.places:
            raise CodegenError(f"the kernel's machine code refers to {symbol.name or section!r} outside of itself")
        return int(self.places[section] + symbol["st_value"])

    def _apply(self, section: int, relocation: Any, symbol: Any) -> None:
        kind, addend = relocation["r_info_type"], relocation["r_addend"]
        where = self.places[section] + relocation["r_offset"]
        if kind == _ADDRESS:
            self.addresses.append((where, self._offset(symbol) + addend))
            return
        if kind in _SLOTS:
            target = self.slots[self._key(symbol)]
            if not _imported(symbol) and (target, self._offset(symbol)) not in self.addresses:
                self.addresses.append((target, self._offset(symbol)))
        elif kind == _FUNCTION and _imported(symbol):
            target = self.stubs[symbol.name]
        elif kind in (_DISTANCE, _FUNCTION):
            target = self._offset(symbol)
        else:
            raise CodegenError(f"the kernel's machine code has a relocation of type {kind}, which images do not have")
        struct.pack_into("<i", self.content, where, target + addend - where)


def _imported(symbol: Any) -> bool:
    return bool(symbol["st_shndx"] == "SHN_UNDEF")
