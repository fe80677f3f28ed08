"""Control flow of machine code: the jumps that close loops.

A backward jump alone closes none: compilers put waits that rarely spin behind the end of a kernel and jump back from there. A
loop's head lies on every path to the jump that closes it (it dominates it; Cooper, Harvey and Kennedy, "A simple, fast dominance
algorithm").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roller_cuda.toolchain.disassembly import BYTES, Instruction

ENDS = ("EXIT", "RET", "BRX", "JMX")  # the instruction after these belongs to another path


def back_edges(instructions: Sequence[Instruction], target: Callable[[Instruction], int | None]) -> list[tuple[int, int]]:
    """Returns pairs of instruction numbers: the first instruction of a loop, and the jump that closes it."""
    if not instructions:
        return []
    following = _successors(instructions, target)
    starts = _leaders(len(instructions), following)
    block_of = _blocks(len(instructions), starts)
    ends = [*(s - 1 for s in starts[1:]), len(instructions) - 1]
    graph = [[block_of[n] for n in following[end]] for end in ends]
    above = _dominators(graph)
    reached = [n for n in range(len(graph)) if n == 0 or above[n] is not None]
    return [(starts[head], ends[tail]) for tail in reached for head in graph[tail] if _dominates(head, tail, above)]


def _successors(instructions: Sequence[Instruction], target: Callable[[Instruction], int | None]) -> list[list[int]]:
    first, count = instructions[0].at, len(instructions)
    found: list[list[int]] = []
    for number, instruction in enumerate(instructions):
        goal = target(instruction)
        always = not instruction.predicate and (instruction.base in ENDS or goal is not None)
        jumps = [] if goal is None else [(goal - first) // BYTES]
        following = [] if always else [number + 1]
        found.append([n for n in (*following, *jumps) if 0 <= n < count])
    return found


def _leaders(count: int, following: list[list[int]]) -> list[int]:
    """Returns the first instructions of basic blocks, which always run from start to end."""
    found = {0}
    for number, goals in enumerate(following):
        if goals != [number + 1]:
            found.update(goals)
            found.add(number + 1)
    return sorted(n for n in found if n < count)


def _blocks(count: int, starts: list[int]) -> list[int]:
    found, block = [], -1
    beginnings = set(starts)
    for number in range(count):
        block += number in beginnings
        found.append(block)
    return found


def _dominators(graph: list[list[int]]) -> list[int | None]:
    """Returns for each block its nearest dominator; None for unreachable blocks, and for the first."""
    order = _postorder(graph)
    rank = {block: number for number, block in enumerate(order)}
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for goal in graph[block]:
            before[goal].append(block)
    above: list[int | None] = [None] * len(graph)
    above[0] = 0
    changed = True
    while changed:
        changed = False
        for block in reversed(order[:-1]):
            known = [b for b in before[block] if above[b] is not None]
            nearest = known[0]
            for other in known[1:]:
                nearest = _common(nearest, other, above, rank)
            changed |= above[block] != nearest
            above[block] = nearest
    above[0] = None
    return above


def _postorder(graph: list[list[int]]) -> list[int]:
    seen, order, stack = {0}, [], [(0, iter(graph[0]))]
    while stack:
        block, goals = stack[-1]
        goal = next((g for g in goals if g not in seen), None)
        if goal is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(goal)
            stack.append((goal, iter(graph[goal])))
    return order


def _common(a: int, b: int, above: list[int | None], rank: dict[int, int]) -> int:
    while a != b:
        while rank[a] < rank[b]:
            a = _up(a, above)
        while rank[b] < rank[a]:
            b = _up(b, above)
    return a


def _up(block: int, above: list[int | None]) -> int:
    found = above[block]
    assert found is not None, "only the first block has nothing above it"
    return found


def _dominates(head: int, tail: int, above: list[int | None]) -> bool:
    at: int | None = tail
    while at is not None and at != head:
        at = above[at]
    return at == head
