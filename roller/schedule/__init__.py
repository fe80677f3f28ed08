"""The path of `roller.lowering` for plugins that were written against version 1 of the API: its modules under the names they had.

A module has one identity under both paths, and is loaded when the first of them is imported. New plugins import `roller.lowering`.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES = {
    "accumulate": "simd.accumulators",
    "arena": "specialised.shared_memory",
    "arithmetic": "tir.arithmetic",
    "blocks": "simd.transpose",
    "boxes": "simd.halo_fill",
    "bulk": "specialised.bulk_copies",
    "copies": "simd.panel_fill",
    "filling": "simt.cooperative_fill",
    "fragments": "simt.fragments",
    "functions": "tir.functions",
    "gather": "simt.lane_reduction",
    "grid": "grid",
    "lane": "simt.lane",
    "leaving": "specialised.store_cost",
    "lowering": "simd.context",
    "machine": "simt.machine",
    "matrix": "simt.matrix_atoms",
    "outlet": "specialised.staged_store",
    "panel_lane": "specialised.consumer",
    "panels": "simd.panel_layout",
    "pipeline": "simt.pipeline",
    "place": "tir.addresses",
    "reading": "tir.loads",
    "result": "simd.epilogue",
    "rows": "simt.row_kernel",
    "scalar": "tir.expressions",
    "sequential": "sequential",
    "shared": "simt.shared_panels",
    "specialised": "specialised.producer_consumer",
    "stage": "simt.stage_kernel",
    "swizzled": "specialised.swizzle",
    "threads": "simt.threads",
    "tir": "tir.builder",
    "transposed": "simd.transposed_fill",
    "waits": "specialised.fill_waits",
    "walk": "tir.tile_starts",
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module under its path of API 1."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == __name__ and name in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"roller.lowering.{MODULES[spec.name.rpartition('.')[2]]}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the module ran under its own path, whose spec it keeps."""
        spec = module.__spec__
        if spec is not None and spec.loader is self:
            module.__spec__ = spec.loader_state


sys.meta_path.append(_Moved())
