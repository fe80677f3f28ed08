"""Predicted times of stored programs by the tree on the path, as JSON lines; for `bench.cpu.stored`. Runs in older trees, too.

python rating.py FILE
"""

from __future__ import annotations

import copy
import gzip
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from roller.errors import SpecError

chosen = import_module("chosen")  # beside this file, of whatever tree
TAKEN = ("spec_from_dict", "limited", "load_device", "expr_from_json", "program_from_json", "estimate")


def predicted(stored: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the name of each case and the predicted seconds of its programs, in their order."""
    spec_from_dict, limited, load_device, expr_from_json, program_from_json, estimate = map(chosen.taken, TAKEN)
    spec = limited(_spec(stored["spec"], spec_from_dict), stored["threads"])
    device, atoms = load_device(spec.device), {atom.name: atom.model_dump(mode="json") for atom in spec.atoms}
    for case in stored["cases"]:
        expr = expr_from_json(case["expr"])
        parameters = device.cost_parameters(spec, expr)
        programs = (program_from_json(_on(atoms, entry["program"]), expr) for entry in case["programs"])
        yield {"case": case["case"], "seconds": [estimate(program, spec, parameters).seconds for program in programs]}


def _spec(data: dict[str, Any], read: Any) -> Any:
    """Returns the chip's spec, without the fields that an older tree does not read yet."""
    while True:
        try:
            return read(data)
        except SpecError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            unknown = [found["loc"] for found in error.__cause__.errors() if found["type"] == "extra_forbidden"]
            if not unknown:
                raise
            data = copy.deepcopy(data)
            for *path, field in unknown:
                table: Any = data
                for key in path:
                    table = table[key]
                del table[field]


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
