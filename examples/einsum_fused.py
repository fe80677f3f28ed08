"""An operator without a name in the library: attention scores with a mask's bias and an activation, as one kernel."""

import numpy as np

import roller
from roller import ops, verify

HEADS, LENGTH, WIDTH = 12, 384, 64

q = roller.tensor((HEADS, LENGTH, WIDTH), name="q")
k = roller.tensor((HEADS, LENGTH, WIDTH), name="k")
bias = roller.tensor((LENGTH,), name="bias")

# The scale, the bias and the activation are the epilogue: they are applied before the scores are stored.
op = ops.relu(ops.einsum("hid,hjd->hij", q, k) * (1 / WIDTH**0.5) + bias)
kernel = roller.compile(op, device="cpu")
print(kernel.explain())

arrays = verify.random_inputs(kernel.expr)
scores = kernel(**arrays)

# Compares with NumPy in float32.
by_hand = np.maximum(np.einsum("hid,hjd->hij", arrays["q"], arrays["k"], optimize=True) / WIDTH**0.5 + arrays["bias"], 0)
print(f"largest difference from NumPy in float32: {np.abs(scores - by_hand).max():.2e}")

# Compares with the float64 reference, with the tolerance that follows from types and reduction lengths.
verify.check(kernel.expr, arrays, scores, verify.sample_points(kernel.expr, 4096))
print("agrees with the reference")
