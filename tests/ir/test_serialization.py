import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roller
from roller import compiler, ops, pipeline
from roller.errors import ExpressionError
from roller.ir.expr import Axis, Stage, Tensor, TensorExpr
from roller.ir.fusion import fuse
from roller.ir.scalar import DEPTH_MAX, Affine, Binary, Const, Coordinate, Load, Select, Unary
from roller.ir.serialization import expr_from_json, expr_to_json


def t(*shape, dtype="float32"):
    return roller.tensor(shape, dtype)


OPERATORS = {
    "matmul": ops.matmul(t(3, 4), t(4, 5)),
    "fused": ops.gelu(ops.matmul(t(3, 4), t(4, 5)) + t(5)),
    "conv": ops.relu(ops.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), padding=1) + t(4, 1, 1)),
    "max_pool": ops.max_pool2d(t(1, 2, 7, 7), 3, 2, 1),
    "avg_pool": ops.avg_pool2d(t(1, 2, 7, 7), 3, 2, 1, count_include_pad=False),
    "int8": ops.matmul(t(3, 4, dtype="int8"), t(4, 5, dtype="int8")),
    "two_stages": ops.exp(t(4, 5)) / ops.reduce_sum(ops.exp(t(4, 5)), axes=1, keepdims=True),
    "scalar": ops.exp(t()),
    "empty": ops.reduce_sum(t(0, 3), axes=0),
    "diagonal": ops.einsum("ii->i", t(4, 4)),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("prepare", [lambda e: e, fuse])
def test_round_trip_through_json_text(name, prepare):
    expr = prepare(ops.expression(OPERATORS[name]))
    text = json.dumps(expr_to_json(expr), allow_nan=False)
    again = expr_from_json(json.loads(text))
    assert again == expr and json.dumps(expr_to_json(again)) == text


def constant_stage(value, dtype):
    return TensorExpr((), (Stage((Axis("i", 2),), Const(value, dtype), Tensor("y", (2,), dtype), (Affine.axis("i"),)),))


@given(st.one_of(st.floats(width=64), st.integers(-(2**62), 2**62), st.booleans()))
@settings(deadline=None)
def test_constants_are_exact(value):
    dtype = "float64" if isinstance(value, float) else "bool" if isinstance(value, bool) else "int64"
    data = json.loads(json.dumps(expr_to_json(constant_stage(value, dtype)), allow_nan=False))
    again = expr_from_json(data).stages[0].body.value
    assert type(again) is type(value)
    if isinstance(value, float):
        assert math.copysign(1, again) == math.copysign(1, value) or math.isnan(value)
    assert again == value or (math.isnan(value) and math.isnan(again))


def test_every_kind_of_node_survives():
    i = Affine.of(("i", 2), offset=-1)
    load = Load("x", (i,), "float32", fill=float("-inf"))
    inside = Binary("and", Binary("ge", Coordinate(i), Const(0, "int32")), Unary("not", Const(False, "bool")))
    body = Select(inside, Binary("pow", load, Const(2.5, "float32")), Unary("neg", load))
    stage = Stage((Axis("i", 3),), body, Tensor("y", (3,)), (Affine.axis("i"),))
    expr = TensorExpr((Tensor("x", (4,)),), (stage,))
    assert expr_from_json(expr_to_json(expr)) == expr


def deep(depth):
    node = Load("x", (Affine.axis("i"),), "float32")
    for _ in range(depth - 1):
        node = Unary("neg", node)
    return TensorExpr((Tensor("x", (3,)),), (Stage((Axis("i", 3),), node, Tensor("y", (3,)), (Affine.axis("i"),)),))


def test_depth_is_bounded_both_ways():
    assert expr_to_json(expr_from_json(expr_to_json(deep(DEPTH_MAX)))) == expr_to_json(deep(DEPTH_MAX))
    with pytest.raises(ExpressionError, match="deep"):
        expr_to_json(deep(DEPTH_MAX + 1))


def test_what_cannot_be_written_is_refused_before_anything_is_constructed(monkeypatch):
    monkeypatch.setattr(pipeline, "choices_of", lambda *_: pytest.fail("constructed"))
    with pytest.raises(ExpressionError, match="more than 250 operations deep; split the operator into stages"):
        compiler.compile(deep(DEPTH_MAX + 1))


def test_shared_nodes_cannot_explode():
    data = expr_to_json(deep(2))
    nodes = data["stages"][0]["nodes"]
    for _ in range(100):
        nodes.append(["binary", "add", len(nodes) - 1, len(nodes) - 1])
    data["stages"][0]["body"] = len(nodes) - 1
    with pytest.raises(ExpressionError, match="nodes"):
        expr_from_json(data)


def mutations(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from mutations(value[key], (*path, key))
    elif isinstance(value, list):
        for place in range(len(value)):
            yield from mutations(value[place], (*path, place))


JUNK = [None, -1, 2**70, 1.5, "zzz", "", [], {}, True, [[[]]], {"version": 1}, "__class__", float("nan")]


def test_hostile_values_anywhere_are_expression_errors():
    whole = expr_to_json(fuse(ops.expression(OPERATORS["conv"])))
    survived = 0
    for path in mutations(whole):
        for junk in JUNK:
            data = copy.deepcopy(whole)
            if path:
                place = data
                for step in path[:-1]:
                    place = place[step]
                place[path[-1]] = junk
            else:
                data = junk
            try:
                expr_from_json(data)
                survived += 1
            except ExpressionError:
                pass
    assert survived < 400  # another constant, name or extent may still be an operator


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(version=2), "this roller reads 1"),
        (lambda d: d.update(extra=1), "a table with"),
        (lambda d: d["stages"][0].update(reducer="product"), "unknown reducer"),
        (lambda d: d["stages"][0]["nodes"].append(["unary", "exec", 0]), "'exec' is none of"),
        (lambda d: d["stages"][0]["nodes"].insert(0, ["unary", "exp", 1]), "before it"),
        (lambda d: d["stages"][0].update(body=99), "before it"),
        (lambda d: d["stages"][0]["nodes"].append(["accumulator", "float99"]), "float99"),
        (lambda d: d["inputs"].append(d["inputs"][0]), "two tensors"),
    ],
)
def test_messages_say_what_is_wrong(change, said):
    data = json.loads(json.dumps(expr_to_json(ops.expression(OPERATORS["matmul"]))))
    change(data)
    with pytest.raises(ExpressionError, match=said):
        expr_from_json(data)
