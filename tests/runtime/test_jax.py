"""JAX arrays are taken as they are, and results come back as JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import roller
from roller import ops
from roller.errors import LaunchError
from roller.kernel import Kernel
from roller.runtime.arrays import address, view


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    a, b = roller.tensor((5, 6), name="a"), roller.tensor((6, 7), name="b")
    return roller.compile(ops.relu(ops.matmul(a, b)), "cpu", threads=1)


def given() -> tuple[Any, Any]:
    generator = np.random.default_rng(1)
    return tuple(jnp.asarray(generator.integers(-4, 5, shape).astype(np.float32)) for shape in ((5, 6), (6, 7)))  # type: ignore[return-value]


def wanted(a: Any, b: Any) -> Any:
    return np.maximum(np.asarray(a) @ np.asarray(b), 0)


def test_jax_gives_jax(kernel: Kernel) -> None:
    a, b = given()
    for result in (kernel(a, b), kernel(b=b, a=a)):
        assert isinstance(result, jax.Array) and result.dtype == jnp.float32
        assert np.array_equal(np.asarray(result), wanted(a, b))
    assert isinstance(kernel(np.asarray(a), b), np.ndarray), "the first argument decides"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int32"])
def test_element_types_stay(dtype: str) -> None:
    double = roller.compile(roller.tensor((33,), dtype, name="x") + roller.tensor((33,), dtype, name="y"), "cpu", threads=1)
    x = jnp.arange(33).astype(dtype)
    result = double(x, x)
    assert isinstance(result, jax.Array) and result.dtype == x.dtype
    assert np.array_equal(np.asarray(result, np.float32), 2.0 * np.arange(33))


def test_nothing_is_copied_on_the_way_in() -> None:
    x = jnp.ones((64, 64))
    array, kind = view(x, "x")
    assert kind == "jax" and address(array) == x.unsafe_buffer_pointer() and not array.flags.writeable


def test_jax_arrays_are_not_written(kernel: Kernel) -> None:
    a, b = given()
    with pytest.raises(LaunchError, match="JAX arrays cannot be written; leave out= away"):
        kernel(a, b, out=jnp.zeros((5, 7)))
    out = np.full((5, 7), np.nan, np.float32)
    assert kernel(a, b, out=out) is out and np.array_equal(out, wanted(a, b))


def test_inside_a_trace_there_is_a_way(kernel: Kernel) -> None:
    a, b = given()
    with pytest.raises(LaunchError, match=r"through jax\.pure_callback"):
        jax.jit(kernel)(a, b)

    def called(x: Any, y: Any) -> Any:
        return kernel(np.asarray(x), np.asarray(y))

    shape = jax.ShapeDtypeStruct((5, 7), jnp.float32)
    result = jax.jit(lambda x, y: jax.pure_callback(called, shape, x, y) * 2)(a, b)
    assert np.array_equal(np.asarray(result), 2 * wanted(a, b))
