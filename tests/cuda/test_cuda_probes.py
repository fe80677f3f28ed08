"""Probes of a GPU without one: they fit their chip, compile without spills, and do on the emulator just what they are said to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emulating import needs_compiler, needs_cxx
from measuring import facts_of
from roller.runtime.artifact import Artifact
from roller.target.catalog import find_spec, shipped_specs
from roller_cuda.chip import calibration, nearest_chip, probe_kernels, probes
from roller_cuda.chip.probes import Launch, Probe
from roller_cuda.emulator import emulator
from roller_cuda.toolchain import compiling

CHIPS = [spec.chip for spec in shipped_specs("cuda") if spec.chip != "k80"]
STATIC_SHARED = 48 << 10  # of a block that does not ask for more


def table_of(chip: str) -> tuple[Probe, ...]:
    spec = find_spec("cuda", chip)
    facts = facts_of(spec)
    return probes.table(facts, calibration.expected(facts, spec))


def launches_of(probe: Probe) -> list[Launch]:
    return [launch for launch in (probe.prepare, probe.flush, probe.launch) if launch is not None]


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
def test_probes_fit_their_chip(chip: str) -> None:
    spec, table = find_spec("cuda", chip), table_of(chip)
    facts = facts_of(spec)
    text = probe_kernels.text(facts.capability)
    assert len({probe.name for probe in table}) == len(table)
    assert {f"rate_{atom.name}" for atom in spec.atoms} <= {probe.name for probe in table}
    room = probes.buffer_bytes(table)
    assert room < facts.memory_bytes / 4
    for probe in table:
        assert probe.amount > 0
        for launch in launches_of(probe):
            assert f" {launch.kernel}(char *data" in text or f"\n{launch.kernel}(char *data" in text
            assert 0 < launch.threads <= 1024
            assert 0 < launch.blocks < 2**31
            assert 0 < launch.rounds < 2**31
            assert launch.shared_bytes <= STATIC_SHARED
            width = {"probe_read": 16, "probe_copy": 32, "probe_chain": 128, "probe_chase": 128}.get(launch.kernel, 0)
            assert launch.offset + width * launch.count <= probe.data_bytes
            if width:
                assert launch.count & (launch.count - 1) == 0


@pytest.mark.parametrize("chip", CHIPS)
def test_what_must_miss_the_cache_is_far_larger_and_what_must_hit_it_far_smaller(chip: str) -> None:
    cache = find_spec("cuda", chip).level("L2").capacity_bytes
    named = {probe.name: probe for probe in table_of(chip)}
    assert named["dram_read"].launch.count * 16 >= 8 * cache
    assert named["dram_latency"].launch.count * 128 >= 8 * cache
    for name in ("l2_read", "l2_latency"):
        assert cache / 8 < named[name].data_bytes <= cache / 4
        assert named[name].flush is None
    for name in ("dram_read", "dram_copy", "dram_latency"):
        flush = named[name].flush
        assert flush is not None
        assert flush.count * 16 >= 2 * cache
        assert flush.offset >= named[name].launch.count * 16
    assert named["dram_read"].launch.rounds * 4 * 256 * named["dram_read"].launch.blocks <= named["dram_read"].launch.count


@pytest.mark.parametrize("chip", CHIPS)
def test_rates_take_a_few_milliseconds_and_nothing_takes_long(chip: str) -> None:
    """At the rates that the spec has; a launch and the timer's steps must be small against it."""
    spec = find_spec("cuda", chip)
    rates = calibration.expected(facts_of(spec), spec)
    for probe in table_of(chip):
        if probe.unit == "GFLOP/s":
            seconds = 1e-9 * probe.amount / rates[probe.name.removeprefix("rate_")]
            assert 2e-3 < seconds < 8e-3
        if probe.name in {"dram_read", "l2_read"}:
            level = spec.level({"dram_read": "L2", "l2_read": "shared"}[probe.name])
            assert 2e-4 < 1e-9 * probe.amount / (level.bandwidth_gbps or 0.0) < 1e-2


