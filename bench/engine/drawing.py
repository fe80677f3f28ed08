"""Programs that the tree on the path draws uniformly, as JSON lines; for `bench.engine.drawn`. Runs in trees of other times, too.

python drawing.py CHIP EVERY DRAWN COUNT SEED      operators as for chosen.py; for each of them so many programs
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

chosen = import_module("chosen")  # beside this file, of whatever tree
SPACES = ("roller.search.enumeration", "roller.space")


def program_space() -> Any:
    """Returns the function that lists all programs of an expression."""
    for module in SPACES:
        try:
            return import_module(module).program_space
        except ModuleNotFoundError:
            continue
    raise SystemExit("this tree lists no programs")


def main() -> None:
    """Prints one line for each program, and one with an error for an operator that has none."""
    chip, *numbers = sys.argv[1:]
    every, drawn, count, seed = (int(number) for number in numbers)
    resolve, expression, fuse, to_json = (chosen.taken(name) for name in ("resolve", "expression", "fuse", "program_to_json"))
    device, spec = resolve(chip)
    for case in chosen.operators(every, drawn):
        try:
            expr = fuse(expression(case.build()), spec.spread)
            space = program_space()(expr, spec, device.rules(spec, expr), device.cost_parameters(spec, expr))
            for program in space.sample(count, seed):
                print(json.dumps({"case": case.name, "kind": case.kind, "program": to_json(program)}), flush=True)
        except Exception as error:
            print(json.dumps({"case": case.name, "kind": case.kind, "error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main()
