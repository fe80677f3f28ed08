"""Launches kernels of a package and nothing else, for a profiler to look at:

ncu --set full python -m bench.cuda.profile PACKAGE "fp16 4096x4096x4096"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.cuda.platform import PLATFORM
from bench.gpu.child import REFUSED, refusal
from bench.gpu.driver import DriverError
from bench.gpu.package import Package, PackageError, chip_for
from bench.gpu.worker import Settings, Worker


def options(words: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line."""
    made = argparse.ArgumentParser(prog=PLATFORM.command("profile"), description=(__doc__ or "").splitlines()[0])
    made.add_argument("package", type=Path, help=f"the folder that `{PLATFORM.command('build')}` wrote")
    made.add_argument("cases", nargs="+", metavar="CASE", help="an operator's id")
    made.add_argument("--times", type=int, default=1, help="launches of each (1)")
    made.add_argument("--chip", default="", help="which kernels of the package (those for the chip that this GPU is most like)")
    return made.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Launch the chosen program of each case that is named; 2 where that cannot be done."""
    given = options(words)
    try:
        from bench.gpu.torch_library import TorchLibrary  # noqa: PLC0415  (where it is missing, that is the answer)

        library, driver = TorchLibrary(PLATFORM), PLATFORM.driver()
        package = Package(given.package, PLATFORM)
        found = {e.operator.id: e for e in package.entries(chip_for(package, PLATFORM, driver.describe(), given.chip))}
        worker = Worker(package, driver, library, Settings(0.0))
        for name in given.cases:
            if name not in found:
                raise PackageError(f"the package has no case {name!r}")
            print(name, found[name].programs[0]["program"], file=sys.stderr, flush=True)
            worker.launch(found[name], given.times)
    except (ImportError, DriverError, PackageError) as error:
        print(refusal(PLATFORM, error), file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
