"""The operator library: symbolic tensors, and operators on them as tensor expressions of our own.

Importing it imports neither TVM nor NumPy; `from_te` loads the bridge to TVM when it is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any
from typing import cast as _typed

from roller.errors import ExpressionError
from roller.ops.comparison import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    not_equal,
    where,
)
from roller.ops.convolution import conv2d, depthwise_conv2d
from roller.ops.einsum import einsum
from roller.ops.elementwise import (
    abs,
    add,
    cast,
    ceil,
    clip,
    cos,
    div,
    erf,
    exp,
    floor,
    gelu,
    log,
    maximum,
    minimum,
    mul,
    neg,
    pow,
    relu,
    round,
    rsqrt,
    sigmoid,
    silu,
    sin,
    sqrt,
    sub,
    tanh,
)
from roller.ops.matmul import batch_matmul, matmul
from roller.ops.movement import broadcast_to, expand_dims, pad, transpose
from roller.ops.pooling import avg_pool2d, max_pool2d
from roller.ops.reduction import reduce_max, reduce_mean, reduce_min, reduce_sum
from roller.ops.tensor import SymbolicTensor, expression, tensor

__all__ = [
    "SymbolicTensor",
    "abs",
    "add",
    "avg_pool2d",
    "batch_matmul",
    "broadcast_to",
    "cast",
    "ceil",
    "clip",
    "conv2d",
    "cos",
    "depthwise_conv2d",
    "div",
    "einsum",
    "equal",
    "erf",
    "exp",
    "expand_dims",
    "expression",
    "floor",
    "from_te",
    "gelu",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "matmul",
    "max_pool2d",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "not_equal",
    "pad",
    "pow",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "sqrt",
    "sub",
    "tanh",
    "tensor",
    "transpose",
    "where",
]


def from_te(output: Any) -> SymbolicTensor:
    """Returns the value of a TVM `te` tensor, which composes with every operator here; see `roller.te.symbolic_te`.

    `ExpressionError` if it is no affine expression, or if TVM is absent or has the wrong version.
    """
    # Imported by name at the call: the bridge is in a layer above this package and needs TVM, which most users do not.
    try:
        bridge = import_module("roller.te")
    except ImportError as error:
        said = f"from_te cannot use the TVM that is installed ({error})"
        raise ExpressionError(f"{said}: pip install --force-reinstall roller-compiler brings the one it needs") from error
    return _typed(SymbolicTensor, bridge.symbolic_te(output))
