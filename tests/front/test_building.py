"""Several programs built at once, and binaries that turn out worse than their programs were predicted to be."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

import roller
from roller import building, ops, pipeline
from roller.cost.model import estimate
from roller.cost.occupancy import residents
from roller.device.chip import load_spec, resolve
from roller.device.plan import Plan
from roller.errors import CodegenError
from roller.ir.fusion import fuse
from roller.plugin import hookimpl
from roller.program.record import Choice
from roller.runtime.artifact import BuildOptions, Later
from roller.target.catalog import spec_from_dict
from toy_plugin import Toy


def matmul(m: int = 24, n: int = 32, k: int = 16) -> ops.SymbolicTensor:
    return ops.relu(ops.matmul(roller.tensor((m, k), name="a"), roller.tensor((k, n), name="b")))


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "cores", lambda: 2)


# --- at once ---------------------------------------------------------------------------------------------------------


def test_kernels_built_at_once_are_those_built_one_by_one(two_cores: None) -> None:
    """The same bytes in the same order, for a device whose compiler is TVM with LLVM."""
    op = ops.gelu(ops.matmul(roller.tensor((70, 90), name="a"), roller.tensor((90, 50), name="b")))
    kernels = roller.compile_top(op, "cpu:zen5", top_k=5)
    plugin, chip = resolve("cpu:zen5", None)
    choices = pipeline.choices_of(fuse(ops.expression(op)), plugin, chip, 5, frozenset())
    plan = Plan(plugin, chip, BuildOptions())
    assert [k.artifact.to_bytes() for k in kernels] == [building.build(plan, c).artifact.to_bytes() for c in choices]
    assert [k.program for k in kernels] == [c.program for c in choices]
    assert kernels[0].artifact.to_bytes() == roller.compile(op, "cpu:zen5", top_k=5).artifact.to_bytes()
    assert all({c.program for c in k.candidates} == {c.program for c in choices} for k in kernels)
    assert all(k.candidates[0].program == k.program for k in kernels)


def test_builds_go_on_at_the_same_time(toy: Any, two_cores: None) -> None:
    meeting = threading.Barrier(2)

    class Meeting(Toy):
        @hookimpl
        def roller_build(self, spec, source):
            meeting.wait(timeout=60)  # breaks unless a second program is being built
            return Toy.roller_build(self, spec, source)

    toy(Meeting())
    assert len(roller.compile_top(matmul(), "toy", top_k=4)) == 4


class Failing(Toy):
    """Programs that fail to build by their number in order of prediction."""

    def __init__(self, ranked: list[str], *failing: int) -> None:
        self.ranked, self.failing, self.begun = ranked, failing, []

    @hookimpl
    def roller_build(self, spec, source):
        number = self.ranked.index(source.text) + 1
        self.begun.append(number)
        if number in self.failing:
            raise CodegenError(f"no {number}")
        return Toy.roller_build(self, spec, source)


@pytest.fixture
def ranked(toy: Any) -> list[str]:
    """Source texts of the best programs, best first."""
    toy(Toy())
    return [k.source for k in roller.compile_top(matmul(), "toy", top_k=6)]


@pytest.mark.parametrize("how", ["top", "measure"])
def test_the_first_program_that_fails_is_named(toy: Any, two_cores: None, ranked: list[str], how: str) -> None:
    plugin = Failing(ranked, 2, 3)
    toy(plugin)
    with pytest.raises(CodegenError, match="no 2") as caught:
        if how == "top":
            roller.compile_top(matmul(), "toy", top_k=6)
        else:
            roller.compile(matmul(), "toy", top_k=6, measure=True)
    (note,) = caught.value.__notes__
    assert note.startswith("program 2 of 6: m,n,k: ")


def test_what_does_not_build_costs_nobody_else(toy: Any, two_cores: None, ranked: list[str]) -> None:
    device = toy(Failing(ranked, 2, 5))
    choices = pipeline.choices_of(fuse(ops.expression(matmul())), device, device.default_spec(), 6, frozenset())
    found = list(building.attempts(Plan(device, device.default_spec()), choices))
    assert [isinstance(f, CodegenError) for f in found] == [False, True, False, False, True, False]


def test_after_an_interruption_no_other_program_is_begun(toy: Any, two_cores: None, ranked: list[str]) -> None:
    class Interrupted(Failing):
        @hookimpl
        def roller_build(self, spec, source):
            made = Failing.roller_build(self, spec, source)
            if len(self.begun) == 1:
                raise KeyboardInterrupt
            stopped.wait(timeout=60)
            return made

    stopped, plugin, before = threading.Event(), Interrupted(ranked), threading.active_count()
    toy(plugin)
    threading.Timer(0.5, stopped.set).start()
    with pytest.raises(KeyboardInterrupt):
        roller.compile_top(matmul(), "toy", top_k=6)
    assert len(plugin.begun) < 6, "the others were begun all the same"
    assert threading.active_count() == before, "threads are left behind"


def test_steps_say_how_far_it_is(toy: Any, caplog: pytest.LogCaptureFixture) -> None:
    toy(Toy())
    with caplog.at_level("INFO", logger="roller.step"):
        roller.compile_top(matmul(), "toy", top_k=2)
    wanted = ["constructing programs", "building 2 programs", "built 1 of 2 programs", "built 2 of 2 programs"]
    assert [r.getMessage() for r in caplog.records] == wanted


def test_measuring_asks_for_no_resources(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them off machine code can take as long as building it."""

    class Thorough(Toy):
        @hookimpl
        def roller_build(self, spec, source):
            return replace(Toy.roller_build(self, spec, source), resources=Later(lambda: pytest.fail("asked for")))

    monkeypatch.setattr("roller.trial.MEASURE_SECONDS", 0.01)
    toy(Thorough())
    assert roller.compile(matmul(), "toy", top_k=2, measure=True).candidates[0].measured_s is not None


