"""CUDA C++ to cubin without a GPU or a driver: by NVRTC from PyPI, or by the compiler that `ROLLER_CUDA_COMPILER` names.

The actual resources of every kernel (registers, stack, static shared memory) come from the cubin. The share of spills in the stack
comes from the assembler's log.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from roller.plugin import Artifact, CodegenError, DeviceUnavailableError, HardwareSpec, KernelSource
from roller_cuda.toolchain import cubin, occupancy

FORMAT = "cubin"
COMPILER = "ROLLER_CUDA_COMPILER"
# Variables that change which compiler and headers are found, or what they do.
VARIABLES = (
    *("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CPATH", "CPLUS_INCLUDE_PATH"),
    *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"),
)
NO_WORDS = f"it left no cubin and said nothing; {COMPILER} must name an nvcc"
ANSWER_SECONDS = 20  # time limit for a compiler to list its architectures
INSTALL = "pip install 'roller-compiler[cuda]' (in a copy of the repository: '.[cuda]')"
HEADERS = ("cuda_runtime", "cuda_cccl")  # folders of the toolkit's header wheels
# Options of the arithmetic, explicit though they are the default (`docs/numerics.md`). No line tables: they contain the folders of
# the compilation.
ARITHMETIC = ("-fmad=true", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
FLAGS = ("-std=c++17", "--ptxas-options=-v", *ARITHMETIC)
AS_LAUNCHED = "#define ROLLER_REGISTERS_AS_LAUNCHED"  # for `hopper.cuh`: registers are not reallocated
HANDED = re.compile(r"roller_registers_(more|fewer)<(\d+)>\(\);")  # from producer lanes to consumer lanes
BLOCKS = re.compile(r"__launch_bounds__\((\d+), \d+\)")
FILLING = 128  # producer lanes of a block, where registers are reallocated
_FUNCTION = re.compile(r"(?:Compiling entry function|Function properties for) '?(\w+)'?")
_FIELDS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "spilled_bytes": re.compile(r"(\d+) bytes spill stores"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "barriers": re.compile(r"used (\d+) barriers"),
}
# Warnings about warp-group products that the assembler serialises, and about registers that it does not reallocate: the kernel is
# then several times as slow.
_ADDED = re.compile(r"\(C75\d\d\) (?:Potential Performance Loss|.*setmaxnreg).*\bfunction '(\w+)'")


def build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns the cubin of a source for the chip's architecture; `CodegenError` with the offending lines where it fails."""
    if source.language != "cuda-c++":
        raise CodegenError(f"the cuda toolchain takes cuda-c++, not {source.language}")
    arch = architecture(spec)
    kernels = source.launch["kernels"]
    text, data, found = _best(spec, source.text, kernels, arch) if kernels else (source.text, b"", {})
    for kernel in kernels:
        found.update(_taken(spec, kernel, found))
    launch = {**source.launch, "kernels": [_carved(spec, kernel, found) for kernel in kernels], "text": text, "arch": arch}
    return Artifact(FORMAT, data, launch, found, spec.device, spec, versions=_versions())


def architecture(spec: HardwareSpec) -> str:
    """Returns the compiler's target for a spec.

    `CodegenError` if the spec names none, or one of another compute capability, whose features kernels use.
    """
    arch, capability = str(spec.options.get("arch", "")), [str(n) for n in spec.options.get("compute_capability", ())]
    if not re.fullmatch(r"sm_\d+[a-z]?", arch):
        raise CodegenError(f"{spec.device}:{spec.chip}: options.arch is {arch!r}, not an architecture such as sm_80")
    if arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz") != "".join(capability):
        said = f"options.arch says {arch}, options.compute_capability {'.'.join(capability)}"
        raise CodegenError(f"{spec.device}:{spec.chip}: {said}; kernels are compiled for the one and use what the other has")
    return arch


def _compiled(text: str, arch: str) -> tuple[bytes, dict[str, int]]:
    data, log = compiled(text, arch)
    return data, {**resources(log), **cubin.resources(data)}


