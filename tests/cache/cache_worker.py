"""A process of the torture: fetches small kernels from one folder, damages it, and counts what came back wrong.

python cache_worker.py FOLDER SEED OPERATIONS: prints a JSON line of counts; what it is killed in is anybody's guess.
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any

from roller.cache import entry, kernels
from roller.cache.entry import Kept
from roller.cache.key import Key
from roller.ir import serialization
from roller.ops import expression, relu, tensor
from roller.runtime.artifact import Artifact
from toy_plugin import toy_spec

KEYS = 24
SPEC, EXPR = toy_spec(), expression(relu(tensor((8,), name="x")))


def content(number: int) -> bytes:
    """The bytes of a key's kernel, each a function of the key alone; some are large."""
    return random.Random(number).randbytes(200 + 9000 * (number % 5))


def made(number: int) -> Kept:
    artifact = Artifact("torture", content(number), {"n": number}, {}, "toy", SPEC, expr=serialization.expr_to_json(EXPR))
    return Kept(artifact, EXPR, lambda: ())


def damage(folder: Path, chance: random.Random) -> None:
    """Flips, truncates, extends, swaps or removes a file, as a broken disk or another program might."""
    files = sorted(folder.glob("*")) if folder.exists() else []
    if not files:
        return
    path = chance.choice(files)
    raw = path.read_bytes()
    kind = chance.randrange(6)
    if kind == 0 and raw:
        place = chance.randrange(len(raw))
        path.write_bytes(raw[:place] + bytes([raw[place] ^ (1 + chance.randrange(255))]) + raw[place + 1 :])
    elif kind == 1:
        os.truncate(path, chance.randrange(len(raw) + 1))
    elif kind == 2:
        path.write_bytes(raw + b"more")
    elif kind == 3:
        path.write_bytes(chance.choice(files).read_bytes())
    elif kind == 4:
        path.unlink()
    else:
        path.write_bytes(raw.replace(b'"schema":1', b'"schema":0'))


def main(folder: str, seed: int, operations: int) -> dict[str, Any]:
    os.environ |= {"ROLLER_CACHE": "rw", "ROLLER_CACHE_DIR": folder, "ROLLER_CACHE_LIMIT": "300kB"}
    warnings.simplefilter("ignore")
    chance, counts = random.Random(seed), {"operations": 0, "wrong": 0, "built": 0}

    def build(number: int) -> Kept:
        counts["built"] += 1
        return made(number)

    for _ in range(operations):
        number = chance.randrange(KEYS)
        kernels.forget()
        found = kernels.fetch(Key({"number": number}, persistent=True), lambda number=number: build(number))
        counts["operations"] += 1
        counts["wrong"] += found.artifact.data != content(number) or found.expr != EXPR
        if chance.random() < 0.02:
            try:
                damage(Path(folder) / "kernels", chance)
            except OSError:
                continue
    return counts


if __name__ == "__main__":
    assert entry.SCHEMA
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))), flush=True)
