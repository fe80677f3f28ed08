"""Static check of assembly: no write to local memory may be in flight when a wave reaches a barrier, on any path.

On most chips LLVM puts no wait before a barrier by itself; only a fence does. Other waves would read values that are not there yet.

For every write the check follows how many later accesses of local memory certainly stand behind it in the queue. A wait that leaves
n accesses in flight covers the write if at least n do. Scalar loads use the same counter, but return in any order, so they do not
count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from roller.plugin import CodegenError
from roller_rocm.toolchain import mnemonics
from roller_rocm.toolchain.assembly import AsmInstruction, AsmKernel

MOST = 64  # max accesses that a counter distinguishes
_LEFT = re.compile(r"lgkmcnt\((\d+)\)")
_BARRIERS = ("s_barrier", "s_barrier_signal")
_EXCHANGES = ("ds_bpermute", "ds_permute", "ds_swizzle", "ds_nop")
_ENDS = ("s_endpgm", "s_setpc_b64", "s_trap")

State = dict[int, int]  # writes in flight, by position: accesses behind each


def check(kernels: Iterable[AsmKernel]) -> None:
    """Raises `CodegenError` if a write to local memory can reach a barrier of a kernel without a wait."""
    for kernel in kernels:
        for line, text in unwaited(kernel):
            raise CodegenError(f"kernel {kernel.name!r}: local memory would be read before it is written: line {line}, {text}")


def unwaited(kernel: AsmKernel) -> list[tuple[int, str]]:
    """Returns the barriers, by line and text, that a write to local memory can reach without a covering wait; the text names it."""
    states = _states(kernel)
    found = []
    for at, instruction in enumerate(kernel.instructions):
        if instruction.name in _BARRIERS:
            for write in sorted(states.get(at, {})):
                cause = kernel.instructions[write]
                found.append((instruction.line, f"{instruction.text}: line {cause.line}, {cause.text!r}, may be under way"))
    return found


def _states(kernel: AsmKernel) -> dict[int, State]:
    """Returns the writes that may be in flight before each reachable instruction."""
    states: dict[int, State] = {0: {}}
    todo = [0]
    while todo:
        at = todo.pop()
        if at >= len(kernel.instructions):
            continue
        after = _after(kernel.instructions[at], at, states[at])
        for following in _following(kernel, at):
            known = states.get(following)
            merged = dict(after) if known is None else known | {w: min(n, known.get(w, MOST)) for w, n in after.items()}
            if merged != known:
                states[following] = merged
                todo.append(following)
    return states


def _following(kernel: AsmKernel, at: int) -> Iterator[int]:
    instruction = kernel.instructions[at]
    if instruction.name.startswith(("s_branch", "s_cbranch")):
        yield kernel.labels[instruction.operands]
    if instruction.name not in ("s_branch", *_ENDS):
        yield at + 1


def _after(instruction: AsmInstruction, at: int, before: State) -> State:
    left = _left(instruction)
    if left is not None:
        return {write: behind for write, behind in before.items() if behind < left}
    means = mnemonics.meaning(instruction.name)
    if means.unit != mnemonics.LOCAL:
        return before
    after = {write: min(behind + 1, MOST) for write, behind in before.items()}
    # Unknown instructions count as writes, exchanges between lanes do not.
    if means.extra & mnemonics.WRITES or (means.name != "local" and not means.name.startswith(_EXCHANGES)):
        after[at] = 0
    return after


def _left(instruction: AsmInstruction) -> int | None:
    """Returns the accesses of local memory that a wait leaves in flight; None for other instructions and other waits."""
    name, operands = instruction.name, instruction.operands
    if name == "s_waitcnt":
        found = _LEFT.search(operands)
        return int(found[1]) if found else 0 if operands.strip() == "0" else None
    if name in ("s_waitcnt_lgkmcnt", "s_wait_dscnt"):
        return int(operands.rpartition(",")[2], 0)
    return None
