"""Artifacts of manifests: checked against the machine, compressed, with memory of tiles and simulated cycles."""

from __future__ import annotations

import zlib

from roller.plugin import Artifact, CodegenError, HardwareSpec, KernelSource
from roller_ipu_sim.chip.machine import machine
from roller_ipu_sim.manifest.check import check
from roller_ipu_sim.manifest.models import ManifestError, from_json
from roller_ipu_sim.simulator.counting import profiled

FORMAT = "ipu-manifest"
LANGUAGE = "ipu-manifest"


def build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns the artifact of a manifest; `CodegenError` with the reason where the machine could not run it."""
    if source.language != LANGUAGE:
        raise CodegenError(f"the ipu_sim toolchain takes {LANGUAGE}, not {source.language}")
    chip = machine(spec)
    try:
        found = from_json(source.text)
        check(found, chip)
        profile = profiled(found, chip)
    except ManifestError as error:
        raise CodegenError(f"{spec.device}:{spec.chip} cannot run the manifest: {error}") from error
    resources = {"simulated_cycles": profile.cycles, "tile_bytes": int(profile.memory.max()), "supersteps": len(profile.supersteps)}
    return Artifact(FORMAT, zlib.compress(source.text.encode(), 1), dict(source.launch), resources, spec.device, spec)


def text_of(artifact: Artifact) -> str:
    """Returns the manifest's JSON."""
    if artifact.format != FORMAT:
        raise CodegenError(f"the ipu_sim device runs {FORMAT}, not {artifact.format}")
    try:
        return zlib.decompress(artifact.data).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise CodegenError(f"the manifest cannot be read: {error}; compile the operator again") from error
