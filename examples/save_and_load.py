"""Compile once, run elsewhere: a kernel with prepacked weights is saved, and loaded in another process."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import roller
from roller import ops

LOADER = """
import sys
import numpy as np
import roller

kernel = roller.load(sys.argv[1])
x = np.load(sys.argv[2])
np.save(sys.argv[3], kernel(x))
print("loaded", kernel)
"""


def main() -> None:
    """Compiles, saves, loads in a new process, and compares."""
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((256, 512), dtype=np.float32)
    x = generator.standard_normal((64, 256), dtype=np.float32)

    op = ops.relu(ops.matmul(roller.tensor(x.shape, name="x"), roller.tensor(weight.shape, name="weight")))
    kernel = roller.compile(op, device="cpu", constants={"weight": weight})  # called with x alone
    here = kernel(x)

    with tempfile.TemporaryDirectory() as folder:
        saved, given, result = (Path(folder) / name for name in ("layer.roller", "x.npy", "y.npy"))
        kernel.save(saved)
        np.save(given, x)
        print(f"saved {saved.stat().st_size} bytes")
        # A saved kernel is code: load only files that you trust.
        subprocess.run([sys.executable, "-c", LOADER, str(saved), str(given), str(result)], check=True)
        there = np.load(result)
    print("same result in both processes:", np.array_equal(here, there))


if __name__ == "__main__":
    main()
