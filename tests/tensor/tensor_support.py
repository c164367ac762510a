"""Running one PrimFunc three ways: interpreted as written, interpreted as scheduled, compiled."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.codegen.llvm import jit
from compiler.codegen.llvm.backend import lower_primfunc
from compiler.interpret import loop_nests
from compiler.runtime.kernels import aligned_copy
from compiler.symbolic import Var
from compiler.target.registry import Target
from compiler.tensor.packed_arrays import pack_array
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import Array
from compiler.types.names import digest


def buffers(func: PrimFunc, arrays: Sequence[Array]) -> list[Array]:
    """One array per parameter of `func`: inputs (packed where the schedule packs), then zeroed
    outputs."""
    out = []
    for b, a in zip(func.params, arrays, strict=True):
        data = pack_array(func.packed[b].order, a) if b in func.packed else a
        out.append(aligned_copy(data))
    return out


def interpret(
    func: PrimFunc, arrays: Sequence[Array], dims: Mapping[Var, int] | None = None
) -> Array:
    """Last output of the interpreter."""
    given = buffers(func, arrays)
    with np.errstate(all="ignore"):
        loop_nests.run(func, given, dims)
    return given[-1]


def compiled(
    func: PrimFunc,
    arrays: Sequence[Array],
    dims: Mapping[Var, int] | None = None,
    target: str = "llvm",
) -> Array:
    """Last output of the compiled kernel."""
    chosen = Target.parse(target)
    given = buffers(func, arrays)
    env = dict(dims or {})
    temps = [
        aligned_copy(np.zeros([int(n.value(env)) for n in b.shape], b.dtype.storage))
        for b in func.temps
    ]
    name = f"t_{digest(str(func), str(chosen), repr(sorted(b.name for b in func.prefetch)))}"
    for stage in lower_primfunc(replace(func, name=name), []):
        address = jit.compile_text(stage.text, stage.symbol, chosen)
        args: list[ctypes.c_void_p | ctypes.c_int64] = [
            ctypes.c_void_p(a.ctypes.data) for a in [*given, *temps]
        ]
        args += [ctypes.c_int64(env[v]) for v in func.dims]
        if stage.extent is not None:
            args += [ctypes.c_int64(0), ctypes.c_int64(int(stage.extent.value(env)))]
        ctypes.CFUNCTYPE(None, *[type(a) for a in args])(address)(*args)
    return given[-1]


def three_ways(
    plain: PrimFunc,
    scheduled: PrimFunc,
    arrays: Sequence[Array],
    dims: Mapping[Var, int] | None = None,
    target: str = "llvm",
) -> tuple[Array, Array, Array]:
    """(interpreted as written, interpreted as scheduled, compiled as scheduled)."""
    fresh = copy.copy
    return (
        interpret(plain, [fresh(a) for a in arrays], dims),
        interpret(scheduled, arrays, dims),
        compiled(scheduled, arrays, dims, target),
    )
