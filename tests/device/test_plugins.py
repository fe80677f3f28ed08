import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import roller
from roller import ops
from roller.cost.parameters import CostParameters
from roller.device.plugins import Device, device_names, load_device
from roller.errors import (
    CodegenError,
    ConstructionError,
    DeviceUnavailableError,
    HookError,
    KernelError,
    PluginApiError,
    PluginLoadError,
    SpecError,
    UnknownDeviceError,
)
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.plugin import hookimpl
from roller.program.alignment import Multiple, Rules
from roller.program.estimate import Estimate, combine_estimates
from roller.program.record import estimate_from_json, estimate_to_json
from roller.program.rprogram import RProgram
from roller.runtime.artifact import Artifact, BuildOptions
from roller.search.construct import construct
from roller.target.catalog import find_spec
from toy_plugin import Toy, toy_spec


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install plugin modules as distributions of their own."""
    monkeypatch.syspath_prepend(tmp_path)
    load_device.cache_clear()

    def add(device, code, dist=None):
        module = f"plugin_{dist or device}_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(code)
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[roller.devices]\n{device} = {module}\n")
        return module

    yield add
    load_device.cache_clear()


GOOD = "from toy_plugin import Toy as _T\n_t = _T()\nROLLER_API = 1\n" + "".join(
    f"{name} = _t.{name}\n" for name in ("roller_default_spec", "roller_codegen", "roller_build", "roller_load_kernel")
)


def test_names_come_without_imports(install):
    module = install("toy", "raise SystemExit('imported')")
    assert {"cpu", "toy"} <= set(device_names()) == set(roller.devices()) and module not in sys.modules


def test_a_distribution_becomes_a_device(install):
    install("toy", GOOD)
    device = load_device("toy")
    assert device is load_device("toy") and device.name == "toy" and device.default_spec() == toy_spec()
    x = roller.tensor((4,), name="x")
    kernel = roller.compile(x + 1, "toy")
    assert kernel.spec.chip == "one"


def test_unknown_devices_list_what_there_is():
    with pytest.raises(UnknownDeviceError, match=r"'cpv' \(did you mean 'cpu'\?\); installed: .*cpu"):
        load_device("cpv")
    with pytest.raises(UnknownDeviceError, match="installed"):
        roller.compile(roller.tensor((4,)) + 1, 3)
    with pytest.raises(UnknownDeviceError, match=r"'H100' \(did you mean 'cuda:h100'\?\)"):
        roller.compile(roller.tensor((4,)) + 1, "H100")
    with pytest.raises(SpecError, match=r"did you mean 'h100'"):
        roller.compile(roller.tensor((4,)) + 1, "cuda:H100")


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("import no_such_module_here", PluginLoadError, "does not import: ModuleNotFoundError"),
        ("raise SystemExit(3)", PluginLoadError, "SystemExit: 3"),
        ("1 / 0", PluginLoadError, "ZeroDivisionError"),
        ("def", PluginLoadError, "SyntaxError"),
        ("", PluginApiError, "does not say ROLLER_API"),
        ("ROLLER_API = 2", PluginApiError, "speaks plugin API 2; this roller speaks 1"),
        ("ROLLER_API = 1", PluginApiError, "lacks required hooks: roller_default_spec, roller_codegen"),
        (
            GOOD + "from roller.plugin import hookimpl\n@hookimpl\ndef roller_atom(): pass\n",
            PluginApiError,
            "roller_atom",
        ),
        (
            GOOD + "from roller.plugin import hookimpl\n@hookimpl\ndef roller_atoms(spec, colour): pass\n",
            PluginApiError,
            "colour",
        ),
    ],
)
def test_broken_plugins_are_named_and_disturb_no_other(install, code, error, said):
    install("broken", code)
    install("toy", GOOD)
    with pytest.raises(error, match=said) as caught:
        load_device("broken")
    assert "'broken'" in str(caught.value) and caught.value.device == "broken"
    assert load_device("toy").default_spec() == toy_spec()
    assert "cpu" in {e.device for e in roller.specs()}


def test_two_plugins_of_one_name_are_refused(install):
    install("toy", GOOD, "one")
    install("toy", GOOD, "two")
    with pytest.raises(PluginLoadError, match="several plugins call themselves 'toy'"):
        load_device("toy")


def device_with(**hooks):
    plugin = type("Changed", (Toy,), {name: hookimpl(function) for name, function in hooks.items()})()
    return Device("toy", plugin)


EXPR = fuse(ops.expression(ops.relu(ops.matmul(roller.tensor((8, 8)), roller.tensor((8, 8))))))


ARTIFACT = Artifact("toy", b"", {}, {}, "toy", toy_spec())


def boom(*_):
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("hook", "call"),
    [
        ("roller_default_spec", lambda d: d.default_spec()),
        ("roller_codegen", lambda d: d.codegen(toy_spec(), None, BuildOptions())),
        ("roller_build", lambda d: d.build(toy_spec(), None, BuildOptions())),
        ("roller_atoms", lambda d: d.rules(toy_spec(), EXPR)),
        ("roller_tile_multiples", lambda d: d.rules(toy_spec(), EXPR)),
        ("roller_cost_parameters", lambda d: d.cost_parameters(toy_spec(), EXPR)),
        ("roller_estimate", lambda d: d.estimate(toy_spec(), None)),
        ("roller_refusal", lambda d: d.refusal(toy_spec(), None)),
        ("roller_load_kernel", lambda d: d.load_kernel(ARTIFACT)),
        ("roller_emulate", lambda d: d.emulate(ARTIFACT)),
        ("roller_assembly", lambda d: d.assembly(ARTIFACT)),
        ("roller_spec_dirs", lambda d: d.spec_dirs()),
        ("roller_requirements", lambda d: d.requirements()),
        ("roller_build_problem", lambda d: d.build_problem(toy_spec())),
        ("roller_measure_spec", lambda d: d.measure_spec()),
    ],
)
def test_hooks_that_raise_or_give_rubbish(hook, call):
    with pytest.raises(HookError, match=f"plugin 'toy': {hook} raised ValueError: no idea") as caught:
        call(device_with(**{hook: lambda self: boom()}))
    assert caught.value.hook == hook and isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(HookError, match=f"{hook} gave a complex"):  # a number is nothing that any hook gives
        call(device_with(**{hook: lambda self: 1j}))


def test_own_errors_of_a_plugin_pass_unchanged():
    def refuse(self):
        raise CodegenError("no such instruction")

    with pytest.raises(CodegenError, match="no such instruction"):
        device_with(roller_codegen=refuse).codegen(toy_spec(), None, BuildOptions())


def test_wrong_contents_are_refused():
    def refused(call, **hooks):
        with pytest.raises(HookError):
            call(device_with(**hooks))

    refused(lambda d: d.rules(toy_spec(), EXPR), roller_atoms=lambda self: ["f32"])
    refused(lambda d: d.rules(toy_spec(), EXPR), roller_tile_multiples=lambda self: {"m": 3})
    refused(lambda d: d.refusal(toy_spec(), None), roller_refusal=lambda self: ("rule",))
    refused(lambda d: d.spec_dirs(), roller_spec_dirs=lambda self: "folder")
    refused(lambda d: d.requirements(), roller_requirements=lambda self: [1])
    refused(lambda d: d.default_spec(), roller_default_spec=lambda self: toy_spec("other"))
    refused(lambda d: d.default_spec(), roller_default_spec=lambda self: None)


def test_a_plugin_without_an_emulator_is_no_broken_one():
    with pytest.raises(DeviceUnavailableError, match="device 'toy' has no emulator"):
        Device("toy", Toy()).emulate(roller.compile(roller.tensor((4,)) + 1, "cpu:zen3").artifact)


def constructed_by(model, expr=EXPR):
    """What construction finds where a device brings its own model."""
    device = device_with(roller_estimate=lambda self, spec, program: model(program))
    return construct(expr, toy_spec(), device.rules(toy_spec(), expr), device.cost_parameters(toy_spec(), expr), 5)


def own(seconds):
    return Estimate(seconds, (("own", seconds),))


TWO_PRODUCTS = ops.matmul(ops.relu(ops.matmul(roller.tensor((64, 64)), roller.tensor((64, 64)))), roller.tensor((64, 8)))
TWO = fuse(ops.expression(TWO_PRODUCTS))


def test_a_device_ranks_by_its_own_model():
    for model in (lambda p: own(1e-6 * p.unit_tiles), lambda p: own(1e-6 / p.unit_tiles)):
        found = constructed_by(model)
        assert all(c.estimate == model(c.program.stages[0]) for c in found)
        assert [c.estimate.seconds for c in found] == sorted(c.estimate.seconds for c in found)
    few, many = (
        constructed_by(model)[0].program.stages[0].unit_tiles
        for model in (lambda p: own(p.unit_tiles), lambda p: own(1 / p.unit_tiles))
    )
    assert few == 1 < many


def test_whole_programs_of_several_stages_are_rated_as_one():
    asked = []

    def model(program):
        if isinstance(program, RProgram):
            asked.append(program)
            return Estimate(3.0, (("whole", 3.0),))
        return own(1.0)

    found = constructed_by(model, TWO)
    assert len(TWO.stages) == 2 and [c.program for c in found] == asked[:5] and all(p.expr is TWO for p in asked)
    assert {(c.estimate.seconds, c.estimate.bound_by) for c in found} == {(3.0, "whole")}
    assert {c.estimate.bound_by for c in constructed_by(lambda p: None if isinstance(p, RProgram) else own(1.0), TWO)} == {"own"}


def test_beginnings_of_several_stages_are_rated_and_the_best_pair_is_found():
    three = fuse(ops.expression(ops.matmul(TWO_PRODUCTS, roller.tensor((8, 64)))))
    asked = []

    def model(program):
        if not isinstance(program, RProgram):
            few = program.nest.stage is three.stages[-1]
            return own(1.0 + 1e-3 * (program.unit_tiles if few else 1 / program.unit_tiles))
        asked.append(len(program.expr.stages))
        pairs = zip(program.stages, program.stages[1:], strict=False)
        return own(len(program.stages) + sum(abs(one.unit_tiles - other.unit_tiles) for one, other in pairs))

    best = constructed_by(model, three)[0]
    assert len(three.stages) == 3 == len(best.program.stages) and set(asked) == {2, 3}
    alone = [
        constructed_by(model, TensorExpr(three.inputs + tuple(s.output for s in three.stages[:n]), (stage,)))[0]
        for n, stage in enumerate(three.stages)
    ]
    apart = RProgram(three, tuple(c.program.stages[0] for c in alone))
    assert best.estimate.seconds < model(apart).seconds, "stages that go together are taken, though others are better alone"


def test_what_a_device_leaves_to_the_core_is_rated_by_the_core():
    plain = construct(EXPR, toy_spec(), Device("toy", Toy()).rules(toy_spec(), EXPR), CostParameters(), 5)
    found = constructed_by(lambda program: None)
    assert {name for name, _ in found[0].estimate.terms} == {name for name, _ in plain[0].estimate.terms}
    assert found[0].estimate.seconds <= plain[0].estimate.seconds  # more is tried where the core's bounds may not be the device's


def test_infinite_predictions_refuse_by_their_rule_and_say_why():
    never = Estimate(math.inf, (("blue tiles", math.inf),), reason="tiles are blue today")
    with pytest.raises(ConstructionError, match="tiles are blue today") as caught:
        constructed_by(lambda program: never)
    assert caught.value.refusals["blue tiles"] > 0
    left = constructed_by(lambda p: never if p.unit_tiles == 1 else own(1.0))
    assert left and all(c.program.stages[0].unit_tiles > 1 for c in left)


def test_of_programs_that_lack_memory_the_error_speaks_of_the_closest():
    def model(program):
        short = program.unit_tiles
        return Estimate(math.inf, (("room", math.inf),), reason=f"{short} bytes short", short_bytes=short)

    with pytest.raises(ConstructionError, match=": 1 bytes short"):
        constructed_by(model)


def test_estimates_of_simulated_machines_keep_their_clock():
    one, other = Estimate(2e-6, (("own", 2e-6),), clock_ghz=1.5), Estimate(1e-6, (("own", 1e-6),), clock_ghz=1.5)
    assert one.cycles() == 3000 and own(1.0).cycles() is None
    assert combine_estimates([one, other]).cycles() == 4500 and combine_estimates([one, own(1.0)]).cycles() is None
    assert estimate_from_json(estimate_to_json(one)) == one and "clock_ghz" not in estimate_to_json(own(1.0))
    assert one.to_dict()["simulated_cycles"] == 3000 and "simulated_cycles" not in own(1.0).to_dict()


def test_profiles_are_passed_on_and_what_they_raise_is_contained():
    runner = SimpleNamespace(run=lambda inputs, out: None, close=lambda: None, profile=lambda: "all of it")
    assert device_with(roller_load_kernel=lambda self: runner).load_kernel(ARTIFACT).profile() == "all of it"
    runner.profile = boom
    with pytest.raises(HookError, match=r"profile\(\) raised ValueError"):
        device_with(roller_load_kernel=lambda self: runner).load_kernel(ARTIFACT).profile()
    del runner.profile
    with pytest.raises(KernelError, match="the toy device cannot profile"):
        device_with(roller_load_kernel=lambda self: runner).load_kernel(ARTIFACT).profile()


def test_silent_plugins_get_defaults():
    device = Device("toy", Toy())
    rules = device.rules(toy_spec(), EXPR)
    assert rules.atoms == toy_spec().atoms and rules.multiple(1, "m") == Multiple()
    assert device.cost_parameters(toy_spec(), EXPR) == CostParameters()
    assert device.refusal(toy_spec(), None) is None and device.spec_dirs() == device.requirements() == ()
    assert device.measure_spec() is None


def test_each_stage_has_multiples_of_its_own():
    def multiples(self, spec, expr, level):
        return {a.name: Multiple(a.extent) for s in reversed(expr.stages) for a in s.axes}  # names mean the first stage's

    rules = device_with(roller_tile_multiples=multiples).rules(toy_spec(), TWO)
    level = next(level for level, _ in rules.multiples)
    for stage in TWO.stages:
        of_stage = rules.of(stage.name)
        assert {a.name: of_stage.multiple(level, a.name).step for a in stage.axes} == stage.extents
        assert of_stage.atoms == rules.atoms
    assert rules.multiple(level, "n") == Multiple(64) and rules.of(TWO.stages[1].name).multiple(level, "n") == Multiple(8)
    assert Rules((), {}).of("any") == Rules((), {})


def test_default_multiples_are_whole_transactions_where_software_places_data():
    from roller.device.defaults import tile_multiples

    gpu = find_spec("cuda", "v100-pcie")
    expr = fuse(ops.expression(ops.matmul(roller.tensor((256, 256)), roller.tensor((256, 256)))))
    found = [tile_multiples(gpu, expr, level) for level in range(1, len(gpu.levels))]
    assert any("n" in table for table in found) and found[-1] == {}
    assert all(m.step * 4 % 4 == 0 for table in found for m in table.values())


def test_answers_are_remembered():
    calls = []

    def atoms(self, spec, expr):
        calls.append(expr)
        return spec.atoms[:1]

    device = device_with(roller_atoms=atoms)
    first = device.rules(toy_spec(), EXPR)
    assert device.rules(toy_spec(), EXPR) is first and len(calls) == 1 and len(first.atoms) == 1


def leave():
    raise SystemExit(3)


def test_a_plugin_that_exits_is_contained():
    with pytest.raises(HookError, match="roller_build raised SystemExit: 3"):
        device_with(roller_build=lambda self: leave()).build(toy_spec(), None, BuildOptions())


@pytest.mark.parametrize("seconds", [math.nan, -1.0])
def test_predictions_are_numbers_of_0_or_more(seconds):
    with pytest.raises(HookError, match=f"roller_estimate gave {seconds} seconds for .*; a prediction is a number of 0 or more"):
        constructed_by(lambda program: own(seconds))


def test_what_a_device_computes_is_told_with_its_factors():
    """int32 as the sum of int8 products is no int32 that one may compute with."""
    spec = toy_spec()
    atom = next(a for a in spec.atoms if a.in_dtype == "float32")
    narrow = atom.model_copy(update={"name": "i8", "in_dtype": "int8", "acc_dtype": "int32"})
    op = ops.matmul(ops.tensor((4, 4), "float64"), ops.tensor((4, 4), "float64"))
    with pytest.raises(ConstructionError, match="it computes in float32, int32 of int8 factors: cast to one of these"):
        construct(fuse(ops.expression(op)), spec, Rules((atom, narrow), {}), CostParameters(), 1)


def test_saved_kernels_hold_numpys_numbers_and_nothing_that_a_file_cannot(tmp_path):
    counted = Artifact("toy", b"", {"blocks": np.int64(7), "shape": [np.float32(0.5)]}, {}, "toy", toy_spec())
    counted.save(tmp_path / "k.roller")
    assert Artifact.load(tmp_path / "k.roller").launch["blocks"] == 7
    with pytest.raises(KernelError, match="the artifact holds a object, which a file cannot"):
        Artifact("toy", b"", {"it": object()}, {}, "toy", toy_spec()).save(tmp_path / "k.roller")
    with pytest.raises(KernelError, match="the path of the file to write expected, not a int"):
        counted.save(3)


def test_tiles_of_units_with_one_memory_are_rated():
    """Their innermost tile is the atom's: it lies in the memory of the tile around it."""
    op = ops.matmul(ops.tensor((64, 64)), ops.tensor((64, 64)))
    with pytest.raises(roller.ExpressionError, match="1 tiles given, ipu_sim:bow has 2 levels: SRAM, atom"):
        roller.rate(op, "ipu_sim", tiles=[{"m": 16, "n": 16, "k": 16}])
    chosen = roller.compile(op, "ipu_sim").program.stages[0]
    tiles = [dict(zip([d.name for d in chosen.nest.dims], tile, strict=True)) for tile in chosen.tiles]
    assert roller.rate(op, "ipu_sim", tiles=tiles).seconds > 0
