"""The API for device plugins: all names that a plugin may import from roller, which roller keeps stable."""

from roller.cost.parameters import PREFETCH_REGISTERS, CostParameters, Deferred, Unrolling
from roller.device.attached import like_attached
from roller.device.hookspecs import API_VERSION, hookimpl
from roller.errors import (
    CodegenError,
    ConstructionError,
    DeviceUnavailableError,
    ExpressionError,
    KernelError,
    LaunchError,
    RollerError,
    SpecError,
)
from roller.ir.expr import ELEMENT_BYTES, FLOATS, Axis, Stage, Tensor, TensorExpr
from roller.ir.nest import Access, Dim, Nest, Tile
from roller.ir.nest import variants as nests
from roller.ir.scalar import Accumulator, Affine, Binary, Cast, Const, Coordinate, Load, Scalar, Select, Unary, rewrite, walk
from roller.ir.serialization import expr_from_json, expr_to_json
from roller.layout.banks import PanelRows, staged_rows
from roller.program.alignment import Multiple
from roller.program.dispatch import Loop
from roller.program.estimate import Estimate
from roller.program.row_runs import requested_lines
from roller.program.rprogram import RProgram, StageProgram, Staging, copy_depth, staged_touches
from roller.runtime.arrays import ALIGNMENT, Wanted, address, aligned_empty, numpy_dtype, ready, same_bits
from roller.runtime.artifact import Artifact, BuildOptions, KernelSource, Later, Profile, Runner
from roller.runtime.dlpack import borrow, lend
from roller.runtime.driver_errors import ForkGuard, StatusError
from roller.runtime.gpu import Gpu
from roller.runtime.gpu_arrays import Block, DeviceArray, Foreign, Taken
from roller.runtime.gpu_runner import GpuRunner
from roller.runtime.host_compiler import host_compiler
from roller.runtime.loaded_kernel import Owned, check_limits, constants_of, inputs_of
from roller.runtime.worker import run_isolated
from roller.storage import cache_dir, program_identity, spec_dir, write_atomic
from roller.target.catalog import (
    builtin_dir,
    dump_spec,
    find_spec,
    keep_spec,
    kept_spec,
    list_specs,
    load_spec,
    shipped_specs,
    spec_from_dict,
    user_spec_path,
)
from roller.target.hardware import STORED_AS, Banks, ComputeAtom, HardwareSpec, MemoryLevel, RowShares, SchedulableUnit
from roller.target.subset import narrowed

__all__ = [
    "ALIGNMENT",
    "API_VERSION",
    "ELEMENT_BYTES",
    "FLOATS",
    "PREFETCH_REGISTERS",
    "STORED_AS",
    "Access",
    "Accumulator",
    "Affine",
    "Artifact",
    "Axis",
    "Banks",
    "Binary",
    "Block",
    "BuildOptions",
    "Cast",
    "CodegenError",
    "ComputeAtom",
    "Const",
    "ConstructionError",
    "Coordinate",
    "CostParameters",
    "Deferred",
    "DeviceArray",
    "DeviceUnavailableError",
    "Dim",
    "Estimate",
    "ExpressionError",
    "Foreign",
    "ForkGuard",
    "Gpu",
    "GpuRunner",
    "HardwareSpec",
    "KernelError",
    "KernelSource",
    "Later",
    "LaunchError",
    "Load",
    "Loop",
    "MemoryLevel",
    "Multiple",
    "Nest",
    "Owned",
    "PanelRows",
    "Profile",
    "RProgram",
    "RollerError",
    "RowShares",
    "Runner",
    "Scalar",
    "SchedulableUnit",
    "Select",
    "SpecError",
    "Stage",
    "StageProgram",
    "Staging",
    "StatusError",
    "Taken",
    "Tensor",
    "TensorExpr",
    "Tile",
    "Unary",
    "Unrolling",
    "Wanted",
    "address",
    "aligned_empty",
    "borrow",
    "builtin_dir",
    "cache_dir",
    "check_limits",
    "constants_of",
    "copy_depth",
    "dump_spec",
    "expr_from_json",
    "expr_to_json",
    "find_spec",
    "hookimpl",
    "host_compiler",
    "inputs_of",
    "keep_spec",
    "kept_spec",
    "lend",
    "like_attached",
    "list_specs",
    "load_spec",
    "narrowed",
    "nests",
    "numpy_dtype",
    "program_identity",
    "ready",
    "requested_lines",
    "rewrite",
    "run_isolated",
    "same_bits",
    "shipped_specs",
    "spec_dir",
    "spec_from_dict",
    "staged_rows",
    "staged_touches",
    "user_spec_path",
    "walk",
    "write_atomic",
]
