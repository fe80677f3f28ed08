"""Random manifests: what `execute` computes and counts is what the slow interpreter does, bit for bit, in every order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipu_manifests import Product
from ipu_random import CHIPS, TYPES, Case, alike, array, manifests, products
from roller.plugin import find_spec
from roller_ipu_sim.manifest.models import from_json, to_json
from roller_ipu_sim.simulator.execute import execute
from roller_ipu_sim.simulator.interpret import interpret


def agree(case: Case) -> None:
    manifest = from_json(to_json(case.manifest))
    found = execute(manifest, case.spec, case.inputs)
    slow = interpret(manifest, case.spec, case.inputs)
    assert [step.cycles for step in found.profile.supersteps] == list(slow.cycles)
    assert set(found.outputs) == set(slow.outputs)
    again = execute(manifest, case.spec, case.inputs, order="backwards")
    for name, values in found.outputs.items():
        assert alike(values, slow.outputs[name]), name
        assert alike(values, again.outputs[name]), name


@given(manifests())
def test_random_work_agrees_with_the_interpreter(case: Case) -> None:
    agree(case)


@given(products())
def test_random_products_agree_with_the_interpreter(case: Case) -> None:
    agree(case)


@given(st.data())
def test_random_grids_agree_with_the_interpreter(data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, most)) for most in (20, 40, 70))
    rows, columns, parts = (data.draw(st.integers(1, most)) for most in (min(m, 3), 3, 3))
    in_dtype, acc_dtype = data.draw(st.sampled_from(TYPES))
    spec = find_spec("ipu_sim", data.draw(st.sampled_from(CHIPS)))
    manifest = Product(m, n, k, rows, columns, parts, in_dtype, acc_dtype).manifest(spec)
    agree(Case(manifest, spec, {"a": array(data.draw, in_dtype, (m, k)), "b": array(data.draw, in_dtype, (k, n))}))
