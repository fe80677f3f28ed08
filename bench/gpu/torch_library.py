"""PyTorch as the benchmark's array library: memory, the reference in float64, and its own operators (the libraries behind it, its
compiler).

TF32 is off but for operators that permit it, convolutions try their algorithms out, images are offered channels-last too.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module, util

import torch
from torch.nn import functional

from bench.gpu.library import Choices
from bench.gpu.operators import EPSILON, Operator
from bench.gpu.platform import Platform
from bench.gpu.rounding import Bound
from bench.gpu.timing import Side

LAST = torch.channels_last
# What an activation is applied to, and what is added to a sum.
ACTIVATED = {
    "matmul_bias_gelu": "matmul_bias", "gelu": "same", "layer_norm": "off", "attention": "greatest",
}  # fmt: skip
ADDED = frozenset({"bias", "residual", "y"})
ROWS = frozenset({"softmax", "layer_norm", "attention"})
CHAINS = frozenset({"matmul_bias_gelu", "matmul_bias_residual", "conv_bias_relu", "scale_bias_relu"}) | ROWS
IMAGES = frozenset({"conv2d", "conv_bias_relu", "depthwise", "avg_pool", "max_pool"})
TRITON_MULTIPLE = 16  # of extents, which its tensor accesses want to be wide
CHECK_ELEMENTS = 1 << 25  # of a result that are compared at once


class TorchLibrary:
    """`bench.gpu.library.Library` over torch's tensors on a device; torch calls every GPU "cuda"."""

    def __init__(self, platform: Platform, device: str = "cuda") -> None:
        self._device, self._names = torch.device(device), platform.torch
        if self._device.type == "cuda" and (self._toolkit() is None or not torch.cuda.is_available()):
            raise ImportError(
                f"torch {torch.__version__} finds no {platform.maker} GPU: a build for {platform.device} is needed, for this driver"
            )
        self._permit_tf32(False)
        torch.backends.cudnn.benchmark = True
        torch.set_grad_enabled(False)

    def _permit_tf32(self, permitted: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = permitted
        torch.backends.cudnn.allow_tf32 = permitted

    def _toolkit(self) -> str | None:
        """The version of what torch was built for; None where that was another maker's."""
        found: str | None = getattr(torch.version, self._names.version, None)
        return found

    def describe(self) -> dict[str, str]:
        """Versions of torch and of what it brings."""
        found = {"torch": torch.__version__, f"{self._names.version} (torch)": str(self._toolkit())}
        found[self._names.convolutions.lower()] = str(torch.backends.cudnn.version())
        for name in ("triton", "numpy"):  # asked themselves: distributions of Triton have several names
            with contextlib.suppress(ImportError):
                found[name] = str(import_module(name).__version__)
        return found

    def stream(self) -> int:
        """Torch's current stream."""
        return int(torch.cuda.current_stream().cuda_stream) if self._device.type == "cuda" else 0

    def room(self, size: int) -> torch.Tensor:
        """Bytes in the GPU's memory."""
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def address(self, array: torch.Tensor) -> int:
        """Where a tensor lies."""
        return int(array.data_ptr())

    def view(self, raw: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The first bytes of a room as a tensor."""
        kind = getattr(torch, dtype)
        return raw[: math.prod(shape) * kind.itemsize].view(kind).reshape(shape)

    def operands(self, op: Operator, integer: bool, largest: int, seed: int) -> dict[str, torch.Tensor]:
        """Random inputs by name."""
        generator = torch.Generator(self._device).manual_seed(seed)
        found = {}
        for name, shape in op.shapes.items():
            kind = getattr(torch, op.dtype)
            made = torch.empty(shape, dtype=kind, device=self._device)
            if integer or not kind.is_floating_point:
                most = largest if integer else torch.iinfo(kind).max
                found[name] = (
                    made.random_(0, 2 * most + 1, generator=generator).sub_(most)
                    if integer
                    else made.random_(-most - 1, most + 1, generator=generator)
                )
            else:
                found[name] = made.uniform_(-1, 1, generator=generator)
        return found

    def expected(self, op: Operator, operands: Mapping[str, torch.Tensor], bound: Bound) -> tuple[torch.Tensor, torch.Tensor]:
        """The result in float64, and what each element may be off."""
        wide = {name: array.double() for name, array in operands.items()}
        torch.backends.cudnn.benchmark = False  # trying out algorithms in float64 would take longer than the slowest of them
        try:
            value = compute(op, wide)
            if bound.exact:
                return value.to(getattr(torch, op.out_dtype)).double(), torch.zeros((), dtype=torch.float64, device=self._device)
            size = value.abs()
            if op.kind == "softmax":  # all that it may lose, that of its sum too, is relative to its result
                return value, size.mul_(bound.terms + bound.spread).add_(bound.floor)
            if op.kind in ACTIVATED:
                size += compute(before(op), wide).abs_()
            for array in wide.values():
                array.abs_()
            for name in ADDED & wide.keys():
                size += wide[name]
            return value, compute(before(op), wide).mul_(bound.terms).add_(size, alpha=bound.spread).add_(bound.floor)
        finally:
            torch.backends.cudnn.benchmark = True
            if self._device.type == "cuda":  # whoever waits for a kernel for so long and no longer is not to wait for this
                torch.cuda.synchronize(self._device)

    def excess(self, got: torch.Tensor, expected: tuple[torch.Tensor, torch.Tensor], slack: float) -> float:
        """The largest error as a multiple of what is allowed."""
        want, allowed = expected
        if got.shape != want.shape:
            return math.inf
        worst = 0.0
        allowed = allowed.expand(want.shape)
        step = max(1, CHECK_ELEMENTS * want.shape[0] // max(want.numel(), 1)) if want.ndim else 1
        for start in range(0, want.shape[0] if want.ndim else 1, step):
            part = slice(start, start + step) if want.ndim else ...
            error, limit = (got[part].double() - want[part]).abs_(), allowed[part] * slack
            ratio = torch.where(error == 0, 0.0, error / limit)  # NaN stays NaN
            found = float(ratio.max()) if ratio.numel() else 0.0
            worst = math.inf if math.isnan(found) else max(worst, found)
        return worst

    def untouched(self, raw: torch.Tensor, start: int, byte: int) -> bool:
        """Whether every byte from there on has that value."""
        return bool((raw[start:] == byte).all())

    def failures(self) -> tuple[type[Exception], ...]:
        """What torch and Triton raise where they cannot do something; an older torch lacks functions."""
        kinds: list[type[Exception]] = [RuntimeError, NotImplementedError, ImportError, AssertionError, TypeError, ValueError]
        kinds += [AttributeError, subprocess.CalledProcessError, OSError]
        with contextlib.suppress(ImportError):
            from triton.errors import TritonError  # noqa: PLC0415  (not every image has it)

            kinds.append(TritonError)
        return tuple(kinds)

    def release(self) -> None:
        """Give unused memory back."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    # --- peers --------------------------------------------------------------------------------------------------------

    def peers(self, op: Operator, operands: Mapping[str, torch.Tensor], choices: Choices) -> Iterator[Side]:
        """Torch's operators, channels-last and with operands turned beforehand; fused chains also by its compiler; Triton."""
        self._permit_tf32(op.factor_dtype == "tfloat32")  # until the next operator's peers are asked for
        eager = partial(compute, op)
        whole = into(op, operands, self._result(op))
        yield Side("torch", whole)
        if {"a", "b"} <= op.shapes.keys():
            yield from (Side(f"torch, {name}", partial(preferring, blas, whole)) for name, blas in self._names.blas.items())
        if op.kind in IMAGES and op.channels_last:
            w = operands["w"].permute(3, 2, 0, 1).contiguous(memory_format=LAST).permute(2, 3, 1, 0)
            yield Side("torch, weights turned", partial(eager, {**operands, "w": w}), boundary=False)
        elif op.kind in IMAGES:
            turned = _turned(operands)
            yield Side("torch channels-last, charged", lambda: eager(_turned(operands)).contiguous())
            yield Side("torch channels-last", lambda: eager(turned), boundary=False)
        if op.kind == "matmul":
            turned_b = bool(op.options.get("transpose_b"))
            other = operands["b"].t().contiguous()
            against = replace(op, options={**op.options, "transpose_b": not turned_b})
            lying = "in rows" if turned_b else "in columns"
            yield Side(f"torch, b {lying}", into(against, {**operands, "b": other}, self._result(op)), boundary=False)
        if op.kind == "conv_bias_relu" and self._device.type == "cuda":
            yield from self._fused_convolutions(op, operands)
        if op.kind in CHAINS and choices.compiled:
            mode = "max-autotune-no-cudagraphs" if choices.max_autotune else "default"
            torch.compiler.reset()  # it stops compiling what it has compiled often
            built = torch.compile(lambda values: compute(op, values), mode=mode, dynamic=False, fullgraph=True)
            yield Side(f"torch.compile {mode}", lambda: built(dict(operands)))
        plain = op.kind == "matmul" and not {"transpose_a", "transpose_b"} & op.options.keys()
        extents = (*op.shapes["a"], *op.shapes["b"]) if plain else (1,)
        fits = op.dtype in ("float16", "bfloat16") and all(e % TRITON_MULTIPLE == 0 for e in extents)
        if fits and choices.triton and self._device.type == "cuda" and util.find_spec("triton") is not None:
            from bench.gpu.triton_matmul import matmul  # noqa: PLC0415  (not every image has it)

            tiles = self._names.tiles
            out = self._result(op)
            yield Side("Triton", lambda: matmul(operands["a"], operands["b"], out, tiles))

    def _result(self, op: Operator) -> torch.Tensor:
        """Memory for a result."""
        return torch.empty(op.output, dtype=getattr(torch, op.out_dtype), device=self._device)

    def _fused_convolutions(self, op: Operator, t: Mapping[str, torch.Tensor]) -> Iterator[Side]:
        """A convolution with bias and relu in one call of the library behind them, in both layouts."""
        stride, padding = [op.options["stride"]] * 2, [op.options["pads"][0], op.options["pads"][2]]
        name, bias, turned = self._names.convolutions, t["bias"].reshape(-1), _turned(t)

        def fused(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
            found: torch.Tensor = getattr(torch, self._names.fused)(values["x"], values["w"], bias, stride, padding, [1, 1], 1)
            return found

        yield Side(f"{name} fused", partial(fused, t))
        yield Side(f"{name} fused channels-last", partial(fused, turned), boundary=False)


def _turned(operands: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: a.contiguous(memory_format=LAST) if a.ndim == 4 else a for name, a in operands.items()}


def compute(op: Operator, t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The operator by torch's functions, in whatever type and layout the operands have."""
    o = op.options
    match op.kind:
        case "matmul" if t["a"].dtype == torch.int8:
            return torch._int_mm(*factors(op, t))
        case "matmul" | "batch_matmul":
            return torch.matmul(*factors(op, t))
        case "same":
            return t["x"].clone()
        case "softmax":
            return torch.softmax(t["x"], -1)
        case "layer_norm":
            return functional.layer_norm(t["x"], t["x"].shape[-1:], t["scale"], t["bias"], EPSILON)
        case "attention":
            # Of a batch: without that dimension torch takes its slowest way.
            return functional.scaled_dot_product_attention(*(t[name].unsqueeze(0) for name in "qkv")).squeeze(0)
        case "off":  # what layer norm may lose on the way is that of x and its mean, by the deviation
            spread = t["x"].std(-1, keepdim=True, correction=0)
            return (t["x"].abs() + t["x"].mean(-1, keepdim=True).abs()) / spread * t["scale"]
        case "greatest":  # a mean of values with weights that are a little off
            return t["v"].abs().amax(1, keepdim=True).expand(t["q"].shape[0], t["q"].shape[1], -1).clone()
        case "matmul_bias":
            return torch.addmm(t["bias"], t["a"], t["b"])
        case "matmul_bias_gelu":
            return functional.gelu(torch.addmm(t["bias"], t["a"], t["b"]))
        case "matmul_bias_residual":
            return torch.addmm(t["bias"], t["a"], t["b"]) + t["residual"]
        case "conv2d" | "depthwise" | "conv_bias_relu" | "avg_pool" | "max_pool":
            return _windows(op, t)
        case "reduce_sum":
            return torch.sum(t["x"], dim=tuple(o["axes"]))
        case "transpose":
            return t["x"].permute(*o["axes"]).contiguous()
        case "relu":
            return torch.relu(t["x"])
        case "gelu":
            return functional.gelu(t["x"])
        case "add":
            return t["x"] + t["y"]
        case "scale_bias_relu":
            return torch.relu(t["x"] * t["scale"] + t["bias"])
    raise ValueError(f"{op.id}: no kind of operator is called {op.kind!r}")


def _windows(op: Operator, t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Convolutions and pooling."""
    o = op.options
    match op.kind:
        case "conv2d" if op.channels_last:
            images, weights = t["x"].permute(0, 3, 1, 2), t["w"].permute(3, 2, 0, 1)
            pad, padding = padded(images, o["pads"])
            return functional.conv2d(pad, weights, None, o["stride"], padding).permute(0, 2, 3, 1).contiguous()
        case "conv2d" | "depthwise":
            pad, padding = padded(t["x"], o["pads"])
            return functional.conv2d(pad, t["w"], None, o["stride"], padding, 1, t["x"].shape[1] // t["w"].shape[1])
        case "conv_bias_relu":
            pad, padding = padded(t["x"], o["pads"])
            return functional.conv2d(pad, t["w"], t["bias"].reshape(-1), o["stride"], padding).relu_()
        case "avg_pool":
            pad, padding = padded(t["x"], o["pads"])
            return functional.avg_pool2d(pad, tuple(o["kernel"]), o["stride"], padding)
        case "max_pool":
            pad, padding = padded(t["x"], o["pads"], -math.inf)
            return functional.max_pool2d(pad, tuple(o["kernel"]), o["stride"], padding)
    raise ValueError(f"{op.id}: no kind of operator is called {op.kind!r}")


def factors(op: Operator, t: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides of a product as it multiplies them, without a copy."""
    a, b = (t[name].mT if op.options.get(f"transpose_{name}") else t[name] for name in "ab")
    return a, b


def before(op: Operator) -> Operator:
    """The operator without its activation and what is added last: of absolute values it gives the sum of the terms' sizes."""
    return replace(op, kind=ACTIVATED.get(op.kind, op.kind))


def padded(x: torch.Tensor, pads: list[int], fill: float = 0.0) -> tuple[torch.Tensor, list[int]]:
    """The images with what torch's operators do not pad themselves (they know only as much at both ends), and what they do."""
    top, bottom, left, right = pads
    if (top, left) == (bottom, right):
        return x, [top, left]
    return functional.pad(x, (left, right, top, bottom), value=fill), [0, 0]


def into(op: Operator, t: Mapping[str, torch.Tensor], out: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Torch's own way with the result in memory that exists already, where it can."""
    match op.kind:
        case "matmul" if op.dtype == "int8":
            return lambda: torch._int_mm(*factors(op, t), out=out)
        case "matmul" | "batch_matmul":
            return lambda: torch.matmul(*factors(op, t), out=out)
        case "softmax":
            return lambda: torch.softmax(t["x"], -1, out=out)
        case "reduce_sum":
            return lambda: torch.sum(t["x"], dim=tuple(op.options["axes"]), out=out)
        case "transpose":
            return lambda: out.copy_(t["x"].permute(*op.options["axes"]))
        case "relu":
            return lambda: torch.clamp_min(t["x"], 0, out=out)
        case "add":
            return lambda: torch.add(t["x"], t["y"], out=out)
        case "gelu":
            return lambda: torch.ops.aten.gelu.out(t["x"], out=out)
        case "matmul_bias_residual":
            return lambda: torch.addmm(t["bias"], t["a"], t["b"], out=out).add_(t["residual"])
        case "scale_bias_relu":
            return lambda: torch.addcmul(t["bias"], t["x"], t["scale"], out=out).relu_()
    return lambda: compute(op, t)


def preferring(blas: str, call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A call for which torch takes its products from that library."""
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(blas)
    try:
        return call()
    finally:
        torch.backends.cuda.preferred_blas_library(before)
