"""The process with the GPU, as `bench.gpu.run` starts it: a job in on stdin, a line of JSON out for everything that happens."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from platform import python_version
from typing import Any

from bench.gpu.driver import Driver, DriverError
from bench.gpu.library import Choices, Library
from bench.gpu.package import Entry, Package, PackageError, chip_for
from bench.gpu.platform import Platform
from bench.gpu.worker import CONTEXT_LOST, Report, Settings, Worker, line

REFUSED = 2  # exit status: nothing can run here
SET_PARENT_DEATH_SIGNAL = 1  # of prctl
CALIBRATION = "calibration"  # of what is at hand, as a case has its id


def serve(platform: Platform, job: Mapping[str, Any], driver: Driver, library: Library, report: Report) -> int:
    """Say what this machine is and which cases there are, measure the chip, then run them; the exit status."""
    package, device = Package(Path(job["package"]), platform), driver.describe() | kernel_module(platform.module)
    chip = chip_for(package, platform, device, job["chip"])
    entries = selected(package.entries(chip), job["only"], job["quick"])
    versions = {"python": python_version(), **library.describe(), **package.manifest["versions"]}
    cases = [[e.operator.id, e.operator.family] for e in entries]
    report({"hello": {"device": device, "versions": versions, "chip": chip, "built": package.manifest["date"], "cases": cases}})
    begin = time.monotonic()
    if job["calibrate"]:
        report({"begin": CALIBRATION})
        found, lost = import_module(platform.calibration).section(package, chip, driver, library, job["seconds"])
        report({"calibration": found})
        if lost:
            return CONTEXT_LOST
    left = [e for e in entries if e.operator.id not in job["done"]]
    seconds = job["seconds"] - (time.monotonic() - begin)
    avoid = job.get("avoid", ())
    settings = Settings(seconds, job["rounds"], Choices(**job["choices"]), package.chips[chip]["cache_bytes"], avoid)
    return Worker(package, driver, library, settings).run(left, report)


def selected(entries: Sequence[Entry], only: str, quick: bool) -> list[Entry]:
    """Those whose id or family contains one of the parts of `only`; of `quick` the two of each family that move the least."""
    found = [e for e in entries if any(part in e.operator.id or part in e.operator.family for part in only.split(","))]
    if not quick:
        return found
    families: dict[str, list[Entry]] = {}
    for one in sorted(found, key=lambda e: e.operator.moved):
        families.setdefault(one.operator.family, []).append(one)
    kept = {e.operator.id for family in families.values() for e in family[:2]}
    return [e for e in found if e.operator.id in kept]


def kernel_module(said: Path) -> dict[str, str]:
    """The driver's version as its kernel module names it; nothing where it does not."""
    try:
        found = re.search(r"(\d+\.\d+(?:\.\d+)?)", said.read_text(encoding="utf-8"))
    except OSError:
        return {}
    return {"driver": found.group(1)} if found else {}


def orphaned() -> None:
    """End with the process that started this one: what hangs on the GPU would keep it from whoever comes next."""
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


def main(platform: Platform) -> int:
    """Do the job that stdin holds, on the GPU with torch. Where the GPU is lost, nothing is tidied up: it would wait for it."""
    orphaned()
    job = json.load(sys.stdin)
    for name, value in platform.environment.items():
        os.environ.setdefault(name, value)
    with os.fdopen(job["descriptor"], "w", encoding="utf-8") as out:
        told: list[str] = []

        def report(message: Mapping[str, Any]) -> None:
            told.extend(message)
            out.write(line(message))
            out.flush()

        try:
            from bench.gpu.torch_library import TorchLibrary  # noqa: PLC0415  (where it is missing, that is the answer)

            library = TorchLibrary(platform)  # first: the driver must be the one that torch uses
            job["seconds"] -= time.monotonic() - job["asked"]
            status = serve(platform, job, platform.driver(), library, report)
            if status == CONTEXT_LOST:
                os._exit(status)
            return status
        except (ImportError, DriverError, PackageError) as error:
            if "hello" in told:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(CONTEXT_LOST)
            report({"refused": refusal(platform, error)})
            return REFUSED


def refusal(platform: Platform, error: Exception) -> str:
    """Why nothing can run here; of torch where to have it from."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return (
            f"PyTorch is missing: install a build for {platform.device} (https://pytorch.org/get-started/locally/) "
            f"for {sys.executable}, or run this with a Python that has one"
        )
    return f"{type(error).__name__}: {error}"
