"""Errors of GPU drivers with advice, and the refusal of driver calls in forked processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from roller.errors import KernelError, LaunchError


class StatusError(Exception):
    """A driver's failure status of a function, by name; never leaves a plugin, which has the meaning of each name.

    `advice`: by status, the error class and what to do. `otherwise`: the text for every other status. `full`: the status for memory
    that ran out.
    """

    advice: ClassVar[Mapping[str, tuple[type[KernelError], str]]]
    otherwise: ClassVar[str]
    full: ClassVar[str]

    def __init__(self, function: str, status: str) -> None:
        self.function, self.status = function, status
        super().__init__(f"{function}: {status}")

    @property
    def is_full(self) -> bool:
        """True if memory ran out."""
        return self.status == self.full

    def told(self, what: str = "") -> KernelError:
        """Returns the error for the user; `what` is the failed action."""
        kind, advice = self.advice.get(self.status, (LaunchError, self.otherwise))
        return kind(f"{what + ': ' if what else ''}{advice} ({self.function} says {self.status})")


class ForkGuard:
    """Refuses driver calls in processes forked from one that uses the driver. `name`: the driver's name for users."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.used = self.forked = False
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.forked = self.used

    def check(self) -> None:
        """Raises `LaunchError` in a process forked from one that used the driver."""
        if self.forked:
            raise LaunchError(
                f"this process was forked after {self._name} was used, which {self._name} does not survive; start processes with "
                "the method 'spawn' (multiprocessing.get_context('spawn')), or fork before the first use of the GPU"
            )