def _best(spec: HardwareSpec, text: str, kernels: Sequence[Mapping[str, Any]], arch: str) -> tuple[str, bytes, dict[str, int]]:
    """Returns the text, its cubin and its resources: with its minBlocksPerSM, or without them where that result falls short."""
    first = text, *_compiled(text, arch)
    alone = BLOCKS.sub(r"__launch_bounds__(\1)", text)
    if alone != text and (not any(_short(spec, kernels, first[2])) or _exhausted(spec, kernels, first[2])):
        return first
    found = [first if alone == text else (alone, *_compiled(alone, arch))]
    if not _enough(alone, kernels, found[0][2]):
        alone = f"{AS_LAUNCHED}\n{alone}"
        found = [(alone, *_compiled(alone, arch))]
    bounded = _bounded(spec, alone, kernels, found[0][2])
    if bounded != alone:
        other = first if bounded == text else (bounded, *_compiled(bounded, arch))
        found += [other] if _enough(bounded, kernels, other[2]) else []
    if text not in (alone, bounded) and _enough(text, kernels, first[2]):
        found.append(first)
    return min(found, key=lambda each: _short(spec, kernels, each[2]))


def _exhausted(spec: HardwareSpec, kernels: Sequence[Mapping[str, Any]], found: Mapping[str, int]) -> bool:
    """True if a kernel spills with all registers that its threads may have: to drop minBlocksPerSM is then of no use."""
    return any(found.get(f"{k['name']}.spilled_bytes") and not _registers_left(spec, k, found) for k in kernels)


def _registers_left(spec: HardwareSpec, kernel: Mapping[str, Any], found: Mapping[str, int]) -> bool:
    return found[f"{kernel['name']}.registers"] <= occupancy.limit(spec, kernel["threads"]) - occupancy.GRANULE


def _bounded(spec: HardwareSpec, text: str, kernels: Sequence[Mapping[str, Any]], found: Mapping[str, int]) -> str:
    """Returns the text with a minBlocksPerSM for each kernel whose registers the assembler chose badly without one."""
    for kernel in kernels:
        text = saying(text, kernel["name"], kernel["threads"], _least_blocks(spec, kernel, found))
    return text


def saying(text: str, name: str, threads: int, blocks: int) -> str:
    """Returns the text with minBlocksPerSM in the `__launch_bounds__` of a kernel of `threads` threads; 0: without it."""
    bounds = f"__launch_bounds__({threads}, {blocks})" if blocks else f"__launch_bounds__({threads})"
    return text.replace(f"__launch_bounds__({threads}) {name}(", f"{bounds} {name}(")


def _least_blocks(spec: HardwareSpec, kernel: Mapping[str, Any], found: Mapping[str, int]) -> int:
    """Returns a kernel's minBlocksPerSM; 0 if it needs none.

    One where the assembler spills a few bytes for one more block, though registers are left. The predicted number where it takes a
    few registers more than leave room for these.
    """
    name = kernel["name"]
    if found.get(f"{name}.spilled_bytes"):
        return int(_registers_left(spec, kernel, found))
    return _promised(spec, kernel) if _missing(spec, kernel, found) else 0


def _short(spec: HardwareSpec, kernels: Sequence[Mapping[str, Any]], found: Mapping[str, int]) -> tuple[int, int, int]:
    """Returns the defects of binaries, the worst first: bytes spilled, products serialised, blocks without room."""
    spilled, waits = (sum(n for name, n in found.items() if name.endswith(end)) for end in (".spilled_bytes", ".added_waits"))
    return spilled, waits, sum(_missing(spec, kernel, found) for kernel in kernels)


def _missing(spec: HardwareSpec, kernel: Mapping[str, Any], found: Mapping[str, int]) -> int:
    """Returns the predicted blocks per multiprocessor for which the kernel's registers leave no room."""
    registers = found.get(f"{kernel['name']}.registers")
    return 0 if registers is None else max(0, _promised(spec, kernel) - _blocks(spec, kernel, registers))