def test_launches_are_queued_while_the_gpu_is_busy() -> None:
    """Else what is measured is how fast the processor launches."""
    probes = {probe.name: probe for probe in table_of("h100")}
    assert probes["launch"].ahead == next(p for p in probes.values() if p.name.startswith("rate_")).launch
    assert all(probe.ahead is not None for probe in probes.values() if probe.launches > 1 and probe.name != "warm_up")


def test_the_table_is_plain_data_for_other_hands() -> None:
    table = table_of("h100")
    told = json.loads(json.dumps([asdict(probe) for probe in table]))
    for entry, probe in zip(told, table, strict=True):
        parts = {key: Launch(**entry[key]) if entry[key] else None for key in ("launch", "prepare", "flush", "ahead")}
        assert Probe(**{**entry, **parts}) == probe


def test_the_file_of_the_table_needs_only_the_standard_library() -> None:
    """Without any installed package, and without roller."""
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('probes', sys.argv[1]);"
        "module = importlib.util.module_from_spec(spec); sys.modules['probes'] = module; spec.loader.exec_module(module);"
        "print(len(module.INSTRUCTIONS))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(probes.__file__)], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (str(len(probes.INSTRUCTIONS)), "")


# --- the kernels' text ------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (8, 6), (8, 9), (9, 0)], ids=str)
def test_kernels_spill_nothing(capability: tuple[int, int]) -> None:
    """And products of a warpgroup are not put one after another by the assembler, which it would say."""
    _, log = compiling.compiled(probe_kernels.text(capability), nearest_chip.architecture(capability))
    resources = compiling.resources(log)
    kernels = {name.split(".")[0] for name in resources}
    wanted = {f"rate_{name}" for name, one in probes.INSTRUCTIONS.items() if one.there(capability)}
    assert wanted | {"rate_f32", "rate_f64", "rate_f16x2", "rate_i32", "probe_read", "probe_chase"} <= kernels
    assert ("rate_wgmma_m64n256k16_f16" in kernels) == (capability == (9, 0))
    assert all(value == 0 for name, value in resources.items() if name.endswith(("spilled_bytes", "stack_bytes")))
    assert "serializ" not in log


def test_every_atom_of_every_shipped_chip_has_a_probe() -> None:
    for spec in shipped_specs("cuda"):
        for atom in spec.atoms:
            if spec.chip != "k80" and atom.kind == "matrix":
                one = probes.INSTRUCTIONS[atom.name]
                assert {"m": one.m, "n": one.n, "k": one.k} == dict(atom.roles)
                assert one.lanes == atom.lanes


# --- what the kernels do ----------------------------------------------------------------------------------------------

# In place of what only a GPU has. `counted`: bytes read from memory, bytes read from shared memory, multiply-adds, barriers.
# Whoever reads 16 bytes of memory leaves a mark in their first word.
STUBS = """
#define blockDim (emulator::block_size)
#define gridDim (emulator::grid_size)
static unsigned long long counted[4];
inline unsigned long long probe_cycles() { return 7 * counted[2]; }
inline unsigned long long probe_nanoseconds() { return 5 * counted[2]; }
inline uint4 probe_load16(const char *from) {
    counted[0] += 16;
    uint4 v;
    std::memcpy(&v, from, 16);
    v.x++;
    std::memcpy(const_cast<char *>(from), &v, 16);
    return v;
}
inline unsigned long long probe_load8(const char *from) {
    counted[0] += 8;
    return *reinterpret_cast<const unsigned long long *>(from);
}
inline unsigned probe_shared_at(const void *place) { return static_cast<const char *>(place) - emulator::shared; }
template <class T> inline T probe_shared(unsigned at) {
    if (at % sizeof(T) || at + sizeof(T) > told_shared) emulator::misaligned = true;
    counted[1] += sizeof(T);
    return *reinterpret_cast<const T *>(emulator::shared + at);
}
inline uint4 probe_shared16(unsigned at) { return probe_shared<uint4>(at); }
inline unsigned probe_shared4(unsigned at) { return probe_shared<unsigned>(at); }
template <class T> inline T probe_fma(T a, T b, T c) { counted[2]++; return a * b + c; }
#undef __syncthreads
#define __syncthreads() (counted[3]++, emulator::synchronise())
"""
REPORT = """
extern "C" __global__ void report(unsigned long long *ticks) {
    for (int i = 0; i < 4; i++) ticks[4 + i] = counted[i], counted[i] = 0;
}
"""

