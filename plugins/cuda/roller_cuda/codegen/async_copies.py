"""`cp.async`: asynchronous copies from global into shared memory that bypass registers, from compute capability 8.0 on."""

from __future__ import annotations

from dataclasses import dataclass

from roller.lowering.tir.builder import Expr, Stmt, called, index

FIRST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class AsyncCopies:
    """Asynchronous copies of 4, 8 or 16 bytes, committed in groups."""

    sizes: tuple[int, ...] = (4, 8, 16)

    def copy(self, target: Expr, source: Expr, size: int, inside: Expr | None) -> Stmt:
        """Starts one copy; where `inside` is false it reads nothing and writes zeros."""
        whole = index(1) if inside is None else inside.astype("int32")
        return called(f"roller_copy_async_{size}", target, source, whole)

    def close(self) -> Stmt:
        """`cp.async.commit_group`."""
        return called("roller_copies_close")

    def wait(self, open_groups: int) -> Stmt:
        """`cp.async.wait_group`."""
        return called(f"roller_copies_wait<{open_groups}>")
