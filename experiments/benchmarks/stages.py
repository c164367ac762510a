"""Kernels of an executable, called one at a time on memory of their own, to see what each costs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import LoweringError
from compiler.runtime.kernels import Kernel, aligned_copy
from compiler.symbolic import Index

if TYPE_CHECKING:
    from compiler import Executable

_SLACK = 4096  # vector code may read a little past the end


def kernel_calls(executable: Executable) -> list[Callable[[], object]]:
    """One call per kernel, in the order in which they run, on one thread; inputs are random bytes.

    Raises:
        LoweringError: a kernel has symbolic dimensions.
    """
    return [_call(kernel) for kernel in executable.kernels]


def _call(kernel: Kernel) -> Callable[[], object]:
    import llvmlite.binding as llvm

    if kernel.dims:
        raise LoweringError("kernels with symbolic dimensions cannot be timed alone: fix the batch")
    rng = np.random.default_rng(0)
    memory: list[Any] = []
    for k, buffer in enumerate(kernel.func.params):
        given = kernel.arguments[k].array if k < len(kernel.arguments) else None
        if given is None:
            size = int(Index.of(buffer.size).value({})) * buffer.dtype.nbytes + _SLACK
            given = aligned_copy(rng.integers(0, 64, size, np.uint8))
        memory.append(given)
    for temp in kernel.temps:
        memory.append(aligned_copy(np.zeros(int(temp.value({})) + _SLACK, np.uint8)))
    memory += kernel.tables
    pointers = [a.ctypes.data for a in memory]
    calls = []
    for stage in kernel.stages:
        bounds = [] if stage.extent is None else [0, int(stage.extent.value({}))]
        kinds = [*[ctypes.c_void_p] * len(pointers), *[ctypes.c_int64] * len(bounds)]
        native = ctypes.CFUNCTYPE(None, *kinds)(llvm.address_of_symbol(stage.symbol))
        calls.append((native, (*map(ctypes.c_void_p, pointers), *map(ctypes.c_int64, bounds))))

    def run(keep: list[Any] = memory) -> None:
        for native, arguments in calls:
            native(*arguments)

    return run
