import os
import sys
import time

import pytest
from toy_plugin import Toy, toy_spec

import roller
from roller import ops
from roller.align import Multiple
from roller.devices import Device, device_names, load_device
from roller.errors import (
    CodegenError,
    DeviceUnavailableError,
    HookError,
    PluginApiError,
    PluginLoadError,
    UnknownDeviceError,
)
from roller.fusion import fuse
from roller.isolated import run_isolated
from roller.kernel import Artifact, BuildOptions
from roller.plugin import hookimpl
from roller.rates import CostParameters


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
        ("roller_refusal", lambda d: d.refusal(toy_spec(), None)),
        ("roller_load_kernel", lambda d: d.load_kernel(ARTIFACT)),
        ("roller_emulate", lambda d: d.emulate(ARTIFACT)),
        ("roller_assembly", lambda d: d.assembly(ARTIFACT)),
        ("roller_spec_dirs", lambda d: d.spec_dirs()),
        ("roller_requirements", lambda d: d.requirements()),
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


def test_silent_plugins_get_defaults():
    device = Device("toy", Toy())
    rules = device.rules(toy_spec(), EXPR)
    assert rules.atoms == toy_spec().atoms and rules.multiple(1, "m") == Multiple()
    assert device.cost_parameters(toy_spec(), EXPR) == CostParameters()
    assert device.refusal(toy_spec(), None) is None and device.spec_dirs() == device.requirements() == ()
    assert device.measure_spec() is None


def test_default_multiples_are_whole_transactions_where_software_places_data():
    from roller.catalog import find_spec
    from roller.defaults import tile_multiples

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


# --- the worker process ----------------------------------------------------------------------------------------------


def test_worker_runs_functions_and_stays():
    first = run_isolated(os.getpid)
    assert first != os.getpid() and run_isolated(os.getpid) == first
    assert run_isolated(divmod, 7, 2) == (3, 1)


def test_worker_raises_what_the_function_raises():
    with pytest.raises(ZeroDivisionError):
        run_isolated(divmod, 1, 0)


def test_crashes_and_hangs_are_errors_and_the_next_call_works():
    with pytest.raises(roller.KernelError, match="crashed its process: SIGABRT"):
        run_isolated(os.abort)
    with pytest.raises(CodegenError, match="exit status 3"):
        run_isolated(os._exit, 3, error=CodegenError)
    begin = time.perf_counter()
    with pytest.raises(roller.KernelError, match=r"longer than 0\.3 s"):
        run_isolated(time.sleep, 60, deadline_s=0.3)
    assert time.perf_counter() - begin < 5
    assert run_isolated(divmod, 7, 2) == (3, 1)


def test_what_cannot_travel_is_said():
    with pytest.raises(roller.KernelError, match="cannot be sent"):
        run_isolated(lambda: 1)
    with pytest.raises(roller.KernelError, match="cannot be sent back"):
        run_isolated(memoryview, b"x")