Ticks = npt.NDArray[np.uint64]


def emulated(launches: list[Launch], data: npt.NDArray[Any], kernels_text: str = "") -> Ticks:
    """The launches on the data, one after another: what they left in `ticks`, and the four counts."""
    wrappers, kernels = [], []
    for number, launch in enumerate(launches):
        name = f"run_{number}"
        call = f"{launch.kernel}(data + {launch.offset}, ticks, {launch.count}ll, {launch.rounds})"
        wrappers.append(f'extern "C" __global__ void {name}(char *data, unsigned long long *ticks) {{ {call}; }}')
        kernels.append({"name": name, "arguments": ["data", "ticks"], "blocks": launch.blocks, "threads": launch.threads})
    kernels.append({"name": "report", "arguments": ["ticks"], "blocks": 1, "threads": 1})
    shared = max(launch.shared_bytes for launch in launches)
    text = "\n".join(
        [f"static const unsigned told_shared = {shared};", STUBS, kernels_text or probe_kernels.text((0, 0)), *wrappers, REPORT]
    )
    told = {
        "text": text,
        "kernels": [{**kernel, "shared_bytes": shared} for kernel in kernels],
        "inputs": ["data"],
        "output": "ticks",
        "tensors": [],
        "workspaces": [],
    }
    artifact = Artifact(compiling.FORMAT, b"none", told, {}, "cuda", find_spec("cuda", "a100"))
    ticks: Ticks = np.zeros(8, np.uint64)
    emulator.Emulator(artifact, [emulator.Order(False, True)]).run((data,), ticks)
    return ticks


def small() -> dict[str, Probe]:
    """The probes of a chip so small that the emulator is done soon."""
    facts = replace(facts_of(find_spec("cuda", "a100")), sms=2, l2_bytes=1 << 14, threads_sm=512, threads_block=128)
    return {probe.name: probe for probe in probes.table(facts, dict.fromkeys(probes.SCALARS, 1e-3))}


def shorter(probe: Probe, rounds: int, **changes: Any) -> tuple[Launch, float]:
    """The probe's launch with fewer rounds, and the amount that it then moves or computes."""
    return replace(probe.launch, rounds=rounds, **changes), probe.amount * rounds / probe.launch.rounds


@needs_cxx
@pytest.mark.parametrize("name", ["dram_read", "l2_read", "dram_copy"])
def test_reading_moves_the_bytes_it_is_said_to_and_each_but_once_a_round(name: str) -> None:
    probe = small()[name]
    threads = probe.launch.blocks * probe.launch.threads
    rounds, vectors = 4, 16 * threads
    launch, amount = shorter(probe, rounds, count=vectors)
    data = np.zeros((2 * vectors + 16, 4), np.uint32)
    data[:vectors, 1] = np.arange(vectors)
    ticks = emulated([launch], data)
    copied = name == "dram_copy"
    assert int(ticks[4]) * (2 if copied else 1) == amount
    assert (data[:vectors, 0] == 1).all()
    assert (data[vectors : 2 * vectors, 1] == (np.arange(vectors) if copied else 0)).all()
    assert not data[2 * vectors :].any()


@needs_cxx
def test_reading_begins_again_where_the_buffer_ends() -> None:
    launch, amount = shorter(small()["l2_read"], 8, count=1024)
    data = np.zeros((1024 + 16, 4), np.uint32)
    ticks = emulated([launch], data)
    assert int(ticks[4]) == amount
    assert (data[:1024, 0] == amount / 16 / 1024).all()
    assert not data[1024:].any()


