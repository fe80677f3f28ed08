"""The command `roller`: results on stdout, progress and errors on stderr, fixed exit codes (`roller.cli.outcome`)."""

from roller.cli.app import main

__all__ = ["main"]
