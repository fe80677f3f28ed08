"""What a caller permits kernels to round: where the permission stands, how it travels, and how far it reaches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import roller
from roller import ops, verify
from roller.errors import ExpressionError, WrongResultError
from roller.ir.expr import Axis, Stage, Tensor, TensorExpr
from roller.ir.fusion import fuse
from roller.ir.scalar import Affine, Load
from roller.ir.serialization import expr_from_json, expr_to_json
from roller.ops import SymbolicTensor
from roller.ops import tensor as T
from roller.precision import PRECISIONS, permitted
from roller.program.rprogram import operand_value
from roller.testing import constructed
from roller.verify.rounding import Array

CHIP = "cpu:x86-64-v3"


def matmul(m: int = 48, n: int = 40, k: int = 300) -> TensorExpr:
    return ops.expression(ops.matmul(T((m, k), name="a"), T((k, n), name="b")))


def marked(op: SymbolicTensor) -> list[str | None]:
    return [s.factor_dtype for s in permitted(ops.expression(op), "tf32").stages]


# --- where it stands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "stages"),
    [
        (ops.matmul(T((3, 4)), T((4, 5))), ["tfloat32"]),
        (ops.conv2d(T((1, 3, 8, 8)), T((4, 3, 3, 3))), ["tfloat32"]),
        (ops.einsum("ij,j->i", T((3, 4)), T((4,))), ["tfloat32"]),
        (ops.relu(ops.matmul(T((3, 4)), T((4, 5))) + T((5,))), ["tfloat32", None, None]),
        (ops.matmul(T((3, 4), "float16"), T((4, 5), "float16")), [None]),  # the factors lose nothing in tf32
        (ops.matmul(T((3, 4), "float64"), T((4, 5), "float64")), [None]),
        (ops.matmul(T((3, 4), "int8"), T((4, 5), "int8")), [None]),
        (ops.reduce_sum(T((3, 4)), 1), [None]),
        (T((3, 4)) * T((3, 4)), [None]),
        (ops.reduce_sum(T((3, 4)) * T((3, 4)), 1), [None, None]),  # a product that is stored, then a sum
    ],
)
def test_sums_of_products_of_float32_values_have_it(op: SymbolicTensor, stages: list[str | None]) -> None:
    expr = ops.expression(op)
    assert marked(op) == stages
    assert permitted(expr) is expr
    assert permitted(expr, "ieee") is expr


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ExpressionError, match="unknown precision 'tf16'; choose one of ieee, tf32"):
        roller.compile(ops.matmul(T((3, 4)), T((4, 5))), CHIP, precision="tf16")
    assert set(PRECISIONS) == {"ieee", "tf32"}


def test_it_stands_only_where_it_means_something() -> None:
    x, y = Tensor("x", (4,)), Tensor("y", ())
    load = Load("x", (Affine.axis("i"),), "float32")
    for body, factor_dtype in ((load, "tfloat32"), (load, "float16")):
        with pytest.raises(ExpressionError, match="no sum of products whose factors"):
            TensorExpr((x,), (Stage((Axis("i", 4, "reduce"),), body, y, (), "sum", None, factor_dtype),))
    with pytest.raises(ExpressionError, match="unknown element type 'tfloat32'"):
        T((3,), "tfloat32")


# --- how it travels ----------------------------------------------------------------------------------------------------

CHAINS: dict[str, Callable[[], SymbolicTensor]] = {
    "epilogue": lambda: ops.gelu(ops.matmul(T((3, 4)), T((4, 5))) + T((5,))),
    "prologue": lambda: ops.matmul(ops.relu(T((3, 4))), T((4, 5))),
    "scaled": lambda: ops.matmul(T((3, 4)) * T((4,)), T((4, 5))),
    "padded": lambda: ops.conv2d(T((1, 3, 8, 8)), T((4, 3, 3, 3)), padding=1),
}


@pytest.mark.parametrize("name", CHAINS)
def test_fusion_and_files_keep_it(name: str) -> None:
    expr = permitted(ops.expression(CHAINS[name]()), "tf32")
    for prepared in (expr, fuse(expr)):
        assert [s.factor_dtype for s in prepared.stages].count("tfloat32") == 1
        text = json.dumps(expr_to_json(prepared))
        assert expr_from_json(json.loads(text)) == prepared
    plain = fuse(ops.expression(CHAINS[name]()))
    assert "factor_dtype" not in json.dumps(expr_to_json(plain))
    (stage,) = fuse(expr).stages
    assert stage == permitted(plain, "tf32").stages[0]


def test_files_that_permit_what_is_unknown_are_refused() -> None:
    data = expr_to_json(permitted(matmul(), "tf32"))
    for wrong in ("float8", "float16", None, 3):
        data["stages"][0]["factor_dtype"] = wrong
        with pytest.raises(ExpressionError):
            expr_from_json(data)


def test_a_kernel_keeps_it_and_a_device_without_such_units_ignores_it(tmp_path: Path) -> None:
    op = ops.relu(ops.matmul(T((33, 40), name="a"), T((40, 24), name="b")))
    kernel, plain = (roller.compile(op, CHIP, precision=p, threads=1) for p in ("tf32", "ieee"))
    assert kernel.source == plain.source
    assert kernel.program.describe() == plain.program.describe()
    assert "factors may be rounded to tfloat32, but are not" in str(kernel.explain())
    assert "may be rounded" not in str(plain.explain())
    kernel.save(tmp_path / "k.roller")
    loaded = roller.load(tmp_path / "k.roller")
    assert loaded.expr == kernel.expr
    assert loaded.expr.stages[0].factor_dtype == "tfloat32"
    assert loaded.explain().stages[0].factor_dtype == "tfloat32"


def test_units_that_round_are_chosen_only_where_they_may() -> None:
    spec = roller.load_spec("cuda:a100")
    (atom,) = (a for a in spec.atoms if a.in_dtype == "tfloat32")
    assert (atom.stored_dtype, atom.acc_dtype) == ("float32", "float32")
    for precision, wanted in (("ieee", "f32"), ("tf32", atom.name)):
        (stage,) = constructed(fuse(permitted(matmul(2048, 2048, 2048), precision)), spec)[0].program.stages
        assert stage.atom.name == wanted
        assert (operand_value(stage.nest, 0, atom) is not None) == (precision == "tf32")
    assert roller.rate(matmul(), CHIP, tiles=CPU_TILES, precision="tf32") == roller.rate(matmul(), CHIP, tiles=CPU_TILES)


CPU_TILES = [{"m": 48, "n": 40, "k": 300}, {"m": 4, "n": 8}]


# --- how far it reaches ------------------------------------------------------------------------------------------------


def product(arrays: dict[str, Array], rounding: Callable[[Array], Array]) -> Array:
    a, b = (rounding(arrays[name]).astype(np.float64) for name in "ab")
    found: Array = (a @ b).astype(np.float32)
    return found


def tf32(array: Array) -> Array:
    return verify.to_significant(array, "tfloat32")


def truncated(array: Array) -> Array:
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def bfloat16(array: Array) -> Array:
    return array.astype(ml_dtypes.bfloat16)


def test_rounded_factors_are_wrong_without_it_and_right_with_it() -> None:
    expr, arrays = matmul(), verify.random_inputs(matmul(), 3)
    result = product(arrays, tf32)
    verify.check(permitted(expr, "tf32"), arrays, result)
    with pytest.raises(WrongResultError):
        verify.check(expr, arrays, result)
    verify.check(expr, arrays, product(arrays, lambda array: array))


def test_fewer_bits_than_permitted_are_wrong() -> None:
    """Of numbers that tf32 holds, which is what `roller verify` adds: there the permission allows nothing."""
    expr = permitted(matmul(), "tf32")
    arrays = verify.random_inputs(expr, 3, held="tfloat32")
    assert all((tf32(a) == a).all() for a in arrays.values())
    verify.check(expr, arrays, product(arrays, tf32))
    with pytest.raises(WrongResultError):
        verify.check(expr, arrays, product(arrays, bfloat16))
    assert (verify.tolerance(expr, arrays) == verify.tolerance(matmul(), arrays)).all()


def test_bits_that_are_cut_off_cost_more_than_permitted() -> None:
    expr = permitted(matmul(), "tf32")
    drawn = verify.random_inputs(expr, 3)
    arrays = {n: ((1 + np.abs(a) / 8).astype(np.float32).view(np.uint32) | 0x1FFF).view(np.float32) for n, a in drawn.items()}
    verify.check(expr, arrays, product(arrays, tf32))
    with pytest.raises(WrongResultError):
        verify.check(expr, arrays, product(arrays, truncated))


def test_the_bound_grows_by_the_rounding_of_both_factors() -> None:
    """One term: twice 2^-11 of the product, as 2^-11 of each factor may be lost, and float32's own roundings beside."""
    expr = matmul(1, 1, 1)
    arrays = {"a": np.full((1, 1), 1 + 2.0**-12, np.float32), "b": np.full((1, 1), 1 + 2.0**-15, np.float32)}
    more = float((verify.tolerance(permitted(expr, "tf32"), arrays) - verify.tolerance(expr, arrays))[0, 0])
    assert more == pytest.approx(2 * 2.0**-11, rel=1e-3)
    arrays["b"][...] = 1 + 2.0**-10  # held: only the other one is rounded
    more = float((verify.tolerance(permitted(expr, "tf32"), arrays) - verify.tolerance(expr, arrays))[0, 0])
    assert more == pytest.approx(2.0**-11, rel=2e-3)


def test_whole_numbers_stay_exact() -> None:
    expr = permitted(matmul(), "tf32")
    assert (verify.tolerance(expr, verify.random_inputs(expr, integer=True)) == 0).all()


def test_errors_before_a_product_and_after_it_add_to_it() -> None:
    """Fused or not, the bound is that of the same roundings, give or take what is rounded in between."""
    op = ops.relu(ops.matmul(ops.exp(T((6, 30), name="x")), T((30, 7), name="w")) + T((7,), name="bias"))
    expr = permitted(ops.expression(op), "tf32")
    arrays = verify.random_inputs(expr, 1)
    np.testing.assert_allclose(verify.tolerance(expr, arrays), verify.tolerance(fuse(expr), arrays), rtol=1e-2)
    points = verify.sample_points(expr, 20, seed=1)
    np.testing.assert_allclose(verify.tolerance(expr, arrays, points), verify.tolerance(expr, arrays)[tuple(points.T)], rtol=1e-9)
