"""What the operator library refuses, and that it says what to do instead."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from roller import ops
from roller.errors import ExpressionError
from roller.ops import tensor as T

ERRORS: list[tuple[Callable[[], object], str]] = [
    (lambda: T((2, -1)), "non-negative integers"),
    (lambda: T(3), "sequence of non-negative integers"),  # type: ignore[arg-type]
    (lambda: T((2.5,)), "sequence of non-negative integers"),  # type: ignore[list-item]
    (lambda: T((2,), "float8"), "unknown element type 'float8'; choose one of"),
    (lambda: T((2,), name="a b"), "must be an ASCII identifier"),
    (lambda: T((2,), name="é"), "must be an ASCII identifier"),
    (lambda: bool(T((2,))), "has no truth value"),
    (lambda: ops.abs(T((2,), "bool")), "abs: not defined on bool"),
    (lambda: -T((2,), "bool"), "neg: not defined on bool"),
    (lambda: abs(T((2,), "bool")), "abs: not defined on bool"),
    (lambda: ops.expression(T((2,))), "at least one stage"),
    (lambda: ops.expression(T((2,), name="x") + T((2,), name="x")), "two inputs are called 'x'"),
    (lambda: ops.relu(np.ones(3)), "expected a symbolic tensor, got ndarray; make one with roller.tensor"),  # type: ignore[arg-type]
    (lambda: ops.add(1, 2), "expected a symbolic tensor, got int"),
    (lambda: T((2, 3)) + T((2, 4)), r"shapes \(2, 3\) and \(2, 4\) do not broadcast"),
    (lambda: T((2,)) + T((2,), "int8"), r"float32 and int8; cast them to one type with .astype"),
    (lambda: T((2,), "int8") + 0.5, "0.5 is not an integer"),
    (lambda: T((2,), "int8") + 200, r"200 does not fit int8 \(-128..127\)"),
    (lambda: T((2,), "int8") / 2, "div: not defined on int8"),
    (lambda: ops.exp(T((2,), "int32")), "exp: not defined on int32"),
    (lambda: ops.gelu(T((2,)), "fast"), "approximate must be"),  # type: ignore[arg-type]
    (lambda: ops.clip(T((2,))), "give low, high or both"),
    (lambda: ops.clip(T((2,)), 2, 1), "low 2 is above high 1"),
    (lambda: ops.matmul(T((2, 3)), T((4, 5))), "disagree on k: 3 and 4"),
    (lambda: ops.matmul(T((2, 2, 3)), T((3, 5))), "see ops.batch_matmul or ops.einsum"),
    (lambda: ops.matmul(T((2, 3)), T((3, 2), "float16")), "float32 and float16"),
    (lambda: ops.matmul(T((2, 3)), T((3, 2)), acc_dtype="int32"), "choose a floating acc_dtype"),
    (lambda: ops.matmul(T((2, 3)), T((3, 2)), acc_dtype="float16"), "does not hold the operands"),
    (
        lambda: ops.matmul(T((2, 3), "float16"), T((3, 2), "float16"), acc_dtype="bfloat16"),
        "bfloat16 does not hold the operands' float16",
    ),
    (lambda: ops.matmul(T((2, 3), "bool"), T((3, 2), "bool")), "bool values cannot be summed"),
    (lambda: ops.conv2d(T((1, 3, 5, 5)), T((2, 4, 3, 3))), "takes 4 input channels"),
    (lambda: ops.conv2d(T((1, 3, 5, 5)), T((2, 3, 7, 7))), "does not fit the padded height 5"),
    (lambda: ops.conv2d(T((1, 3, 5, 5)), T((2, 3, 0, 3))), "must be at least 1"),
    (lambda: ops.conv2d(T((1, 3, 0, 5)), T((2, 3, 1, 1))), "only batch and channels may be empty"),
    (lambda: ops.conv2d(T((1, 3, 5, 5)), T((2, 3, 3, 3)), groups=2), "groups=2 must divide"),
    (lambda: ops.conv2d(T((1, 3, 5, 5)), T((2, 3, 3, 3)), stride=0), "stride must be one or two integers"),
    (lambda: ops.max_pool2d(T((1, 3, 5, 5)), 2.5), "kernel must be one or two integers"),  # type: ignore[arg-type]
    (lambda: ops.max_pool2d(T((1, 3, 5, 5)), T((3,))), "kernel must be one or two integers"),  # type: ignore[arg-type]
    (lambda: ops.conv2d(T((1, 3, 5, 5)), T((2, 3, 3, 3)), padding=-1), "none negative"),
    (lambda: ops.conv2d(T((1, 3, 5, 5)), T((2, 3, 3, 3)), padding="full"), "'same', 'valid' or numbers"),
    (lambda: ops.conv2d(T((1, 3, 5, 5)), T((2, 3, 3, 3)), layout="CHWN"), "use ops.transpose"),  # type: ignore[arg-type]
    (lambda: ops.depthwise_conv2d(T((1, 3, 5, 5)), T((2, 1, 3, 3))), "is for 2 channels"),
    (lambda: ops.avg_pool2d(T((1, 3, 5, 5), "int8"), 2), "use .astype"),
    (lambda: ops.max_pool2d(T((1, 3, 5, 5)), 2, padding=2), "wholly in the padding"),
    (lambda: ops.reduce_sum(T((2, 3)), 2), "different axes of a tensor with 2 dimensions"),
    (lambda: ops.reduce_sum(T((2, 3)), (0, -2)), "different axes"),
    (lambda: ops.reduce_max(T((2, 0)), 1), "at least one element"),
    (lambda: ops.reduce_mean(T((2, 0)), 1), "has no value"),
    (lambda: ops.reduce_mean(T((2, 3), "int8")), "mean of int8"),
    (lambda: ops.transpose(T((2, 3)), (0, 0)), "name each of the 2 dimensions"),
    (lambda: ops.pad(T((2, 3)), [(1, 1)]), "for each of the 2 dimensions"),
    (lambda: ops.broadcast_to(T((2, 3)), (3,)), "does not broadcast to"),
    (lambda: ops.einsum("i...->i", T((2, 3))), "ellipsis is not supported"),
    (lambda: ops.einsum("ij,jk->ik", T((2, 3))), "2 operands are named, 1 given"),
    (lambda: ops.einsum("ij,jk->ik", T((2, 3)), T((4, 5))), "'j' is 3 in one place and 4 in another"),
    (lambda: ops.einsum("ijk->i", T((2, 3))), "names 3 dimensions"),
    (lambda: ops.einsum("ij->ik", T((2, 3))), "output letter 'k'"),
    (lambda: ops.einsum("ij->ii", T((2, 3))), "once in the output"),
    (lambda: ops.einsum("i1->i", T((2, 3))), "use letters"),
]


@pytest.mark.parametrize(("build", "message"), ERRORS, ids=[m[:30] for _, m in ERRORS])
def test_errors_say_what_to_do(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        build()
