"""Source text of the probes' kernels: those of `probes.cu`, and one for each matrix instruction of an architecture."""

from __future__ import annotations

from pathlib import Path

from roller_cuda.chip.probes import CHAINS, INSTRUCTIONS, TILE_ROW, WORD, Instruction

HERE = Path(__file__).parent


def text(capability: tuple[int, int]) -> str:
    """Returns the CUDA C++ of all kernels for a compute capability."""
    plain = (HERE / "probes.cu").read_text(encoding="utf-8")
    return "\n".join([plain, *(_kernel(name, i) for name, i in INSTRUCTIONS.items() if i.there(capability))])


def _kernel(name: str, one: Instruction) -> str:
    inner = _group_loop(one) if one.lanes > 32 else _warp_loop(one)
    kind = {"f": "float", "r": "int"}[one.result]
    chains, registers = (1 if one.lanes > 32 else CHAINS), one.registers[2]
    return "\n".join(
        [
            f'extern "C" __global__ void __launch_bounds__({one.threads})',
            f"rate_{name}(char *data, unsigned long long *ticks, long long count, int rounds) {{",
            f"    {kind} d[{chains}][{registers}] = {{}};",
            *inner,
            f"    {kind} total = 0;",
            "#pragma unroll",
            f"    for (int i = 0; i < {chains * registers}; i++) total += d[i / {registers}][i % {registers}];",
            "    watch.stop(ticks);",
            "    if (total == 12345) ticks[3] = 1;",
            "}",
            "",
        ]
    )


def _operands(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


def _warp_loop(one: Instruction) -> list[str]:
    """Returns products of fragments that stay in registers, in independent accumulators."""
    a, b, d = one.registers
    keep, fixed = one.bits
    sums, first, second = _operands(0, d), _operands(d, a), _operands(d + a, b)
    results = ", ".join(f'"+{one.result}"(d[c][{i}])' for i in range(d))
    given = ", ".join([*(f'"r"(a[{i}])' for i in range(a)), *(f'"r"(b[{i}])' for i in range(b))])
    return [
        f"    unsigned a[{a}], b[{b}];",
        "#pragma unroll",
        f"    for (int i = 0; i < {a}; i++) a[i] = probe_operand(i, {keep:#x}u, {fixed:#x}u);",
        "#pragma unroll",
        f"    for (int i = 0; i < {b}; i++) b[i] = probe_operand({a} + i, {keep:#x}u, {fixed:#x}u);",
        "    const Stopwatch watch;",
        "    for (int r = 0; r < rounds; r++) {",
        "#pragma unroll",
        f"        for (int c = 0; c < {CHAINS}; c++)",
        f'            asm volatile("{one.ptx} {sums}, {first}, {second}, {sums};" : {results} : {given});',
        "    }",
    ]


def _group_loop(one: Instruction) -> list[str]:
    """Returns products of tiles in shared memory, with rows of 128 bytes and the 128-byte swizzle: one row's depth, then a wait.

    The matrix descriptor (PTX manual, "Asynchronous warpgroup level matrix shared memory layout") holds the address and the 1024
    bytes between groups of eight rows, in units of 16 bytes, from bits 0 and 32. The 1 in bits 62 and 63 selects the swizzle of 128
    bytes.
    """
    d, (keep, fixed) = one.registers[2], one.bits
    steps, tile = CHAINS, one.m * TILE_ROW
    results = ", ".join(f'"+{one.result}"(d[0][{i}])' for i in range(d))
    call = f"{one.ptx} {_operands(0, d)}, %{d}, %{d + 1}, {one.scales};"
    return [
        "    extern __shared__ __align__(1024) uint4 room[];",
        "    unsigned *words = reinterpret_cast<unsigned *>(room);",
        f"    for (int i = threadIdx.x; i < {(one.m + one.n) * TILE_ROW // WORD}; i += blockDim.x)",
        f"        words[i] = probe_operand(i, {keep:#x}u, {fixed:#x}u);",
        '    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");',
        "    __syncthreads();",
        "    const unsigned long long form = 1ull << 62 | 64ull << 32 | 1ull << 16;",
        "    const unsigned long long first = form | (probe_shared_at(room) & 0x3ffff) >> 4;",
        f"    const unsigned long long second = form | (probe_shared_at(room) + {tile} & 0x3ffff) >> 4;",
        "    const Stopwatch watch;",
        "    for (int r = 0; r < rounds; r++) {",
        '        asm volatile("wgmma.fence.sync.aligned;" : : : "memory");',
        "#pragma unroll",
        f"        for (int c = 0; c < {steps}; c++)",
        f'            asm volatile("{{.reg .pred p; setp.eq.u32 p, 0, 0; {call}}}"',
        f'                         : {results} : "l"(first + 2 * c), "l"(second + 2 * c));',
        '        asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");',
        '        asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");',
        "    }",
    ]
