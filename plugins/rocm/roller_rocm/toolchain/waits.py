"""A check of assembly without running it: no write to local memory may be under way when a wave comes to a barrier, on any path.

LLVM puts no wait before a barrier by itself on most chips; only a fence makes it. Other waves would read what is not there yet.

Followed for every write is how many later accesses of local memory certainly stand behind it in the queue: a wait that leaves n
accesses under way covers the write where at least n do. Scalar loads count in the same counter, but come in any order, so they are
no help.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from roller.plugin import CodegenError
from roller_rocm.toolchain import mnemonics
from roller_rocm.toolchain.assembly import AsmInstruction, AsmKernel

MOST = 64  # accesses that a counter can tell apart
_LEFT = re.compile(r"lgkmcnt\((\d+)\)")
_BARRIERS = ("s_barrier", "s_barrier_signal")
_EXCHANGES = ("ds_bpermute", "ds_permute", "ds_swizzle", "ds_nop")
_ENDS = ("s_endpgm", "s_setpc_b64", "s_trap")

State = dict[int, int]  # writes under way, by their place: accesses behind each


def check(kernels: Iterable[AsmKernel]) -> None:
    """`CodegenError` where a kernel's barrier can be reached by a write to local memory that was not waited for."""
    for kernel in kernels:
        for line, text in unwaited(kernel):
            raise CodegenError(f"kernel {kernel.name!r}: local memory would be read before it is written: line {line}, {text}")


def unwaited(kernel: AsmKernel) -> list[tuple[int, str]]:
    """The barriers, by line and text, that a write to local memory can reach with no wait that covers it; the text names it."""
    states = _states(kernel)
    found = []
    for at, instruction in enumerate(kernel.instructions):
        if instruction.name in _BARRIERS:
            for write in sorted(states.get(at, {})):
                cause = kernel.instructions[write]
                found.append((instruction.line, f"{instruction.text}: line {cause.line}, {cause.text!r}, may be under way"))
    return found


def _states(kernel: AsmKernel) -> dict[int, State]:
    """What may be under way before each instruction that can be reached."""
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
    # What is unknown counts as a write, exchanges between lanes do not.
    if means.extra & mnemonics.WRITES or (means.name != "local" and not means.name.startswith(_EXCHANGES)):
        after[at] = 0
    return after


def _left(instruction: AsmInstruction) -> int | None:
    """How many accesses of local memory a wait leaves under way; None for other instructions and waits for other things."""
    name, operands = instruction.name, instruction.operands
    if name == "s_waitcnt":
        found = _LEFT.search(operands)
        return int(found[1]) if found else 0 if operands.strip() == "0" else None
    if name in ("s_waitcnt_lgkmcnt", "s_wait_dscnt"):
        return int(operands.rpartition(",")[2], 0)
    return None