# --- binaries with room for fewer tiles ------------------------------------------------------------------------------


def many_lanes() -> Any:
    """A GPU's spec of a device whose kernels are never compiled for it."""
    return spec_from_dict({**load_spec("cuda:v100").model_dump(mode="json"), "device": "toy", "chip": "many", "sources": {}})


class Crowded(Toy):
    """Units with lanes; the toolchain says how many tiles a unit has room for of each program built, in the order of building."""

    def __init__(self, *room: int | None) -> None:
        self.room, self.built = room, 0

    @hookimpl
    def roller_default_spec(self):
        return many_lanes()

    @hookimpl
    def roller_build(self, spec, source):
        room = self.room[min(self.built, len(self.room) - 1)]
        self.built += 1
        return replace(Toy.roller_build(self, spec, source), resources={} if room is None else {"reduce_sum.resident_tiles": room})


def rows() -> ops.SymbolicTensor:
    """Many tiles that need little: a unit is assumed to hold several at a time."""
    return ops.reduce_sum(roller.tensor((8192, 4096), name="x"), 1)


def choices_of(toy: Any) -> list[Choice]:
    toy(Crowded(None))
    return list(roller.compile(rows(), "toy", top_k=6).candidates)


def assumed(choice: Choice) -> int:
    (found,) = residents(choice.program, many_lanes(), {})
    return found.predicted


def test_room_for_as_many_changes_nothing(toy: Any) -> None:
    ranked = choices_of(toy)
    assert assumed(ranked[0]) > 1
    for room in (assumed(ranked[0]), 64):
        plugin = Crowded(room)
        toy(plugin)
        kernel = roller.compile(rows(), "toy", top_k=6)
        assert (plugin.built, list(kernel.candidates)) == (1, ranked)
        said = f"occupancy: {assumed(ranked[0])} tiles per unit predicted, {room} by the binary"
        assert said in str(kernel.explain())


def test_a_program_with_room_for_fewer_makes_way_for_one_that_is_faster_then(toy: Any) -> None:
    ranked = choices_of(toy)
    plugin = Crowded(1, 64)
    device = toy(plugin)
    kernel = roller.compile(rows(), "toy", top_k=6)
    parameters = device.cost_parameters(many_lanes(), ranked[0].program.expr)
    again = estimate(ranked[0].program, many_lanes(), parameters, [1])
    assert again.seconds > ranked[1].estimate.seconds > ranked[0].estimate.seconds, "or there is nothing to choose"
    assert plugin.built == 2 and kernel.program == ranked[1].program
    passed = replace(ranked[0], estimate=again, note=f"1 of {assumed(ranked[0])} tiles at a time")
    assert list(kernel.candidates) == [ranked[1], passed, *ranked[2:]]
    assert f"({passed.note})" in " ".join(str(kernel.explain()).split())


def test_the_best_of_those_tried_is_taken_where_none_has_all_the_room_that_it_wants(toy: Any) -> None:
    ranked = choices_of(toy)
    plugin = Crowded(1)
    toy(plugin)
    kernel = roller.compile(rows(), "toy", top_k=6)
    assert 1 < plugin.built <= building.TRIED
    passed = [c.estimate.seconds for c in kernel.candidates[1:] if c.note]
    assert passed and kernel.estimate.seconds == kernel.candidates[0].estimate.seconds <= min(passed)
    assert {c.program for c in kernel.candidates} == {c.program for c in ranked}
    (stage,) = kernel.explain().stages
    assert stage.estimate.seconds == kernel.estimate.seconds, "the explanation is of the binary that there is"
    assert stage.residents.real == 1