@needs_cxx
@pytest.mark.parametrize("name", ["dram_latency", "l2_latency"])
def test_a_chase_comes_by_every_line_once_and_goes_on_where_it_stopped(name: str) -> None:
    probe, lines = small()[name], 512
    assert probe.prepare is not None
    data = np.zeros((lines + 1, 128), np.uint8)
    first, half = data.ctypes.data, replace(probe.launch, count=lines, rounds=lines // 2)
    chain = replace(probe.prepare, count=lines)
    assert probe.amount == probe.launch.rounds
    ticks = emulated([chain, half], data)
    assert int(ticks[4]) == 8 * lines // 2
    middle = int(ticks[2])
    line, seen = 0, []
    for _ in range(lines):
        seen.append(line)
        place = int(data[line, :8].view(np.uint64)[0])
        assert (place - first) % 128 == 0
        line = (place - first) // 128
    assert sorted(seen) == list(range(lines))
    assert line == 0
    assert seen[lines // 2] == (middle - first) // 128
    assert int(emulated([chain, half, half], data)[2]) == first  # all around
    steps = np.diff(np.array(seen))
    assert np.median(np.abs(steps)) > lines / 8  # no neighbours that a fetch would bring along


@needs_cxx
def test_shared_memory_is_read_as_it_is_said_to() -> None:
    named, data = small(), np.zeros(16, np.uint8)
    launch, amount = shorter(named["shared_read"], 3)
    assert int(emulated([launch], data)[5]) == amount
    for stride in probes.STRIDES:
        launch, accesses = shorter(named[f"stride_{stride}"], 2)
        assert launch.count == stride
        assert int(emulated([launch], data)[5]) == accesses * 32 * 4
    launch, steps = shorter(named["shared_latency"], 100)
    assert int(emulated([launch], data)[5]) == steps * 4


@needs_cxx
@pytest.mark.parametrize("name", probes.SCALARS)
def test_arithmetic_is_as_much_as_it_is_said_to_be(name: str) -> None:
    launch, amount = shorter(small()[f"rate_{name}"], 3)
    ticks = emulated([launch], np.zeros(16, np.uint8))
    assert int(ticks[6]) * {"f32": 2, "f64": 2, "i32": 2, "f16x2": 4}[name] == amount
    assert int(ticks[0]) / int(ticks[1]) == pytest.approx(7 / 5)  # the first block's clocks, end less beginning


def counting(statement: re.Match[str]) -> str:
    """In place of a matrix instruction its count; what only orders instructions goes."""
    return "counted[2]++;\n" if "{%0" in statement.group() else ";\n"


@needs_cxx
@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (9, 0)], ids=str)
def test_products_are_as_many_as_they_are_said_to_be(capability: tuple[int, int]) -> None:
    """Every lane counts an instruction that all of them run together."""
    text = re.sub(r"asm volatile\([^\n]*(\n[^\n]*)??\);\n", counting, probe_kernels.text(capability))
    facts = replace(facts_of(find_spec("cuda", "h100")), sms=1, capability=capability)
    for probe in probes.table(facts, dict.fromkeys(probes.INSTRUCTIONS, 1e-3)):
        one = probes.INSTRUCTIONS.get(probe.name.removeprefix("rate_"))
        if one is not None:
            launch, amount = shorter(probe, 2)
            ticks = emulated([launch], np.zeros(16, np.uint8), text)
            assert int(ticks[6]) // one.lanes * 2 * one.m * one.n * one.k == amount, probe.name


@needs_cxx
def test_barriers_are_as_many_as_they_are_said_to_be() -> None:
    launch, amount = shorter(small()["barrier"], 5)
    assert int(emulated([launch], np.zeros(16, np.uint8))[7]) == amount * launch.threads
