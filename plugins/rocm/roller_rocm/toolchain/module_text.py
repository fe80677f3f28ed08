"""Preparation of TVM's module text for the compiler: only functions that kernels need, and the attributes of each kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from roller.lowering.simt.stage_kernel import GridKernel
from roller.plugin import HardwareSpec

OWN = 1000  # number of the first attributes that are not TVM's
ALONE = "1,1"  # waves of a SIMD that promise nothing beyond a workgroup's own
TRIPLE = "amdgcn-amd-amdhsa"  # TVM's triple has an environment that ROCm's own code objects do not name
_TRIPLE = re.compile(r'^target triple = ".*"$', re.MULTILINE)
_WAVES = re.compile(r' "amdgpu-waves-per-eu"="([^"]*)"')
_FRUGAL = ' "amdgpu-sched-strategy"="iterative-minreg"'
_BLOCK = re.compile(r"^define .*?^}\n", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"@([\w.$]+)\(")
_KERNEL = re.compile(r"^define .*?amdgpu_kernel void @(\w+)\((.*)\)", re.MULTILINE)
_HALVED = re.compile(r"^(  %[\w.]+ = fptrunc (?:[a-z]+ )*)(float|<\d+ x float>) (%[\w.]+) to ((?:<\d+ x )?half>?.*)$", re.MULTILINE)
_ADDRESS = re.compile(r'(?<=!")0x[0-9a-f]+')


def orders(text: str) -> dict[str, list[str]]:
    """Returns for each kernel the names of its arguments, in the order of the text."""
    return {name: re.findall(r"%([\w.]+)(?:,|$)", taken) for name, taken in _KERNEL.findall(text)}


def settled(text: str, spec: HardwareSpec, kernels: Sequence[GridKernel], waves: Mapping[str, int]) -> str:
    """Returns the text for the compiler; `waves`: for each kernel the waves of a SIMD that should fit at a time."""
    text = _rounded_first(_TRIPLE.sub(f'target triple = "{TRIPLE}"', _without_strays(_stable(text))))
    for number, kernel in enumerate(kernels):
        text = _promised(text, f"{kernel.name}_kernel", OWN + number, kernel.threads, waves.get(kernel.name))
    return _targeted(text, str(spec.options["arch"]))


def _promised(text: str, name: str, number: int, threads: int, waves: int | None) -> str:
    """Returns the text with a kernel's own attributes: its workgroup size, and the waves that should fit by its registers."""
    found = re.search(rf"^define .*amdgpu_kernel void @{name}\(.*\).* #(\d+) ", text, re.MULTILINE)
    assert found is not None, f"the text has no kernel {name!r}"
    start, end = found.span(1)
    shared = re.search(rf"^attributes #{found.group(1)} = \{{ (.*) \}}$", text, re.MULTILINE)
    assert shared is not None, "a kernel has attributes"
    said = re.sub(r'"amdgpu-flat-work-group-size"="[^"]*" ?|"uniform-work-group-size"="[^"]*" ?', "", shared.group(1)).rstrip()
    own = [f'"amdgpu-flat-work-group-size"="{threads},{threads}"', '"uniform-work-group-size"="true"']
    own += [] if waves is None else [f'"amdgpu-waves-per-eu"="{waves},{waves}"']
    return f"{text[:start]}{number}{text[end:]}\nattributes #{number} = {{ {said} {' '.join(own)} }}\n"


def roomier(text: str) -> list[str]:
    """Returns the texts to try where kernels spill, in this order.

    The first is the same text without promises of room for waves other than a kernel's own. The second also schedules stages for
    the fewest registers. Fewer loads are then in flight at a time, so it comes last.
    """
    promised = _WAVES.findall(text)
    free = [_WAVES.sub("", text)] if any(waves != ALONE for waves in promised) else []
    return [*free, _WAVES.sub(_FRUGAL, text)] if promised else []


def _stable(text: str) -> str:
    """Returns the text with numbers for the memory addresses by which TVM names aliases: the same program, the same text."""
    numbers: dict[str, int] = {}
    return _ADDRESS.sub(lambda found: f"buffer{numbers.setdefault(found.group(), len(numbers))}", text)


def _rounded_first(text: str) -> str:
    """Returns the text where sums are rounded to float32 before they become fp16.

    LLVM may do both in one instruction (`v_fma_mixlo_f16`), which rounds once, for some elements of a tile and not for others.
    Where tiles overlap, the last store would decide the last bit.
    """

    def first(found: re.Match[str]) -> str:
        start, dtype, value, rest = found.groups()
        name = f"%rounded.{found.start()}"
        return f'  {name} = call {dtype} asm "", "=v,0"({dtype} {value})\n{start}{dtype} {name} to {rest}'

    return _HALVED.sub(first, text)


def _without_strays(text: str) -> str:
    """Returns the text without uncalled functions: TVM adds conversions of half types to modules, and inlined functions stay."""
    blocks = {_defined(block): block for block in _BLOCK.findall(text)}
    wanted = [name for name, block in blocks.items() if "amdgpu_kernel" in block.partition("\n")[0]]
    for name in wanted:
        wanted += [called for called in _called(blocks[name]) if called in blocks and called not in wanted]
    return _BLOCK.sub(lambda found: found.group() if _defined(found.group()) in wanted else "", text)


def _defined(block: str) -> str:
    found = _NAME.search(block.partition("\n")[0])
    assert found is not None, "a function has a name"
    return found.group(1)


def _called(block: str) -> Iterator[str]:
    return (found for found in _NAME.findall(block.partition("\n")[2]))


def _targeted(text: str, arch: str) -> str:
    """Returns the text with the target that it is compiled for, where TVM looks for it when it reads a module."""
    described = f"{{\\22kind\\22:\\22llvm\\22,\\22mtriple\\22:\\22{TRIPLE}\\22,\\22mcpu\\22:\\22{arch}\\22}}"
    last = max((int(n) for n in re.findall(r"^!(\d+) =", text, re.MULTILINE)), default=-1) + 1
    flags = re.search(r"^!llvm\.module\.flags = !\{(.*)\}$", text, re.MULTILINE)
    assert flags is None, flags
    return f'{text}\n!llvm.module.flags = !{{!{last}}}\n!{last} = !{{i32 4, !"tvm_target", !"{described}"}}\n'