@pytest.mark.parametrize("room", [(1, 64), (1,), (64, 1), (None,)])
def test_both_ways_of_building_choose_the_same(toy: Any, monkeypatch: pytest.MonkeyPatch, room: tuple[int | None, ...]) -> None:
    monkeypatch.setattr(building, "cores", lambda: 1)
    toy(Crowded(*room))
    one = roller.compile(rows(), "toy", top_k=6)
    toy(Crowded(*room))
    several = roller.compile_top(rows(), "toy", top_k=6)
    assert several[0].program == one.program and several[0].estimate == one.estimate


def test_what_a_unit_holds_survives_saving(toy: Any, tmp_path: Any) -> None:
    toy(Crowded(1))
    kernel = roller.compile(rows(), "toy", top_k=2)
    kernel.save(tmp_path / "k.roller")
    assert "predicted, 1 by the binary" in str(roller.load(tmp_path / "k.roller").explain())


def test_the_same_room_gives_the_same_prediction(toy: Any) -> None:
    for choice in choices_of(toy):
        device = toy(Crowded(None))
        parameters = device.cost_parameters(many_lanes(), choice.program.expr)
        assert estimate(choice.program, many_lanes(), parameters, [assumed(choice)]) == choice.estimate


@pytest.mark.parametrize("flaw", sorted(building.FLAWS))
def test_other_orders_of_a_program_with_flaws_are_not_built(toy: Any, flaw: str) -> None:
    """They keep the same in registers; what differs within a unit's tile is built. Of all of them built, the same one is taken."""

    class Spilling(Toy):
        built = 0

        @hookimpl
        def roller_build(self, spec, source):
            self.built += 1
            return replace(Toy.roller_build(self, spec, source), resources={f"main.{flaw}": 8 * (self.built == 1)})

    plugin = Spilling()
    device = toy(plugin)
    chip = device.default_spec()
    first, *_, last = pipeline.choices_of(fuse(ops.expression(matmul())), device, chip, 5, frozenset())
    (stage,) = first.program.stages
    turned = replace(stage, orders=(stage.orders[0][::-1], *stage.orders[1:]))
    twin = replace(first, program=replace(first.program, stages=(turned,)))
    plan, ranked = Plan(device, chip), [first, twin, last]
    chosen, rated = building.build_first(plan, ranked)
    assert plugin.built == 2 and chosen.choice == last
    assert [c.program for c in rated] == [last.program, first.program, twin.program]
    plugin.built = 0
    assert building.preferred(ranked, [building.build(plan, choice) for choice in ranked]) == 2


def test_after_two_alike_with_flaws_come_others(toy: Any) -> None:
    """Steps of another size change little in what lanes hold: two such programs spill, so what follows has other lanes."""

    class Spilling(Toy):
        built: tuple[tuple[int, ...], ...] = ()

        @hookimpl
        def roller_codegen(self, spec, program):
            self.built = (*self.built, program.stages[0].inner)
            return Toy.roller_codegen(self, spec, program)

        @hookimpl
        def roller_build(self, spec, source):
            return replace(Toy.roller_build(self, spec, source), resources={"main.spilled_bytes": 8 * (len(self.built) < 3)})

    plugin = Spilling()
    device = toy(plugin)
    chip = device.default_spec()
    first, *_, other = pipeline.choices_of(fuse(ops.expression(matmul())), device, chip, 20, frozenset())
    (stage,) = first.program.stages
    assert other.program.stages[0].inner != stage.inner, "or there is nothing to prefer"

    def deeper(times: int) -> Choice:
        tile = (*stage.unit_tile[:-1], stage.inner[-1] * times)
        found = replace(stage, tiles=(tile, *stage.tiles[1:]))
        return replace(first, program=replace(first.program, stages=(found,)))

    plan, ranked = Plan(device, chip), [*map(deeper, (1, 2, 3, 4)), other]
    plugin.built = ()
    chosen, _ = building.build_first(plan, ranked)
    assert (len(plugin.built), chosen.choice.program) == (3, other.program)
    everything = [building.build(plan, choice) for choice in ranked]
    flawed = [replace(one, artifact=replace(one.artifact, resources={"main.spilled_bytes": 8})) for one in everything[:4]]
    assert building.preferred(ranked, [*flawed, everything[4]]) == 4