def _promised(spec: HardwareSpec, kernel: Mapping[str, Any]) -> int:
    """Returns the blocks per multiprocessor by the predicted registers, at most those of the launch; 0 without a prediction."""
    if "predicted_registers" not in kernel:
        return 0
    each = -(-int(kernel["blocks"]) // spec.unit.count)
    return min(_blocks(spec, kernel, kernel["predicted_registers"]), each)


def _blocks(spec: HardwareSpec, kernel: Mapping[str, Any], registers: int) -> int:
    return occupancy.resident_blocks(spec, kernel["threads"], registers, kernel["shared_bytes"])


def _enough(text: str, kernels: Sequence[Mapping[str, Any]], found: Mapping[str, int]) -> bool:
    """True unless threads would wait for more registers than their block was launched with.

    A kernel that turns out to need few registers has none to reallocate, and no need to.
    """
    for kernel in kernels:
        handed = {word: int(count) for word, count in HANDED.findall(_body(text, kernel["name"]))}
        if handed:
            wanted = (kernel["threads"] - FILLING) * handed["more"] + FILLING * handed["fewer"]
            if wanted > kernel["threads"] * found[f"{kernel['name']}.registers"]:
                return False
    return True


def _body(text: str, name: str) -> str:
    """Returns the text of one kernel."""
    start = text.rindex(f" {name}(")
    following = text.find('extern "C"', start)
    return text[start:] if following < 0 else text[start:following]


def _taken(spec: HardwareSpec, kernel: Mapping[str, Any], found: Mapping[str, int]) -> dict[str, int]:
    """Returns a kernel's launch sizes, the occupancy that follows from its registers, and the predicted registers."""
    name, registers = kernel["name"], found.get(f"{kernel['name']}.registers")
    taken = {f"{name}.{what}": kernel[what] for what in ("blocks", "threads", "shared_bytes") if what in kernel}
    if "copies" in kernel:
        taken[f"{kernel['stage']}.copies"] = kernel["copies"]
    if registers is None:
        return taken
    blocks = _blocks(spec, kernel, registers)
    taken[f"{name}.resident_blocks"] = blocks
    if "stage" in kernel:
        taken[f"{kernel['stage']}.resident_tiles"] = blocks
    if "predicted_registers" in kernel:
        taken[f"{name}.predicted_registers"] = kernel["predicted_registers"]
    return taken


def _carved(spec: HardwareSpec, kernel: Mapping[str, Any], found: Mapping[str, int]) -> Mapping[str, Any]:
    """Returns a kernel's launch with its preferred share of shared memory; the rest is left to the L1 cache.

    The share has room for all blocks that a multiprocessor gets. Without it the driver guesses, and blocks wait that would fit.
    """
    blocks = found.get(f"{kernel['name']}.resident_blocks")
    if blocks is None:
        return kernel
    together = min(blocks, -(-int(kernel["blocks"]) // spec.unit.count))
    return {**kernel, "carveout_percent": occupancy.carveout_percent(spec, together, int(kernel["shared_bytes"]))}


def resources(log: str) -> dict[str, int]:
    """Returns the assembler's numbers for each kernel: "<kernel>.registers" and so on."""
    found: dict[str, int] = {}
    name = ""
    for line in log.splitlines():
        function = _FUNCTION.search(line)
        name = function.group(1) if function else name
        for field, pattern in _FIELDS.items():
            value = pattern.search(line)
            if value and name:
                found[f"{name}.{field}"] = int(value.group(1))
    for name in _ADDED.findall(log):
        found[f"{name}.added_waits"] = found.get(f"{name}.added_waits", 0) + 1
    return found


def compiled(text: str, arch: str) -> tuple[bytes, str]:
    """Returns the cubin of a text, and the compiler's log; the same compiler is asked once."""
    return compiled_by(os.environ.get(COMPILER), *(os.environ.get(name, "") for name in VARIABLES), text=text, arch=arch)


@cache
def compiled_by(chosen: str | None, *_: str, text: str, arch: str) -> tuple[bytes, str]:
    """Returns the same by a compiler of this name (None: NVRTC, else an nvcc on PATH), with these variables set."""
    lacking = _lacking(arch)
    if lacking is not None:
        raise CodegenError(lacking)
    if chosen:
        return _with_command(chosen, text, arch)
    if has_bindings():
        return _with_nvrtc(text, arch)
    found = shutil.which("nvcc")
    if found is None:
        raise DeviceUnavailableError(f"no CUDA compiler: {INSTALL}, or name an nvcc in {COMPILER}")
    return _with_command(found, text, arch)


def build_problem(spec: HardwareSpec) -> str | None:
    """Returns why this machine cannot compile kernels for a chip; None if it can."""
    lacking = problems()
    return lacking[0] if lacking else _lacking(architecture(spec))


def _lacking(arch: str) -> str | None:
    compiler, known = _architectures(os.environ.get(COMPILER))
    if not known or arch.rstrip("af") in known:
        return None
    return f"{compiler} does not compile for {arch}, only for {', '.join(known)}; name an nvcc that does in {COMPILER}"


@cache
def _architectures(named: str | None) -> tuple[str, tuple[str, ...]]:
    """Returns the compiler in use and its architectures; none where it does not list them."""
    if not named and has_bindings():
        nvrtc = _nvrtc()
        return "this NVRTC", tuple(f"sm_{n}" for n in _ask(nvrtc, nvrtc.nvrtcGetSupportedArchs()))
    command = named or shutil.which("nvcc") or "nvcc"
    try:
        done = subprocess.run([command, "--list-gpu-code"], capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return command, ()
    return command, tuple(re.findall(r"^sm_\d+$", done.stdout, re.MULTILINE))


def problems() -> tuple[str, ...]:
    """Returns what keeps this machine from compiling."""
    named = os.environ.get(COMPILER)
    if named and shutil.which(named) is None:
        return (f"{COMPILER} names {named!r}, which is no program",)
    try:
        if not named and has_bindings():
            _nvrtc()
        elif not named and shutil.which("nvcc") is None:
            return (f"no CUDA compiler: {INSTALL}",)
    except DeviceUnavailableError as error:
        return (str(error),)
    return ()


# --- NVRTC -----------------------------------------------------------------------------------------------------------


def has_bindings() -> bool:
    """Returns whether cuda-bindings are installed; NVRTC's library is another package."""
    return util.find_spec("cuda") is not None and util.find_spec("cuda.bindings") is not None


def _nvrtc() -> Any:
    """Returns NVRTC's functions; `DeviceUnavailableError` without its library, which the bindings do not include."""
    from cuda.bindings import nvrtc  # noqa: PLC0415  (an extra: the CPU device needs none of it)

    try:
        nvrtc.nvrtcVersion()  # the first call loads the library
    except (RuntimeError, OSError) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise DeviceUnavailableError(f"no NVRTC library: {INSTALL}, or name an nvcc in {COMPILER} ({reason})") from error
    return nvrtc


def _with_nvrtc(text: str, arch: str) -> tuple[bytes, str]:
    nvrtc = _nvrtc()
    program = _ask(nvrtc, nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}", *FLAGS, *(f"--include-path={folder}" for folder in include_folders())]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = b" " * _ask(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
        _ask(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
        words = log.rstrip(b"\0 ").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise refused("NVRTC", words, text)
        data = b" " * _ask(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        _ask(nvrtc, nvrtc.nvrtcGetCUBIN(program, data))
        return data, words
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _ask(nvrtc: Any, answer: Sequence[Any]) -> Any:
    """Returns the value of a call; `CodegenError` if it failed."""
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CodegenError(f"NVRTC: {status.name}")
    return values[-1] if values else None


def include_folders() -> tuple[str, ...]:
    """Returns the folders of the toolkit's headers in PyPI's wheels."""
    found = util.find_spec("nvidia")
    places = found.submodule_search_locations if found is not None else None
    folders = [Path(place) / name / "include" for place in places or () for name in HEADERS]
    return tuple(str(folder) for folder in folders if folder.is_dir())


# --- a compiler of the user's own ------------------------------------------------------------------------------------


def _with_command(command: str, text: str, arch: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="roller-cuda-") as folder:
        source, binary = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        source.write_text(text, encoding="utf-8")
        call = [command, "-cubin", f"-arch={arch}", *FLAGS, "-o", str(binary), str(source)]
        try:
            done = subprocess.run(call, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CodegenError(f"{command}: {error.strerror or error}; {COMPILER} must name an nvcc") from error
        log = (done.stdout + done.stderr).replace(str(source), "kernel.cu")
        if done.returncode or not binary.is_file():
            raise refused(command, log, text)
        return binary.read_bytes(), log


def refused(compiler: str, log: str, text: str) -> CodegenError:
    """Returns an error with the compiler's complaints, each with its source line."""
    lines, shown = text.splitlines(), []
    for complaint in _complaints(log.splitlines()):
        place = re.search(r"kernel\.cu[(:](\d+)", complaint)
        shown.append(complaint)
        if place and int(place.group(1)) <= len(lines):
            shown.append(f"    {lines[int(place.group(1)) - 1].strip()}")
    return CodegenError(
        "\n".join([f"{compiler} refused the kernel:", *shown[:20]] if shown else [f"{compiler} failed: {log.strip() or NO_WORDS}"])
    )


def _complaints(lines: Iterable[str]) -> list[str]:
    return [line.strip() for line in lines if "error" in line and "detected in" not in line]


def _versions() -> Mapping[str, str]:
    found = {}
    for package in ("apache-tvm", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
