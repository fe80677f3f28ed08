"""LLVM IR to artifacts: machine code that loads without a compiler; resources come from its assembly."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import tvm
import tvm_ffi

from roller.plugin import Artifact, CodegenError, HardwareSpec, KernelSource, Later
from roller_cpu.toolchain import entry_points, formats, linking, pins, processors

LINKED = ("x86_64",)  # architectures whose object files `linking` reads
_VECTOR = re.compile(r"%[yz]mm\d|%xmm\d|\bv\d+\.|\bz\d+\.")
_WIDTHS = [re.compile(rf"%{letter}mm\d") for letter in "zyx"]  # of x86, widest first
_FMA = re.compile(r"^\s+(vfn?m(?:add|sub)\d*p[sdh]|fml[as])\b")  # packed only: scalar leftovers do not count
_STACK = re.compile(r"\(%rsp|\[sp\b")  # stack pointer only: aligned vectors have no known offset from the frame pointer
_STORE = re.compile(r"^\s+(?:vmov\S+\s+%[xyz]mm\d+, .*\(|st[rp]\s+[qz]\d|st1)")
_LABEL = re.compile(r"^(\.L\w+):")
_JUMP = re.compile(r"^\s+(?:j\w+|b(?:\.\w+)?|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#\d+,)\s+(\.L\w+)")
_DEBUG = re.compile(r"^\s+\.section\s+\.debug_")
_INSTRUCTION = re.compile(r"^\s+[a-z]")


def build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns the artifact of a source; `CodegenError` where LLVM refuses it or this TVM is not the pinned one."""
    if source.language != formats.IR:
        raise CodegenError(f"the cpu toolchain takes {formats.IR}, not {source.language}")
    text = stable(source.text)
    pins.check()
    check_processor(text)
    name = processor(text) or ""
    launch = {
        **source.launch,
        "entry": source.entry,
        "processor": name,
        "requires": processors.instruction_sets(name, triple(text)),
        "parallel": "TVMBackendParallelLaunch" in text,
        "tiles": "@llvm.x86.ldtilecfg" in text,
    }
    if triple(text).partition("-")[0] in LINKED:
        image = linking.link(object_file(text + entry_points.text(launch, source.entry, name)), entry_points.names(launch))
        kind, data = formats.IMAGE, image.content
        launch["image"] = image.layout()
    else:
        load_module(text)  # raises if the IR does not parse
        kind, data = formats.IR, text.encode()
    return Artifact(
        kind,
        data,
        launch,
        Later(lambda: resources(assembly(text))),
        spec.device,
        spec,
        versions={package: pins.installed(package) or "" for package in pins.PINNED},
        source=text,
    )


def load_module(text: str) -> Any:
    """Returns the TVM module of LLVM IR; `CodegenError` with LLVM's message where it does not parse."""
    pins.check()
    check_processor(text)
    load = tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")
    # An anonymous file: it needs no cleanup, and no other process can replace it.
    descriptor = os.memfd_create("kernel.ll")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(text.encode())
        return load(f"/proc/self/fd/{descriptor}", "ll")
    except (RuntimeError, ValueError) as error:
        raise CodegenError("LLVM refuses the kernel's IR", str(error)) from error
    finally:
        os.close(descriptor)


def object_file(text: str) -> bytes:
    """Returns LLVM IR as an object file; `CodegenError` with LLVM's message where it does not parse."""
    module = load_module(text)
    descriptor = os.memfd_create("kernel.o")
    with os.fdopen(descriptor, "rb") as file:
        module.write_to_file(f"/proc/self/fd/{descriptor}", "o")
        return file.read()


def stable(text: str) -> str:
    """Returns the IR with numbers for the memory addresses by which TVM names aliases: the same kernel, the same text."""
    numbers: dict[str, int] = {}
    return re.sub(r'(?<=!")0x[0-9a-f]+', lambda found: f"buffer{numbers.setdefault(found.group(), len(numbers))}", text)


def processor(text: str) -> str | None:
    """Returns the processor that the IR is for, by LLVM's name."""
    found = re.search(r'"target-cpu"="([^"]+)"', text)
    return found.group(1) if found else None


