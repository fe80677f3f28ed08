"""The module's text, as TVM leaves it and as it is compiled: only what kernels need, and what each of them promises."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from roller.lowering.simt.stage_kernel import GridKernel
from roller.plugin import HardwareSpec

OWN = 1000  # the first number of attributes that are not TVM's
ALONE = "1,1"  # waves of a SIMD, where a workgroup's own are all that is promised
TRIPLE = "amdgcn-amd-amdhsa"  # TVM's has an environment that ROCm's own code objects do not name
_TRIPLE = re.compile(r'^target triple = ".*"$', re.MULTILINE)
_WAVES = re.compile(r' "amdgpu-waves-per-eu"="([^"]*)"')
_FRUGAL = ' "amdgpu-sched-strategy"="iterative-minreg"'
_BLOCK = re.compile(r"^define .*?^}\n", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"@([\w.$]+)\(")
_KERNEL = re.compile(r"^define .*?amdgpu_kernel void @(\w+)\((.*)\)", re.MULTILINE)
_HALVED = re.compile(r"^(  %[\w.]+ = fptrunc (?:[a-z]+ )*)(float|<\d+ x float>) (%[\w.]+) to ((?:<\d+ x )?half>?.*)$", re.MULTILINE)
_ADDRESS = re.compile(r'(?<=!")0x[0-9a-f]+')


def orders(text: str) -> dict[str, list[str]]:
    """For each kernel the names of its arguments, in the order in which it takes them."""
    return {name: re.findall(r"%([\w.]+)(?:,|$)", taken) for name, taken in _KERNEL.findall(text)}


def settled(text: str, spec: HardwareSpec, kernels: Sequence[GridKernel], waves: Mapping[str, int]) -> str:
    """The text as it is compiled; `waves`: for each kernel how many of a SIMD should fit at a time."""
    text = _rounded_first(_TRIPLE.sub(f'target triple = "{TRIPLE}"', _without_strays(_stable(text))))
    for number, kernel in enumerate(kernels):
        text = _promised(text, f"{kernel.name}_kernel", OWN + number, kernel.threads, waves.get(kernel.name))
    return _targeted(text, str(spec.options["arch"]))


def _promised(text: str, name: str, number: int, threads: int, waves: int | None) -> str:
    """A kernel with attributes of its own: the size of its workgroup, and how many waves its registers should leave room for."""
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
    """What is tried where kernels spill, in this order: the same text without promises of room for other waves than a kernel's own;
    and that with what computes a stage scheduled for the fewest registers. Fewer loads are under way at a time then: it comes last.
    """
    promised = _WAVES.findall(text)
    free = [_WAVES.sub("", text)] if any(waves != ALONE for waves in promised) else []
    return [*free, _WAVES.sub(_FRUGAL, text)] if promised else []


def _stable(text: str) -> str:
    """TVM names aliases by addresses in its memory: numbers instead, so that the same program gives the same text."""
    numbers: dict[str, int] = {}
    return _ADDRESS.sub(lambda found: f"buffer{numbers.setdefault(found.group(), len(numbers))}", text)


def _rounded_first(text: str) -> str:
    """Sums are rounded to float32 before they become halves. LLVM may do both in one instruction (`v_fma_mixlo_f16`), which rounds
    once, for some elements of a tile and not for others: where tiles overlap, the last one to store would decide on the last bit.
    """

    def first(found: re.Match[str]) -> str:
        start, dtype, value, rest = found.groups()
        name = f"%rounded.{found.start()}"
        return f'  {name} = call {dtype} asm "", "=v,0"({dtype} {value})\n{start}{dtype} {name} to {rest}'

    return _HALVED.sub(first, text)


def _without_strays(text: str) -> str:
    """Without functions that no kernel calls: TVM adds conversions of half types to every module, and what is inlined stays."""
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
    """With the target that the module is compiled for, where TVM looks for it when it reads one."""
    described = f"{{\\22kind\\22:\\22llvm\\22,\\22mtriple\\22:\\22{TRIPLE}\\22,\\22mcpu\\22:\\22{arch}\\22}}"
    last = max((int(n) for n in re.findall(r"^!(\d+) =", text, re.MULTILINE)), default=-1) + 1
    flags = re.search(r"^!llvm\.module\.flags = !\{(.*)\}$", text, re.MULTILINE)
    assert flags is None, flags
    return f'{text}\n!llvm.module.flags = !{{!{last}}}\n!{last} = !{{i32 4, !"tvm_target", !"{described}"}}\n'
