"""Compiles the operators of a GPU benchmark and writes a package that runs where there is no roller. No GPU is needed.

`bench.cuda.build` and `bench.rocm.build` are its commands.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module, util
from pathlib import Path
from typing import Any

import roller
from bench.gpu import compiling, package
from bench.gpu.operators import Operator, operators
from bench.gpu.package import MOST_BYTES, Entry
from bench.gpu.platform import Platform
from roller.runtime.worker import run_isolated
from roller.target.hardware import HardwareSpec

MEMORY_SHARE = 0.9  # of a GPU's memory that an operator may need
DEADLINE_SECONDS = 600.0  # for one operator, its ten best programs included
INTERRUPTED = 130

Say = Callable[[str], None]


def options(platform: Platform, words: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed command line."""
    made = argparse.ArgumentParser(prog=platform.command("build"), description=(__doc__ or "").strip().splitlines()[0])
    text = f"one of `roller specs`, without the device's name; may be repeated ({platform.chip})"
    made.add_argument("--chip", action="append", help=text)
    made.add_argument("--out", type=Path, required=True, help="the package's folder; what it holds already is kept")
    made.add_argument("--cases", default="", help="only operators whose id or family contains one of these, separated by commas")
    made.add_argument("--each", type=int, default=0, help="only so many operators of each family")
    found = made.parse_args(words)
    found.chip = found.chip or [platform.chip]
    return found


def chosen(given: argparse.Namespace) -> list[Operator]:
    """The operators that the command line asks for."""
    found = operators()
    if given.cases:
        found = [op for op in found if any(part in op.id or part in op.family for part in given.cases.split(","))]
    if given.each:
        found = [op for op in found if [o for o in found if o.family == op.family].index(op) < given.each]
    return found


def build(platform: Platform, folder: Path, chip: str, wanted: list[Operator], say: Say) -> list[Entry]:
    """Every operator for a chip: taken from the folder where nothing has changed, compiled otherwise."""
    spec, found = roller.load_spec(f"{platform.device}:{chip}"), []
    for number, op in enumerate(wanted, 1):
        path, mark = package.case_path(folder, chip, op.id), compiling.fingerprint(platform, op, spec)
        known = package.entry(path)
        begin, how = time.perf_counter(), "as it was"
        if known is None or known.fingerprint != mark or known.status == "failed" or not whole(folder, known):
            known, how = made(folder, spec, op, mark), ""
            package.write_json(path, asdict(known))
        found.append(known)
        note = known.reason or how or f"{time.perf_counter() - begin:.1f} s, {known.programs[0]['program']}"
        say(f"[{chip} {number}/{len(wanted)}] {op.id}: {known.status}, {note}")
    return found


def whole(folder: Path, known: Entry) -> bool:
    """Whether all binaries of an entry are there."""
    return all((folder / "binaries" / f"{digest}.xz").exists() for digest in digests(known))


def digests(known: Entry) -> set[str]:
    """The binaries of an entry."""
    compiled = [program for program in known.programs if "binary" in program]
    return {digest for program in compiled for digest in (program["binary"], *program["constants"].values())}


def made(folder: Path, spec: HardwareSpec, op: Operator, mark: str) -> Entry:
    """An operator compiled, with its binaries stored; the reason where it is too large or does not compile."""
    limit = compiling.roofline(op, spec)
    room = spec.outermost.capacity_bytes
    if op.need > MEMORY_SHARE * room:
        reason = f"needs {op.need / 2**30:.1f} GiB, the chip has {room / 2**30:.1f}"
        return Entry(op, spec.chip, "left out", reason, mark, limit, ())
    try:
        found = run_isolated(compiling.compiled, spec.device, op.to_json(), spec.chip, deadline_s=DEADLINE_SECONDS)
    except compiling.FAILURES as error:
        return Entry(op, spec.chip, "failed", compiling.said(error), mark, limit, ())
    return Entry(op, spec.chip, "ok", "", mark, limit, tuple(kept(folder, *each) for each in found))


def kept(folder: Path, program: Mapping[str, Any], binary: bytes, constants: Mapping[str, bytes]) -> Mapping[str, Any]:
    """What an entry says of a program, with its binaries stored; one that did not compile has none."""
    if not binary:
        return program
    values = {name: package.keep_binary(folder, data) for name, data in constants.items()}
    return {**program, "binary": package.keep_binary(folder, binary), "constants": values}


def calibration(platform: Platform, folder: Path, chip: str, say: Say) -> None:
    """The kernels that measure a chip, where this roller has them: `prebuilt(spec)` gives their files by name."""
    if not platform.probes:
        return
    if util.find_spec(platform.probes) is None or not hasattr(module := import_module(platform.probes), "prebuilt"):
        say(f"no calibration kernels: this roller has no {platform.probes}.prebuilt")
        return
    files = module.prebuilt(roller.load_spec(f"{platform.device}:{chip}"))
    for name, data in files.items():
        package.write(folder / "calibration" / chip / name, data)
    say(f"{len(files)} calibration files for {chip}")


def manifest(platform: Platform, folder: Path, chips: list[str]) -> None:
    """What the package says of itself; chips that were built before stay in it. `PackageError` where it is for another device."""
    try:
        known = dict(package.Package(folder, platform).chips)
    except package.ForAnotherDevice:
        raise
    except package.PackageError:
        known = {}
    for chip in chips:
        spec = roller.load_spec(f"{platform.device}:{chip}")
        known[chip] = {
            "title": spec.title,
            "arch": spec.options["arch"],
            "units": spec.unit.count,
            "memory_bytes": spec.outermost.capacity_bytes,
            "cache_bytes": max((v.capacity_bytes * v.instances for v in spec.levels[1:] if not v.managed), default=0),
            **platform.facts(spec),
        }
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    versions = compiling.versions(platform.tools)
    table = {"schema": package.SCHEMA, "device": platform.device, "date": date, "versions": versions, "chips": known}
    package.write_json(folder / "manifest.json", table)


def clean(folder: Path, operators_there_are: set[str]) -> None:
    """Drop the cases of operators that are no longer among them, and binaries that no case names any more."""
    used: set[str] = set()
    for path in folder.glob("cases/*/*.json"):
        known = package.entry(path)
        if known is None or known.operator.id not in operators_there_are:
            path.unlink()
        else:
            used |= digests(known)
    for path in (folder / "binaries").glob("*.xz"):
        if path.stem not in used:
            path.unlink()


def main(platform: Platform, words: Sequence[str] | None = None) -> int:
    """Build the package; 1 if something did not compile or it is too large, 130 if interrupted."""
    given, code = options(platform, words), 0

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        manifest(platform, given.out, given.chip)
        for chip in given.chip:
            found = build(platform, given.out, chip, chosen(given), say)
            calibration(platform, given.out, chip, say)
            code |= int(any(e.status == "failed" for e in found))
        clean(given.out, {op.id for op in operators()})
    except KeyboardInterrupt:
        say(f"interrupted; what was built stays in {given.out}, the same command goes on from there")
        return INTERRUPTED
    except (roller.RollerError, package.PackageError) as error:
        say(compiling.said(error))
        return 1
    total = package.size(given.out)
    say(f"{given.out}: {total / 2**20:.1f} MiB")
    if total > MOST_BYTES:
        say(f"more than the {MOST_BYTES >> 20} MiB that a package may have")
        return 1
    return code
