"""Device plugins: discovery, loading, checks and calls. No other module uses pluggy or entry points.

Each plugin has its own manager, so plugins cannot affect one another. An exception that is no `RollerError` becomes a `HookError`
with the names of plugin and hook. Only exceptions are contained: a plugin that crashes or hangs does so in the caller's process, so
code that may crash runs through `roller.runtime.worker`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from roller.cost.parameters import CostParameters
from roller.device import defaults, hookspecs
from roller.errors import (
    DeviceUnavailableError,
    HookError,
    KernelError,
    PluginApiError,
    PluginLoadError,
    RollerError,
    UnknownDeviceError,
)
from roller.ir.expr import TensorExpr
from roller.program.alignment import Multiple, Rules
from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram, StageProgram, tiled_levels
from roller.runtime.arrays import Array
from roller.runtime.artifact import Artifact, BuildOptions, KernelSource, Profile, Runner
from roller.target.hardware import ComputeAtom, HardwareSpec

_MEMORY = 256  # cached answers of the hooks that construction calls, for each plugin and hook


def device_names() -> tuple[str, ...]:
    """Returns the devices with installed plugins, sorted; no plugin is imported."""
    return tuple(sorted({entry.name for entry in entry_points(group=hookspecs.GROUP)}))


def is_device(name: str) -> bool:
    """Returns whether there is a device of that name; asks the installed distributions, in milliseconds, about new names only."""
    return name in _loaded or name in device_names()


_loaded: set[str] = set()  # names of devices that were loaded before


@cache
def load_device(name: str) -> Device:
    """Returns the device of that name, imported and checked once.

    `UnknownDeviceError`, `PluginLoadError` (does not import, or two distributions claim the name) or `PluginApiError`.
    """
    found = {(e.value, e.dist.name if e.dist else ""): e for e in entry_points(group=hookspecs.GROUP, name=name)}
    if not found:
        known = device_names()
        close = get_close_matches(name, known, n=1)
        raise UnknownDeviceError(name, known, f" (did you mean {close[0]!r}?)" if close else "")
    if len(found) > 1:
        claims = ", ".join(f"{value} of {dist or 'an unnamed distribution'}" for value, dist in sorted(found))
        raise PluginLoadError(f"several plugins call themselves {name!r}: {claims}; uninstall all but one", name)
    device = Device(name, _imported(next(iter(found.values()))))
    _loaded.add(name)
    return device


def _imported(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise PluginLoadError(
            f"plugin {entry.name!r} ({entry.value}) does not import: {type(error).__name__}: {error}", entry.name
        ) from error


class Device:
    """One plugin behind typed methods: checked results of its hooks, with defaults for hooks that it lacks."""

    def __init__(self, name: str, plugin: Any) -> None:
        self.name = name
        module = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
        self.package = module.partition(".")[0]  # the top-level package or module that the plugin's code lies in
        self._hooks = _registered(name, plugin).hook
        # Construction may call these repeatedly, in any order; every answer is computed once.
        self.rules = lru_cache(_MEMORY)(self._rules)
        self.cost_parameters = lru_cache(_MEMORY)(self._cost_parameters)

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def default_spec(self) -> HardwareSpec:
        """Returns the chip to compile for if none is named."""
        return self._own("roller_default_spec", self._ask("roller_default_spec", HardwareSpec))

    def codegen(self, spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
        """Returns the program as source text."""
        source: KernelSource = self._ask("roller_codegen", KernelSource, spec=spec, program=program, options=options)
        return source

    def build(self, spec: HardwareSpec, source: KernelSource, options: BuildOptions) -> Artifact:
        """Returns the source as a binary."""
        artifact: Artifact = self._ask("roller_build", Artifact, spec=spec, source=source, options=options)
        return artifact

    def load_kernel(self, artifact: Artifact) -> Contained:
        """Returns the artifact ready to run here."""
        return self._runner("roller_load_kernel", artifact)

    def emulate(self, artifact: Artifact) -> Contained:
        """Returns the artifact ready to run without its device; `DeviceUnavailableError` if the plugin has no emulator."""
        return self._runner("roller_emulate", artifact, f"device {self.name!r} has no emulator: kernels run on the device alone")

    @property
    def emulates(self) -> bool:
        """True if the plugin has an emulator."""
        return bool(self._hooks.roller_emulate.get_hookimpls())

    def assembly(self, artifact: Artifact) -> str | None:
        """Returns the artifact's machine code as text; None if the plugin cannot show it."""
        found: str | None = self._ask("roller_assembly", str, None, spec=artifact.spec, artifact=artifact)
        return found

    def refusal(self, spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
        """Returns why the device cannot run the program: rule and reason; None if it can."""
        found = self._ask("roller_refusal", tuple, None, spec=spec, program=program)
        if found is None:
            return None
        if len(found) != 2 or not all(isinstance(part, str) for part in found):
            raise self._wrong("roller_refusal", "a rule and a reason", found)
        return found[0], found[1]

    def spec_dirs(self) -> tuple[Path, ...]:
        """Returns folders with spec files of the plugin's own."""
        found = self._ask("roller_spec_dirs", Sequence, ())
        return tuple(Path(self._checked("roller_spec_dirs", str | Path, folder)) for folder in found)

    def requirements(self) -> tuple[str, ...]:
        """Returns what this machine lacks to build or run."""
        found = self._ask("roller_requirements", Sequence, ())
        return tuple(self._checked("roller_requirements", str, line) for line in found)

    def build_problem(self, spec: HardwareSpec) -> str | None:
        """Returns why no kernel for a chip can be built on this machine; None if one can be."""
        found: str | None = self._ask("roller_build_problem", str, None, spec=spec)
        return found

    def toolchain(self, spec: HardwareSpec) -> dict[str, str] | None:
        """Returns what a build for a chip depends on outside of roller, TVM and the plugin's package; None if that is not known."""
        found = self._ask("roller_toolchain", Mapping, None, spec=spec)
        return None if found is None else {str(name): self._checked("roller_toolchain", str, text) for name, text in found.items()}

    def measure_spec(self) -> HardwareSpec | None:
        """Measures the attached chip now; None if the plugin cannot."""
        found = self._ask("roller_measure_spec", HardwareSpec, None)
        return None if found is None else self._own("roller_measure_spec", found)

    def _rules(self, spec: HardwareSpec, expr: TensorExpr) -> Rules:
        """Returns the constraints on tiles of this expression on this chip, for construction."""
        atoms = self._ask("roller_atoms", Sequence, defaults.atoms(spec, expr), spec=spec, expr=expr)
        parts = expr.each_alone() if len(expr.stages) > 1 else []
        stages = {part.output.name: self._multiples(spec, part) for part in parts}
        return Rules(tuple(self._checked("roller_atoms", ComputeAtom, a) for a in atoms), self._multiples(spec, expr), stages)

    def _multiples(self, spec: HardwareSpec, expr: TensorExpr) -> dict[tuple[int, str], Multiple]:
        """Returns the permitted extents of tiles, by level and dimension."""
        multiples: dict[tuple[int, str], Multiple] = {}
        for level in tiled_levels(spec):
            default = defaults.tile_multiples(spec, expr, level)
            found = self._ask("roller_tile_multiples", Mapping, default, spec=spec, expr=expr, level=level)
            for dim, multiple in found.items():
                multiples[level, str(dim)] = self._checked("roller_tile_multiples", Multiple, multiple)
        return multiples

    def _cost_parameters(self, spec: HardwareSpec, expr: TensorExpr) -> CostParameters:
        """Returns parameters of the cost model beyond the spec."""
        default = defaults.cost_parameters(spec, expr)
        found: CostParameters = self._ask("roller_cost_parameters", CostParameters, default, spec=spec, expr=expr)
        own = self._hooks.roller_estimate.get_hookimpls()
        return replace(found, own_model=OwnModel(self, spec)) if own else found

    def estimate(self, spec: HardwareSpec, program: StageProgram | RProgram, worth: float = math.inf) -> Estimate | None:
        """Returns the device's own prediction for a stage's program or a whole one; None if it uses the core's model.

        `worth`: a cutoff in seconds, from which on the prediction need not be exact.
        """
        found: Estimate | None = self._ask("roller_estimate", Estimate, None, spec=spec, program=program, worth=worth)
        if found is not None and not found.seconds >= 0:
            said = f"gave {found.seconds} seconds for {program.describe()}; a prediction is a number of 0 or more"
            raise HookError(f"plugin {self.name!r}: roller_estimate {said}", self.name, "roller_estimate")
        return found

    def _runner(self, hook: str, artifact: Artifact, none: str | None = None) -> Contained:
        """Returns a hook's runner for an artifact; `none` is the error text if the hook is optional and absent."""
        default = ... if none is None else None
        found: Any = self._ask(hook, object, default, spec=artifact.spec, artifact=artifact)
        if found is None and none is not None:
            raise DeviceUnavailableError(none)
        if not callable(getattr(found, "run", None)) or not callable(getattr(found, "close", None)):
            raise self._wrong(hook, "an object with run() and close()", found)
        return Contained(found, self.name)

    def _own(self, hook: str, spec: HardwareSpec) -> HardwareSpec:
        if spec.device != self.name:
            raise HookError(f"plugin {self.name!r}: {hook} gave a spec of device {spec.device!r}", self.name, hook)
        return spec

    def _ask(self, hook: str, wanted: Any, default: Any = ..., **arguments: Any) -> Any:
        """Returns a hook's result for the arguments, else the default; a hook without default must return a value."""
        found = _contained(self.name, hook, getattr(self._hooks, hook), **arguments)
        if found is None and default is not ...:
            return default
        return self._checked(hook, wanted, found)

    def _checked(self, hook: str, wanted: Any, found: Any) -> Any:
        if isinstance(found, wanted) and not (wanted is Sequence and isinstance(found, str)) and found is not None:
            return found
        raise self._wrong(hook, getattr(wanted, "__name__", str(wanted)), found)

    def _wrong(self, hook: str, wanted: str, found: object) -> HookError:
        given = "nothing" if found is None else f"a {type(found).__name__}"
        return HookError(f"plugin {self.name!r}: {hook} gave {given}, expected: {wanted}", self.name, hook)


@dataclass(frozen=True)
class OwnModel:
    """A device's own model of one chip."""

    device: Device
    spec: HardwareSpec

    def __call__(self, program: StageProgram | RProgram, worth: float) -> Estimate | None:
        """Returns the prediction for a program; from `worth` seconds on it need not be exact."""
        return self.device.estimate(self.spec, program, worth)


class Contained:
    """A plugin's runner, with its exceptions contained."""

    def __init__(self, runner: Runner, device: str) -> None:
        self._runner, self._device = runner, device
        self.shortcut: Callable[[int, int], int] | None = getattr(runner, "shortcut", None)
        self.resident = self._resident if callable(getattr(runner, "resident", None)) else None

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """See `roller.runtime.artifact.Runner`."""
        _contained(self._device, "run()", self._runner.run, inputs, out)

    def profile(self) -> Profile:
        """See `roller.runtime.artifact.Runner`; `KernelError` if the device has no profile."""
        ask = getattr(self._runner, "profile", None)
        if not callable(ask):
            raise KernelError(f"the {self._device} device cannot profile a kernel; time it (`roller bench`)")
        found: Profile = _contained(self._device, "profile()", ask)
        return found

    def _resident(self, arrays: tuple[Any, ...], out: Any, stream: Any, wanted: Sequence[Any]) -> Any:
        """See `roller.runtime.artifact.Runner`."""
        return _contained(self._device, "resident()", self._runner.resident, arrays, out, stream, wanted)  # type: ignore[attr-defined]

    def close(self) -> None:
        """See `roller.runtime.artifact.Runner`."""
        self.shortcut = None
        _contained(self._device, "close()", self._runner.close)


def _contained(device: str, hook: str, call: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """Calls a plugin's function; an exception that is no `RollerError` becomes a `HookError`."""
    try:
        return call(*given, **named)
    except RollerError:
        raise
    except (Exception, SystemExit) as error:
        raise hook_error(device, hook, error) from error


def hook_error(device: str, hook: str, error: Exception | SystemExit) -> HookError:
    """Returns the error for a plugin's exception that is no `RollerError`."""
    return HookError(f"plugin {device!r}: {hook} raised {type(error).__name__}: {error}", device, hook)


def _registered(name: str, plugin: Any) -> pluggy.PluginManager:
    """Returns the plugin in a manager of its own; `PluginApiError` if version, hooks or their arguments do not match."""
    version = getattr(plugin, "ROLLER_API", None)
    if version != hookspecs.API_VERSION:
        said = "does not say ROLLER_API" if version is None else f"speaks plugin API {version!r}"
        raise PluginApiError(f"plugin {name!r} {said}; this roller speaks {hookspecs.API_VERSION}", name)
    manager = pluggy.PluginManager("roller")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except (Exception, SystemExit) as error:
        raise PluginApiError(f"plugin {name!r}: {' '.join(str(error).split())}", name) from error
    missing = [hook for hook in hookspecs.REQUIRED if not getattr(manager.hook, hook).get_hookimpls()]
    if missing:
        raise PluginApiError(f"plugin {name!r} lacks required hooks: {', '.join(missing)}", name)
    return manager
