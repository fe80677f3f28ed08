"""What drivers of GPUs refuse, as errors that say what to do; and processes forked from one that uses a driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from roller.errors import KernelError, LaunchError


class StatusError(Exception):
    """What a driver answered to a call of a function, by name; never leaves a plugin, which says what the names mean.

    `advice`: by status, the error and what to do; `otherwise`: said of every other status. `full`: the one of memory that ran out.
    """

    advice: ClassVar[Mapping[str, tuple[type[KernelError], str]]]
    otherwise: ClassVar[str]
    full: ClassVar[str]

    def __init__(self, function: str, status: str) -> None:
        self.function, self.status = function, status
        super().__init__(f"{function}: {status}")

    @property
    def is_full(self) -> bool:
        """True where memory ran out."""
        return self.status == self.full

    def told(self, what: str = "") -> KernelError:
        """The error that the user sees; `what` was to be done."""
        kind, advice = self.advice.get(self.status, (LaunchError, self.otherwise))
        return kind(f"{what + ': ' if what else ''}{advice} ({self.function} says {self.status})")


class ForkGuard:
    """Refuses calls in processes forked from one that uses a driver, before the driver sees them. `name`: what a user calls it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.used = self.forked = False
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.forked = self.used

    def check(self) -> None:
        """`LaunchError` in a process forked from one that used the driver."""
        if self.forked:
            raise LaunchError(
                f"this process was forked after {self._name} was used, which {self._name} does not survive; start processes with "
                "the method 'spawn' (multiprocessing.get_context('spawn')), or fork before the first use of the GPU"
            )
