"""The programs that the tree on the path constructs, as JSON lines; for `bench.engine.beside`. Runs in trees of other times, too.

python chosen.py CHIP EVERY DRAWN [SHARE OF]      operators: one of EVERY of the paper's, and DRAWN random ones; a part of these
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

NAMES = {  # what this file takes, in the modules of today and of 2026-11-22
    "expression": ("roller.ops",),
    "limited": ("roller.target.subset", "roller.narrow"),
    "OPERATORS": ("bench.cpu.fidelity", "bench.fidelity"),
    "cases": ("bench.engine.construction", "bench.construction"),
    "resolve": ("roller.device.chip", "roller.chip"),
    "fuse": ("roller.ir.fusion", "roller.fusion"),
    "program_to_json": ("roller.program.record", "roller.record"),
    "construct": ("roller.search.construct", "roller.construct"),
    "spec_from_dict": ("roller.target.catalog", "roller.catalog"),
    "load_device": ("roller.device.plugins", "roller.devices"),
    "expr_from_json": ("roller.ir.serialization", "roller.serial"),
    "program_from_json": ("roller.program.record", "roller.record"),
    "estimate": ("roller.cost.model", "roller.cost"),
}


def taken(name: str) -> Any:
    """Returns the function of this name from the first module that has it."""
    for module in NAMES[name]:
        try:
            return getattr(import_module(module), name)
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"this tree has no {name}")


def operators(every: int, drawn: int) -> list[Any]:
    """Returns the operators of the command line, each with its name, its kind and a function that builds it."""
    if every:
        return list(taken("cases")(every, drawn))
    kept = [SimpleNamespace(name=name, kind="fidelity", build=build) for name, build in taken("OPERATORS").items()]
    return [*kept, *taken("cases")(1, drawn)[-drawn:]] if drawn else kept


def main() -> None:
    """Prints one line for each operator: its name, its kind, the best program, and the seconds of this process."""
    chip, every, drawn, *threads = sys.argv[1:]
    resolve, expression, fuse = (taken(name) for name in ("resolve", "expression", "fuse"))
    construct, to_json = taken("construct"), taken("program_to_json")
    device, spec = resolve(chip)
    spec = taken("limited")(spec, int(threads[0])) if threads else spec
    for case in operators(int(every), int(drawn)):
        expr = fuse(expression(case.build()), spec.spread)
        rules, parameters = device.rules(spec, expr), device.cost_parameters(spec, expr)
        start = time.process_time()
        try:
            found = construct(expr, spec, rules, parameters, 1)[0]
        except Exception as error:
            print(json.dumps({"case": case.name, "kind": case.kind, "error": f"{type(error).__name__}: {error}"}), flush=True)
            continue
        seconds = time.process_time() - start
        line = {"case": case.name, "kind": case.kind, "program": to_json(found.program), "seconds": seconds}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