def retargeted(text: str, name: str) -> str:
    """Returns the IR for another processor of its platform."""
    before = processor(text)
    text = text.replace(f'"target-cpu"="{before}"', f'"target-cpu"="{name}"')
    return text.replace(f"\\22mcpu\\22:\\22{before}\\22", f"\\22mcpu\\22:\\22{name}\\22")


def host_triple() -> str:
    """Returns the platform of this process, by LLVM's name."""
    return str(tvm_ffi.get_global_func("tvm.codegen.llvm.GetProcessTriple")())


def triple(text: str) -> str:
    """Returns the platform that the IR is for, by LLVM's name; an empty string where it names none."""
    found = re.search(r'^target triple = "([^"]+)"', text, re.MULTILINE)
    return found.group(1) if found else ""


def check_processor(text: str) -> None:
    """Raises `CodegenError` for a processor that is unknown to LLVM: compiling for it would abort the process."""
    name, platform = processor(text), triple(text)
    if name is None or not platform:
        raise CodegenError("the IR does not name its processor")
    if name not in processors.known_processors(platform):
        raise CodegenError(f"LLVM has no processor {name!r} for {platform}")


def assembly(text: str) -> str:
    """Returns the assembly of LLVM IR, without debugging directives."""
    lines = load_module(text).inspect_source("s").splitlines()
    noise = re.compile(r"^\s+\.(?:cfi_|loc|file|section\s+\.debug)|^\.L(?:tmp|func_)\w*:")
    return "\n".join(line for line in _before_debug(lines) if not noise.match(line)) + "\n"


def _before_debug(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if _DEBUG.match(line):
            return
        yield line


def resources(text: str) -> dict[str, int]:
    """Returns counts from assembly: instructions, packed multiply-adds, and vector stores and spills of the hottest loop.

    Spills are stack accesses of vectors as wide as those of the loop's arithmetic (narrower ones are addresses). The hottest loop
    is the innermost one with the most multiply-adds, else with the most vector instructions.
    """
    lines = text.splitlines()
    hot = max(_innermost_loops(lines), key=_heat, default=[])
    return {
        "instructions": sum(1 for line in lines if _INSTRUCTION.match(line)),
        "vector_fma": sum(1 for line in lines if _FMA.match(line)),
        "hot_loop_fma": sum(1 for line in hot if _FMA.match(line)),
        "hot_loop_stores": sum(1 for line in hot if _STORE.match(line)),
        "spills": sum(1 for line in hot if _STACK.search(line) and _widest(hot).search(line)),
    }


def _widest(loop: list[str]) -> re.Pattern[str]:
    """Returns the pattern of the widest vector registers in a loop."""
    return next((kind for kind in _WIDTHS if any(kind.search(line) for line in loop)), _VECTOR)


def _heat(loop: list[str]) -> tuple[int, int]:
    return sum(1 for line in loop if _FMA.match(line)), sum(1 for line in loop if _VECTOR.search(line))


def _innermost_loops(lines: list[str]) -> list[list[str]]:
    """Returns the bodies of backward jumps that contain no other backward jump."""
    places: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        label, jump = _LABEL.match(line), _JUMP.match(line)
        if label:
            places[label.group(1)] = number
        elif jump and jump.group(1) in places:
            start = places[jump.group(1)]
            if not any(start <= inner for inner, _ in spans):
                spans.append((start, number))
    return [lines[start : end + 1] for start, end in spans]


@cache
def data_layout(triple: str) -> str:
    """Returns LLVM's data layout for a triple, which every module must name."""
    layout = re.search(r'^target datalayout = "([^"]+)"', _empty_module(triple), re.MULTILINE)
    if layout is None:
        raise CodegenError(f"LLVM gives no data layout for {triple}")
    return layout.group(1)


def _empty_module(triple: str) -> str:
    nothing = tvm.IRModule({"nothing": tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("global_symbol", "nothing")})
    return str(tvm.compile(nothing, target=tvm.target.Target({"kind": "llvm", "mtriple": triple})).mod.inspect_source("ll"))
