"""Matrix atoms with registers of their own (AMX): every layout, the ends of integers, panels and arrays in place, by emulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import roller
import word_products
from roller import ops, verify
from roller.device.plugins import load_device
from roller.errors import DeviceUnavailableError
from roller.ir.fusion import fuse
from roller.program.rprogram import RProgram
from roller.search.construct import construct
from roller.target.catalog import find_spec
from roller.target.hardware import ComputeAtom
from roller.target.subset import limited
from roller_cpu.chip import description, host, tile_atoms
from roller_cpu.chip.dot_atoms import able_atoms
from roller_cpu.chip.topology import Cache, Topology
from roller_cpu.codegen import plain_tiles
from roller_cpu.codegen.tile_products import configuration
from roller_cpu.runtime.runner import CpuRunner
from roller_cpu.toolchain import compiling
from word_products import convolution, product, scaled_batches

GRANITE = limited(find_spec("cpu", "granite-rapids"), 1)
DTYPES = ("int8", "bfloat16", "float16")
INTEL = "emerald-rapids"


def best(op: ops.SymbolicTensor, constants: frozenset[str] = frozenset()) -> RProgram:
    """The best program on a Granite Rapids whose products are those of tiles, whatever machine this is."""
    device, expr = load_device("cpu"), fuse(ops.expression(op))
    rules, parameters = device.rules(GRANITE, expr), device.cost_parameters(GRANITE, expr)
    others = any(stage.reducer is None for stage in expr.stages)
    able = tuple(a for a in rules.atoms if a.registers or (others and a.kind == "scalar"))
    program = construct(expr, GRANITE, replace(rules, atoms=able), parameters, 1, constants=constants)[0].program
    assert any(stage.atom.registers for stage in program.stages)
    return program


def check(op: ops.SymbolicTensor, arrays: Mapping[str, Any] | None = None, constants: frozenset[str] = frozenset()) -> RProgram:
    """The best program, checked."""
    program = best(op, constants)
    word_products.check(op, program, arrays, constants)
    return program


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("k", [7, 64, 66])
def test_every_layout_and_depth(dtype: str, turned: str, k: int) -> None:
    program = check(product(37, 50, k, dtype, turned))
    in_place = [f for f in (0, 1) if f not in {s.operand for s in program.stages[0].staged}]
    assert len(in_place) <= (1 if k == 64 and turned in ("NN", "NT", "TT") else 0)


@pytest.mark.parametrize(("m", "n"), [(2, 64), (5, 3), (16, 16), (100, 16), (17, 200)])
def test_rows_are_read_in_place(m: int, n: int) -> None:
    program = check(product(m, n, 128, "bfloat16"))
    assert any(s.operand == 0 for s in program.stages[0].staged) is False or n < m


@pytest.mark.parametrize("value", [-128, 127, 0])
def test_the_ends_of_the_range_are_exact(value: int) -> None:
    ends = {"a": np.full((20, 260), -128, np.int8), "b": np.full((260, 48), value, np.int8)}
    assert check(product(20, 48, 260, "int8"), ends).stages[0].atom.n_dtype is None


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_with_padding(dtype: str, stride: int) -> None:
    check(convolution(dtype, stride))


def test_batches_and_epilogues() -> None:
    check(scaled_batches())


def test_a_quantised_layer() -> None:
    """int8 in and out: zero point, scales of channels, bias, rounding to the range of int8, all in one stage."""
    total = product(50, 40, 96, "int8")
    value = ops.cast(total - ops.tensor((40,), "int32", "zero"), "float32") * ops.tensor((40,), name="scale")
    op = ops.cast(ops.clip(ops.round(value + ops.tensor((40,), name="bias")), -128.0, 127.0), "int8")
    assert len(check(op).stages) == 1


def test_constants_are_packed_once() -> None:
    program = check(product(20, 64, 70, "int8"), constants=frozenset({"b"}))
    assert any(s.constant for s in program.stages[0].staged)


def test_a_factor_that_another_stage_computed() -> None:
    """TVM keeps what a stage computes in bfloat16 as float32: rows of it come by way of the stack."""
    one = product(40, 64, 32, "bfloat16")
    halves = ops.cast(one, "bfloat16")
    check(ops.matmul(halves, ops.tensor((64, 48), "bfloat16", "c"), False, False, "float32", "float32"))


def test_the_chip_takes_tiles_where_they_are_the_fastest() -> None:
    for dtype in ("int8", "bfloat16"):
        kernel = roller.compile(product(256, 256, 256, dtype), f"cpu:{INTEL}", threads=1)
        assert kernel.program.stages[0].atom.registers == 8
        text = " ".join(str(kernel.explain()).split())
        assert "k: one register" in text and "of 8 KiB" in text


def test_the_emulator_computes_the_same() -> None:
    kernel = roller.compile(product(70, 90, 130, "int8"), f"cpu:{INTEL}", threads=2)
    assert kernel.program.stages[0].atom.registers
    given = verify.random_inputs(kernel.expr, 1, integer=True)
    out = np.full((70, 90), 77, np.int32)
    load_device("cpu").emulate(kernel.artifact).run((given["a"], given["b"]), out)
    np.testing.assert_array_equal(out, given["a"].astype(np.int64) @ given["b"].astype(np.int64))


def test_plain_ir_needs_no_instruction_set() -> None:
    for dtype, name in (("int8", "tdpbssd"), ("bfloat16", "tdpbf16ps")):
        source = roller.compile(product(64, 64, 128, dtype), f"cpu:{INTEL}", threads=1).artifact.source
        assert {name, "ldtilecfg", "tilerelease"} <= set(compiling.assembly(source).split())
        plain = compiling.assembly(compiling.retargeted(plain_tiles.emulated(source), "x86-64-v3"))
        assert not {name, "ldtilecfg", "tilerelease", "tileloadd"} & set(plain.split())


def test_a_configuration_is_that_of_the_architecture() -> None:
    found = configuration([(16, 64), (7, 12)])
    assert len(found) == 64 and found[0] == 1 and found[1:16] == bytes(15)
    assert found[16:20] == bytes([64, 0, 12, 0]) and found[48:51] == bytes([16, 7, 0])
    for shapes in ([(17, 64)], [(16, 68)], [(0, 4)], [(16, 64)] * 9):
        with pytest.raises(ValueError, match="there are 8"):
            configuration(shapes)


# --- whose they are ---------------------------------------------------------------------------------------------------


def test_the_host_has_the_atoms_of_its_instruction_sets() -> None:
    assert tile_atoms.names(("amx_tile", "amx_bf16")) == ["tdpbf16ps"]
    assert tile_atoms.names(("amx-tile", "amx-int8", "amx-fp16")) == ["tdpbssd", "tdpfp16ps"]
    assert tile_atoms.names(("amx-int8", "avx512f")) == []
    shipped = {a.name: a.model_dump(exclude={"gflops"}) for a in GRANITE.atoms}
    for table in tile_atoms.tile_atoms(("amx-tile", "amx-bf16", "amx-int8", "amx-fp16")):
        atom = ComputeAtom.model_validate(table | {"gflops": 1.0})
        assert atom.model_dump(exclude={"gflops"}) == shipped[atom.name] and atom.register_bytes == 1024


def test_a_machine_with_tiles_has_them_in_its_spec() -> None:
    caches = (Cache(3, 32 << 20, 64, 4), Cache(2, 2 << 20, 64, 1), Cache(1, 48 << 10, 64, 1))
    found = Topology("", 4, ("avx", "avx2", "avx512f", "fma", "amx-tile", "amx-int8"), caches, 8 << 30)
    base = find_spec("cpu", "sapphire-rapids")
    spec = description.describe(found, base, "sapphirerapids", "host-test", description.assumed(found, base, "busy"))
    assert [a.name for a in able_atoms(spec) if a.registers] == ["tdpbssd"]
    assert spec.peaks_gflops["int8_matrix"] == 2048 * 4 * spec.clock_ghz
    assert spec.source("atoms.tdpbssd.gflops").startswith("datasheet")


def test_what_the_system_does_not_give_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    processors = "roller_cpu.toolchain.processors"
    monkeypatch.setattr(f"{processors}.host_features", lambda: frozenset({"avx", "amx-tile", "amx-int8"}))
    for given in (True, False):
        monkeypatch.setattr(host, "permitted", lambda given=given: given)
        assert ("amx-tile" in host._told(Topology("", 1, ("avx",), (), 1)).features) is given
    artifact = roller.compile(product(64, 64, 64, "int8"), f"cpu:{INTEL}", threads=1).artifact
    assert artifact.launch["tiles"]
    monkeypatch.setattr("roller_cpu.chip.instructions.missing", lambda wanted: ())
    monkeypatch.setattr(tile_atoms, "permitted", lambda: False)
    with pytest.raises(DeviceUnavailableError, match="tiles"):
        CpuRunner(replace(artifact, spec=None))


def test_other_tiles_are_left_to_others() -> None:
    """A spec may name what the device does not know; operators then run on its other atoms."""
    for changes in ({"name": "tdpxyz"}, {"registers": 4}, {"roles": {"m": 8, "n": 16, "k": 64}}):
        atoms = tuple(ComputeAtom.model_validate(a.model_dump() | changes) if a.name == "tdpbssd" else a for a in GRANITE.atoms)
        able = able_atoms(GRANITE.model_copy(update={"atoms": atoms}))
        assert "tdpbf16ps" in [a.name for a in able] and not any(a.registers and a.in_dtype == "int8" for a in able)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operand_interleave": 2}, "do not fill one int32"),
        ({"lanes": 32}, "of one lane"),
        ({"roles": {"n": 16, "k": 64}}, "with m, n and k"),
        ({"kind": "vector", "roles": {"n": 16, "k": 4}, "operand_interleave": 4}, "only a matrix instruction"),
    ],
)
def test_registers_are_those_of_a_whole_matrix_instruction(changes: dict[str, Any], message: str) -> None:
    good = tile_atoms.table("tdpbssd") | {"gflops": 1.0}
    ComputeAtom.model_validate(good)
    with pytest.raises(ValidationError, match=message):
        ComputeAtom.model_validate(good | changes)
