"""Predicted times of stored programs by the tree on the path, as JSON lines; for `bench.cpu.stored`. Runs in older trees, too.

python rating.py FILE
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

chosen = import_module("chosen")  # beside this file, of whatever tree
TAKEN = ("spec_from_dict", "limited", "load_device", "expr_from_json", "program_from_json", "estimate")


def predicted(stored: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the name of each case and the predicted seconds of its programs, in their order."""
    spec_from_dict, limited, load_device, expr_from_json, program_from_json, estimate = map(chosen.taken, TAKEN)
    spec = limited(spec_from_dict(stored["spec"]), stored["threads"])
    device, atoms = load_device(spec.device), {atom.name: atom.model_dump(mode="json") for atom in spec.atoms}
    for case in stored["cases"]:
        expr = expr_from_json(case["expr"])
        parameters = device.cost_parameters(spec, expr)
        programs = (program_from_json(_on(atoms, entry["program"]), expr) for entry in case["programs"])
        yield {"case": case["case"], "seconds": [estimate(program, spec, parameters).seconds for program in programs]}


def _on(atoms: dict[str, Any], program: dict[str, Any]) -> dict[str, Any]:
    """Returns the program on the spec's atoms, which a tree describes in its own words."""
    stages = [stage | {"atom": atoms.get(stage["atom"]["name"], stage["atom"])} for stage in program["stages"]]
    return {"stages": stages}


def main() -> None:
    """Prints one line for each case of the file."""
    for line in predicted(json.loads(gzip.decompress(Path(sys.argv[1]).read_bytes()))):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
